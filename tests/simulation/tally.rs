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
}

impl Tally {
    pub fn of(world: &World<'_>) -> Self {
        let mut tally = Self {
            seeds: 1,
            decisions: world.network.decisions,
            without_store: u64::from(without_store(world)),
            faults: u64::try_from(world.plan.events.len()).unwrap(),
            losses: world.network.books.losses(),
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
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, requests, admitted, refused, errored, left, lost, .. } = self;
        writeln!(f, "{seeds} seeds, {requests} requests: {admitted} admitted, {refused} refused,")?;
        writeln!(f, "{errored} answered with an error, {left} left, {lost} lost with their VM;")?;
        let Self { decisions, without_store, faults, losses, .. } = self;
        write!(f, "{decisions} decisions in the store, {faults} faults beside those of calls,")?;
        write!(f, "\n{losses} of them losses of state;")?;
        write!(f, " {without_store} seeds in which some decisions were made without the store")
    }
}
