use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::support::client::{Connection, Request};

/// Units a second that each tenant has.
pub const LIMIT: usize = 100;

/// The limit's window.
pub const WINDOW: Duration = Duration::from_secs(1);

/// Asks as fast as it may.
const NOISY: &str = "noisy";

/// Stays far below its limit, so that no refusal of it is right.
const QUIET: &str = "quiet";

/// One request, as its client saw it.
#[derive(Clone, Copy)]
struct Seen {
    tenant: &'static str,
    sent: Instant,
    done: Instant,
    /// None where there was no answer at all.
    status: Option<u16>,
    /// Whether the answer is one of the filter's.
    by_filter: bool,
}

/// What all clients saw.
pub struct Seens(Vec<Seen>);

/// What answers of the filter are.
const PROBLEM: &str = "application/problem+json";

/// The columns of [`Seens::report`].
const COLUMNS: [&str; 9] = [
    "offered",
    "admitted",
    "worst / limit",
    "wrong refusals",
    "5xx",
    "the filter's",
    "unanswered",
    "slowest",
    "recovery",
];

/// Sends requests of two tenants to all ports for as long as `work` runs, and returns its result too.
pub fn under_load<T>(ports: &[u16], work: impl FnOnce() -> T) -> (Seens, T) {
    under_load_at("/", ports, work)
}

/// The same for one path.
pub fn under_load_at<T>(path: &str, ports: &[u16], work: impl FnOnce() -> T) -> (Seens, T) {
    let (stop, seen) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let result = thread::scope(|scope| {
        for port in ports {
            for (tenant, pause) in [(NOISY, 4), (NOISY, 4), (QUIET, 60)] {
                let (stop, seen) = (&stop, &seen);
                scope.spawn(move || {
                    let request = Request::get(path).tenant(tenant);
                    let mine = client(*port, tenant, &request, Duration::from_millis(pause), stop);
                    seen.lock().expect("no client failed").extend(mine);
                });
            }
        }
        let result = work();
        stop.store(true, Ordering::Relaxed);
        result
    });
    (Seens(seen.into_inner().expect("no client failed")), result)
}

/// Runs `work`, and says when the machine itself was late meanwhile: from when to when a request that no
/// limit concerns took longer than `bearable`.
pub fn watched<T>(
    ports: &[u16],
    bearable: Duration,
    work: impl FnOnce() -> T,
) -> (Vec<(Instant, Instant)>, T) {
    let (stop, probe) = (&AtomicBool::new(false), &Request::get("/healthz"));
    thread::scope(|scope| {
        let probes = ports.iter().map(|port| {
            scope.spawn(move || client(*port, "nobody", probe, Duration::from_millis(5), stop))
        });
        let probes: Vec<_> = probes.collect();
        let result = work();
        stop.store(true, Ordering::Relaxed);
        let seen = probes.into_iter().flat_map(|probe| probe.join().expect("a probe"));
        let times = seen.map(|seen| (seen.sent, seen.done));
        (times.filter(|(sent, done)| *done - *sent > bearable).collect(), result)
    })
}

fn client(
    port: u16,
    tenant: &'static str,
    request: &Request,
    pause: Duration,
    stop: &AtomicBool,
) -> Vec<Seen> {
    let (mut connection, mut seen) = (None, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        let answer = match connection.take() {
            Some(open) => Ok(open),
            None => Connection::open(port),
        };
        let answer = answer.and_then(|mut open| {
            let answer = open.send(request)?;
            if answer.header("connection").is_none_or(|value| value != "close") {
                connection = Some(open);
            }
            Ok((answer.status, answer.header("content-type").as_deref() == Some(PROBLEM)))
        });
        let (status, by_filter) = answer.map_or((None, false), |(status, by)| (Some(status), by));
        seen.push(Seen { tenant, sent, done: Instant::now(), status, by_filter });
        sleep(pause);
    }
    seen
}

impl Seen {
    fn lies_in(&self, times: &[(Instant, Instant)]) -> bool {
        times.iter().any(|(from, to)| self.sent <= *to && *from <= self.done)
    }
}

impl Seens {
    pub fn offered(&self) -> usize {
        self.0.len()
    }

    pub fn admitted(&self) -> usize {
        self.with_status(|status| status == Some(200)).count()
    }

