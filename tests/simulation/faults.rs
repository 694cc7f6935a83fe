use crate::plan::{MILLI, SECOND};
use crate::rng::Rng;

/// The classes of faults of a run.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Store calls are late, lost or doubled.
    pub network: bool,
    /// Some of them are cut.
    pub cuts: bool,
    /// Half of all replies are late, up to the timeout.
    pub slow: bool,
    /// The store is out of reach for one node or for all.
    pub outages: bool,
    /// VMs trap.
    pub traps: bool,
    /// Processes die and come back.
    pub crashes: bool,
    /// New configurations come.
    pub updates: bool,
    /// The nodes' clocks drift, step and go back.
    pub node_clocks: bool,
    /// The store's clock drifts, steps and goes back.
    pub store_clock: bool,
    /// The store forgets: all of it, the last writes, one key, or its script.
    pub losses: bool,
    /// Slots of a Redis Cluster go from one server to another.
    pub moves: bool,
    /// Swaps of shared data are lost.
    pub contention: bool,
    /// Clients leave at any step.
    pub leaving: bool,
}

/// Something that happens to the fleet.
#[derive(Clone, Debug)]
pub enum Fault {
    Trap {
        node: usize,
        worker: usize,
    },
    Crash {
        node: usize,
    },
    Update {
        node: usize,
    },
    NodeStep {
        node: usize,
        by: i64,
    },
    NodeGain {
        node: usize,
        gain: i64,
    },
    StoreStep {
        by: i64,
    },
    StoreGain {
        gain: i64,
    },
    /// The store is out of reach of one node, or of all.
    Cut {
        node: Option<usize>,
        silent: bool,
        lasts: u64,
    },
    /// The store answers every command with this error.
    Failing {
        error: &'static str,
        lasts: u64,
    },
    ForgetScript,
    Flush,
    /// One key is evicted.
    Evict,
    MoveSlot {
        lasts: u64,
    },
    /// A copy that is older by so much takes over.
    FailOver {
        lost: u64,
    },
}

const ERRORS: [&str; 4] = [
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "CLUSTERDOWN Hash slot not served",
];

impl Faults {
    pub fn of(rng: &Rng) -> Self {
        // A tenth of all runs is undisturbed, and a tenth meets one kind of fault alone.
        let often = match rng.within(0, 10) {
            0 => 0,
            1 => 100,
            2..6 => 250,
            _ => 500,
        };
        let some = || rng.in_thousand(often);
        let network = some();
        Self {
            network,
            cuts: network,
            slow: some(),
            outages: some(),
            traps: some(),
            crashes: some(),
            updates: some(),
            node_clocks: some(),
            store_clock: some(),
            losses: some() || some(),
            moves: some(),
            contention: some(),
            leaving: some(),
        }
    }

    /// When which fault happens, within `duration`.
    pub fn events(
        &self,
        rng: &Rng,
        duration: u64,
        (nodes, workers): (usize, usize),
        period: u64,
    ) -> Vec<(u64, Fault)> {
        let mut events = Vec::new();
        let mut add = |happens: bool, fault: &dyn Fn() -> Fault| {
            for _ in 0..if happens { rng.within(1, 4) } else { 0 } {
                events.push((rng.within(0, duration), fault()));
            }
        };
        let node = || rng.place(nodes);
        let step = |most: u64| {
            let by = i64::try_from(rng.within(1, most)).unwrap();
            if rng.in_thousand(500) { by } else { -by }
        };
        let gain = || i64::try_from(rng.within(0, 401)).unwrap() - 200;
        let lasts = || rng.within(1, 600 * MILLI);
        add(self.traps, &|| Fault::Trap { node: node(), worker: rng.place(workers) });
        add(self.crashes, &|| Fault::Crash { node: node() });
        add(self.updates, &|| Fault::Update { node: node() });
        add(self.node_clocks, &|| Fault::NodeStep { node: node(), by: step(period) });
        add(self.node_clocks, &|| Fault::NodeGain { node: node(), gain: gain() });
        add(self.store_clock, &|| Fault::StoreStep { by: step(3 * SECOND) });
        add(self.store_clock, &|| Fault::StoreGain { gain: gain() });
        add(self.outages, &|| {
            let node = rng.in_thousand(600).then(&node);
            Fault::Cut { node, silent: rng.in_thousand(500), lasts: lasts() }
        });
        add(self.outages && rng.in_thousand(300), &|| Fault::Failing {
            error: rng.pick(&ERRORS),
            lasts: lasts(),
        });
        add(self.moves, &|| Fault::MoveSlot { lasts: rng.within(1, 200 * MILLI) });
        add(self.losses, &|| match rng.within(0, 8) {
            0..2 => Fault::ForgetScript,
            2 => Fault::Evict,
            3..5 => Fault::Flush,
            _ => Fault::FailOver { lost: rng.within(0, 300 * MILLI) },
        });
        events
    }
}
