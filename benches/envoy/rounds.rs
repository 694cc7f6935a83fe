//! Variants side by side: each round goes through all of them forth and back in short slices, so that
//! whatever drifts while it runs meets all of them alike, and ratios are taken within a round.

use std::time::Duration;

use crate::figures::Figure;
use crate::load::{Load, Requests, Tally, paced};
use crate::machine::{self, Others};
use crate::proxy::Proxy;

/// The least time for which a variant runs before it counts.
const WARM_UP: Duration = Duration::from_millis(600);

/// How long and how often things are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) quick: bool,
    /// A variant gets two of these in each round.
    pub(crate) slice: Duration,
    pub(crate) rounds: usize,
}

/// One of the things that are compared.
pub(crate) struct Variant {
    name: String,
    drive: Drive,
    pids: Vec<u32>,
}

/// Runs requests for a time.
type Drive = Box<dyn FnMut(Duration) -> Tally>;

/// A round of one variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    pub(crate) tally: Tally,
    pub(crate) cpu_ns: u64,
    /// What this process used meanwhile: the load generator, and the rate limit service.
    generator_ns: u64,
}

/// All rounds of all variants.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) title: &'static str,
    pub(crate) names: Vec<String>,
    /// By variant, then by round.
    pub(crate) rounds: Vec<Vec<Round>>,
    pub(crate) others_cores: f64,
}

// === impl Plan ===

impl Plan {
    pub(crate) fn full() -> Self {
        Self { quick: false, slice: Duration::from_millis(500), rounds: 21 }
    }

    pub(crate) fn quick() -> Self {
        Self { quick: true, slice: Duration::from_millis(80), rounds: 7 }
    }

    /// For sweeps, which have many points and need no more than to show a shape.
    pub(crate) fn sweep(self) -> Self {
        let (millis, rounds) = if self.quick { (60, 7) } else { (250, 9) };
        Self { slice: Duration::from_millis(millis), rounds, ..self }
    }
}

// === impl Variant ===

impl Variant {
    /// As many requests as go through; the CPU time of these processes counts.
    pub(crate) fn new(name: impl Into<String>, mut load: Load, pids: Vec<u32>) -> Self {
        Self { name: name.into(), drive: Box::new(move |time| load.run_for(time)), pids }
    }

    /// So many requests a second to one Envoy.
    pub(crate) fn paced(
        name: impl Into<String>,
        proxy: &Proxy,
        per_second: u32,
        requests: Requests,
    ) -> Self {
        const CONNECTIONS: u32 = 16;
        let port = proxy.port();
        let drive = move |time| paced(port, CONNECTIONS, per_second, time, &requests);
        Self { name: name.into(), drive: Box::new(drive), pids: vec![proxy.id()] }
    }

    /// Load on one Envoy.
    pub(crate) fn of(
        name: impl Into<String>,
        proxy: &Proxy,
        connections: usize,
        requests: &Requests,
    ) -> Self {
        let load = Load::connect(&[proxy.port()], connections, requests.clone());
        Self::new(name, load, vec![proxy.id()])
    }

    fn slice(&mut self, time: Duration) -> Round {
        let this = std::process::id();
        let before = (self.cpu_ns(), machine::process_cpu_ns(this));
        let tally = (self.drive)(time);
        // Threads of a paced slice are gone with what they used.
        let generator_ns = machine::process_cpu_ns(this).saturating_sub(before.1);
        Round { cpu_ns: self.cpu_ns() - before.0, tally, generator_ns }
    }

    fn cpu_ns(&self) -> u64 {
        self.pids.iter().map(|pid| machine::process_cpu_ns(*pid)).sum()
    }
}

// === impl Round ===

impl Round {
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu_ns as f64 / 1000.0 / self.tally.requests() as f64
    }

    pub(crate) fn generator_us(&self) -> f64 {
        self.generator_ns as f64 / 1000.0 / self.tally.requests() as f64
    }

    /// How many CPUs it kept busy.
    pub(crate) fn cores(&self) -> f64 {
        self.cpu_ns as f64 / 1e9 / self.tally.seconds
    }

    fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.cpu_ns += other.cpu_ns;
        self.generator_ns += other.generator_ns;
    }
}

// === impl Series ===

impl Series {
    pub(crate) fn measure(title: &'static str, plan: Plan, variants: &mut [Variant]) -> Self {
        eprintln!("{title}");
        // Whatever answers has not all it needs at first: a new store grants nothing for half a second.
        for variant in &mut *variants {
            variant.slice(plan.slice.max(WARM_UP));
        }
        let others = Others::watch();
        let mut rounds = vec![Vec::new(); variants.len()];
        for number in 0..plan.rounds {
            let forth = (0..variants.len()).map(|index| (index + number) % variants.len());
            let order: Vec<usize> = forth.clone().chain(forth.rev()).collect();
            let mut sums = vec![Round::default(); variants.len()];
            for index in order {
                let round = variants[index].slice(plan.slice);
                round.tally.expect_answered(&variants[index].name);
                sums[index].add(&round);
            }
            for (rounds, sum) in rounds.iter_mut().zip(sums) {
                rounds.push(sum);
            }
        }
        let names = variants.iter().map(|variant| variant.name.clone()).collect();
        Self { title, names, rounds, others_cores: others.cores() }
    }

    /// The rounds of a variant.
    pub(crate) fn of(&self, name: &str) -> &[Round] {
        let index = self.names.iter().position(|known| known == name).expect("a variant");
        &self.rounds[index]
    }

    /// CPU per request of `one` divided by that of `other`.
    pub(crate) fn cpu_ratio(&self, one: &str, other: &str) -> Figure {
        self.pairwise(one, other, |one, other| one.cpu_us() / other.cpu_us())
    }

    /// Requests per second of `one` divided by those of `other`.
    pub(crate) fn rps_ratio(&self, one: &str, other: &str) -> Figure {
        self.pairwise(one, other, |one, other| one.tally.per_second() / other.tally.per_second())
    }

    /// The latency in milliseconds, below which this share of the requests of `one` stayed, less that of
    /// `other`.
    pub(crate) fn added_ms(&self, one: &str, other: &str, share: f64) -> Figure {
        let latency = |round: &Round| round.tally.latency_ms(share);
        self.pairwise(one, other, |one, other| latency(one) - latency(other))
    }

    fn pairwise(&self, one: &str, other: &str, compare: impl Fn(&Round, &Round) -> f64) -> Figure {
        let pairs = self.of(one).iter().zip(self.of(other));
        Figure::of(&pairs.map(|(one, other)| compare(one, other)).collect::<Vec<_>>())
    }

    /// The figure of a variant.
    pub(crate) fn figure(&self, name: &str, value: impl Fn(&Round) -> f64) -> Figure {
        Figure::of(&self.of(name).iter().map(value).collect::<Vec<_>>())
    }

    /// Fails the run where a variant did not answer as it was meant to: its figures would be of
    /// something else.
    pub(crate) fn expect_refused(&self, name: &str, wanted: std::ops::RangeInclusive<f64>) {
        for round in self.of(name) {
            let share = round.tally.refused_share();
            assert!(wanted.contains(&share), "{}: {name} refused {share:.4}", self.title);
        }
    }
}
