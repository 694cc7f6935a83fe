use std::fmt;

use crate::checks::without_store;
use crate::world::{Fate, World};

/// What many runs did, so that a reader sees that they did something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    seeds: u64,
    requests: u64,
    pub admitted: u64,
    pub refused: u64,
    errored: u64,
    left: u64,
    lost: u64,
    /// Decisions in the store.
    decisions: u64,
    /// Runs in which something may have been decided without the store.
    without_store: u64,
    faults: u64,
    /// Losses of state.
    losses: u64,
    /// Runs on a Redis Cluster, and questions that it sent on.
    clusters: u64,
    sent_on: u64,
}

impl Tally {
    pub fn of(world: &World<'_>) -> Self {
        let sent_on =
            |how: &str| world.fleet.metric(&["fairshare_store_calls.", &format!("result={how}")]);
        let mut tally = Self {
            seeds: 1,
            decisions: world.network.decisions,
            without_store: u64::from(without_store(world)),
            faults: u64::try_from(world.plan.events.len()).unwrap(),
            losses: world.network.books.losses(),
            clusters: u64::from(world.plan.shards > 0),
            sent_on: ["moved", "ask", "try_again"].map(sent_on).iter().sum(),
            ..Self::default()
        };
        for request in &world.requests {
            tally.requests += 1;
            *match &request.fate {
                Fate::Admitted => &mut tally.admitted,
                Fate::Refused { status: 429, .. } => &mut tally.refused,
                Fate::Refused { .. } => &mut tally.errored,
                Fate::Left => &mut tally.left,
                Fate::Lost | Fate::NotTaken | Fate::Waits => &mut tally.lost,
            } += 1;
        }
        tally
    }

    pub const fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.requests += other.requests;
        self.admitted += other.admitted;
        self.refused += other.refused;
        self.errored += other.errored;
        self.left += other.left;
        self.lost += other.lost;
        self.decisions += other.decisions;
        self.without_store += other.without_store;
        self.faults += other.faults;
        self.losses += other.losses;
        self.clusters += other.clusters;
        self.sent_on += other.sent_on;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, requests, admitted, refused, errored, left, lost, .. } = self;
        writeln!(f, "{seeds} seeds, {requests} requests: {admitted} admitted, {refused} refused,")?;
        writeln!(f, "{errored} answered with an error, {left} left, {lost} lost with their VM;")?;
        let Self { decisions, without_store, faults, losses, clusters, sent_on, .. } = self;
        writeln!(f, "{decisions} decisions in the store, {faults} faults beside those of calls,")?;
        writeln!(f, "{losses} losses of state; {clusters} seeds on a Redis Cluster, which sent")?;
        write!(f, "{sent_on} questions on; ")?;
        write!(f, "{without_store} seeds in which some decisions were made without the store")
    }
}
