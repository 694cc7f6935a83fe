//! What the kernel says about CPU time: that of single processes, and that of everything.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// CPU time of a process, user and system, over all of its threads, in nanoseconds.
pub(crate) fn process_cpu_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    let cpu = |task: fs::DirEntry| {
        // A thread may end in between.
        let schedstat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        schedstat.split(' ').next()?.parse::<u64>().ok()
    };
    tasks.flatten().filter_map(cpu).sum()
}

/// Resident memory of a process in bytes.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("kibibytes") * 1024
}

/// The machine in a few words.
pub(crate) fn description() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown CPU", |(_, model)| model);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} × {model}, Linux {}", cores(), kernel.trim())
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The load average over one minute.
pub(crate) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").expect("/proc/loadavg");
    text.split(' ').next().and_then(|load| load.parse().ok()).expect("a load average")
}

/// How much of the machine somebody else uses while this value lives.
#[derive(Debug)]
pub(crate) struct Others {
    start: Instant,
    busy_ticks: u64,
    ours_ticks: HashMap<u32, u64>,
}

impl Others {
    pub(crate) fn watch() -> Self {
        Self { start: Instant::now(), busy_ticks: busy_ticks(), ours_ticks: ours_ticks() }
    }

    /// CPUs that others have kept busy since, on average; what our processes that have ended used
    /// is counted to them.
    pub(crate) fn cores(&self) -> f64 {
        let ours: u64 = ours_ticks()
            .iter()
            .map(|(pid, ticks)| ticks - self.ours_ticks.get(pid).copied().unwrap_or(0).min(*ticks))
            .sum();
        let busy = busy_ticks() - self.busy_ticks;
        busy.saturating_sub(ours) as f64 / TICKS_PER_SECOND / self.start.elapsed().as_secs_f64()
    }
}

/// On every Linux that Envoy runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// What all CPUs have spent on anything at all, a hypervisor's other guests included.
fn busy_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let line = stat.lines().next().expect("the sum over all CPUs");
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).filter_map(|ticks| ticks.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    [0, 1, 2, 5, 6, 7].iter().filter_map(|index| ticks.get(*index)).sum()
}

/// CPU time of this process and of all that it has started.
fn ours_ticks() -> HashMap<u32, u64> {
    let mut parents = HashMap::new();
    let mut ticks = HashMap::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<u64> = rest.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
        parents.insert(pid, u32::try_from(fields[1]).unwrap_or(0));
        ticks.insert(pid, fields[11] + fields[12]);
    }
    let this = std::process::id();
    let is_ours = |pid: &u32| {
        let mut ancestor = *pid;
        while ancestor != this && ancestor > 1 {
            ancestor = parents.get(&ancestor).copied().unwrap_or(0);
        }
        ancestor == this
    };
    ticks.retain(|pid, _| is_ours(pid));
    ticks
}

/// Waits until the machine is calm, for a bounded time, and tells what it found.
pub(crate) fn wait_for_calm(longest: Duration) -> String {
    const CALM_CORES: f64 = 0.25;
    let start = Instant::now();
    loop {
        let others = Others::watch();
        std::thread::sleep(Duration::from_secs(1));
        let used = others.cores();
        let load = load_average();
        let calm = used < CALM_CORES;
        if calm || start.elapsed() >= longest {
            let verdict = if calm {
                "calm"
            } else {
                "BUSY: figures of this run are rough, ratios less so than times"
            };
            return format!(
                "load average {load:.2}, others use {used:.2} of {} CPUs: {verdict}",
                cores()
            );
        }
    }
}