    /// The most of a tenant that was certainly admitted within one window, over the limit: sent
    /// after its start and answered before its end.
    pub fn worst(&self) -> f64 {
        let most = [NOISY, QUIET].map(|tenant| {
            let mut admitted: Vec<Seen> = self
                .with_status(|status| status == Some(200))
                .filter(|seen| seen.tenant == tenant)
                .collect();
            admitted.sort_by_key(|seen| seen.sent);
            (0..admitted.len()).map(|first| within(&admitted[first..])).max().unwrap_or(0)
        });
        let most = most.into_iter().max().unwrap_or(0);
        f64::from(u32::try_from(most).expect("a small number"))
            / f64::from(u32::try_from(LIMIT).expect("a small number"))
    }

    /// Refusals of the tenant that stays within its share.
    pub fn wrong_refusals(&self) -> usize {
        self.wrongly_refused().count()
    }

    /// From the first of them to the last.
    pub fn time_of_wrong_refusals(&self) -> Duration {
        let times = || self.wrongly_refused().map(|seen| seen.done);
        times().max().zip(times().min()).map_or(Duration::ZERO, |(last, first)| last - first)
    }

    fn wrongly_refused(&self) -> impl Iterator<Item = Seen> {
        self.with_status(|status| status == Some(429)).filter(|seen| seen.tenant == QUIET)
    }

    /// Answers from 500 on.
    pub fn server_errors(&self) -> usize {
        self.errors().count()
    }

    /// Those of them that lie in none of these times.
    pub fn server_errors_apart_from(&self, times: &[(Instant, Instant)]) -> usize {
        self.errors().filter(|seen| !seen.lies_in(times)).count()
    }

    /// Those of them that are the filter's own.
    pub fn filter_errors(&self) -> usize {
        self.errors().filter(|seen| seen.by_filter).count()
    }

    /// Requests without an answer.
    pub fn unanswered(&self) -> usize {
        self.unanswered_apart_from(&[])
    }

    /// Those of them that lie in none of these times.
    pub fn unanswered_apart_from(&self, times: &[(Instant, Instant)]) -> usize {
        self.with_status(|status| status.is_none()).filter(|seen| !seen.lies_in(times)).count()
    }

    /// From `healed` until the quiet tenant is admitted for good: the last of its failures.
    pub fn recovery(&self, healed: Instant) -> Duration {
        let failed = |seen: &&Seen| seen.tenant == QUIET && seen.status != Some(200);
        let last = self.0.iter().filter(failed).map(|seen| seen.done).max();
        last.map_or(Duration::ZERO, |last| last.saturating_duration_since(healed))
    }

    /// The longest time that a request took to be answered.
    pub fn slowest(&self) -> Duration {
        let answered = self.0.iter().filter(|seen| seen.status.is_some());
        answered.map(|seen| seen.done - seen.sent).max().unwrap_or_default()
    }

    /// One row of the table at the end of a run.
    pub fn report(&self, scenario: &str, healed: Instant) {
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let cells = [
            self.offered().to_string(),
            self.admitted().to_string(),
            format!("{:.3}", self.worst()),
            self.wrong_refusals().to_string(),
            self.server_errors().to_string(),
            self.filter_errors().to_string(),
            self.unanswered().to_string(),
            seconds(self.slowest()),
            seconds(self.recovery(healed)),
        ];
        println!(
            "\n{}\n{}",
            row("scenario", COLUMNS),
            row(scenario, cells.each_ref().map(|cell| cell.as_str()))
        );
    }

    fn errors(&self) -> impl Iterator<Item = Seen> {
        self.with_status(|status| status.is_some_and(|status| status >= 500))
    }

    fn with_status(&self, is: impl Fn(Option<u16>) -> bool) -> impl Iterator<Item = Seen> {
        self.0.iter().filter(move |seen| is(seen.status)).copied()
    }
}

fn row(scenario: &str, cells: [&str; 9]) -> String {
    let cells = COLUMNS.iter().zip(cells).map(|(column, cell)| {
        let width = column.len();
        format!(" {cell:>width$} |")
    });
    format!("| {scenario:<39} |{}", cells.collect::<String>())
}

/// How many of `admitted` certainly lie within the window that begins with the first.
fn within(admitted: &[Seen]) -> usize {
    let Some(first) = admitted.first() else { return 0 };
    let end = first.sent + WINDOW;
    admitted.iter().take_while(|seen| seen.sent < end).filter(|seen| seen.done < end).count()
}
