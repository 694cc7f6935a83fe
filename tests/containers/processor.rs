use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often is looked.
const PERIOD: Duration = Duration::from_millis(50);

/// For how long the workers of the Envoys waited for a processor: a request that is late for that was
/// not held by the filter. A thread that runs or sleeps waits for none.
pub struct Waits(HashMap<(usize, PathBuf), Vec<Sample>>);

/// For how long a worker had waited in all.
#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    waited: Duration,
}

impl Waits {
    /// Watches the workers of the Envoys in these containers until `stop` says so.
    pub fn watch(containers: &[String], stop: &AtomicBool) -> Self {
        let mut waits = Self(HashMap::new());
        loop {
            // Afterwards once more.
            let ends = stop.load(Ordering::Relaxed);
            for process in envoys() {
                let containers = containers.iter().enumerate();
                for (envoy, _) in containers.filter(|(_, id)| is_in(&process, id)) {
                    waits.look_at(envoy, process.clone());
                }
            }
            if ends {
                return waits;
            }
            sleep(PERIOD);
        }
    }

    fn look_at(&mut self, envoy: usize, process: PathBuf) {
        for thread in entries(process.join("task")) {
            let Some(waited) = waited(&thread) else { continue };
            let sample = Sample { at: Instant::now(), waited };
            self.0.entry((envoy, thread)).or_default().push(sample);
        }
    }

    /// The longest time that a worker of an Envoy waited between these times.
    pub fn between(&self, envoy: usize, from: Instant, to: Instant) -> Duration {
        let threads = self.0.iter().filter(|((of, _), _)| *of == envoy);
        let waited = threads.map(|(_, samples)| {
            let before = samples.iter().rfind(|sample| sample.at <= from);
            let after = samples.iter().find(|sample| sample.at >= to).or(samples.last());
            let [before, after] =
                [before, after].map(|sample| sample.map_or(Duration::ZERO, |sample| sample.waited));
            after.saturating_sub(before)
        });
        waited.max().unwrap_or_default()
    }
}

/// All processes of this machine that are Envoys.
fn envoys() -> impl Iterator<Item = PathBuf> {
    let is_envoy = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "envoy")
    };
    entries("/proc".into()).filter(is_envoy)
}

fn is_in(process: &Path, container: &str) -> bool {
    fs::read_to_string(process.join("cgroup")).is_ok_and(|groups| groups.contains(container))
}

/// For how long a worker has waited for a processor since it began; none for another thread.
fn waited(thread: &Path) -> Option<Duration> {
    let name = fs::read_to_string(thread.join("comm")).ok()?;
    if !name.starts_with("wrk:worker_") {
        return None;
    }
    // The second of three numbers, in nanoseconds.
    let numbers = fs::read_to_string(thread.join("schedstat")).ok()?;
    Some(Duration::from_nanos(numbers.split(' ').nth(1)?.parse().ok()?))
}

/// What is in a directory; nothing where it is gone.
fn entries(directory: PathBuf) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}
