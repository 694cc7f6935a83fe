use std::time::{Duration, Instant};

use crate::load::{LIMIT, NOISY, QUIET, WINDOW};

/// One request, as its client saw it, and its Envoy.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub tenant: &'static str,
    pub port: u16,
    /// No other request has it.
    pub number: u64,
    pub sent: Instant,
    /// When there was a connection to send it on.
    pub connected: Instant,
    pub done: Instant,
    /// None where there was no answer at all.
    pub status: Option<u16>,
    /// Whether the answer is one of the filter's.
    pub by_filter: bool,
    /// For how long its Envoy had it; none where no access log says so.
    pub in_envoy: Option<Duration>,
    /// For how much of that it was the upstream's.
    pub upstream: Duration,
    /// For how long a worker of its Envoy waited for a processor meanwhile.
    pub no_processor: Duration,
}

/// What all clients saw.
pub struct Seens(pub Vec<Seen>);

/// The columns of [`Seens::report`].
const COLUMNS: [&str; 12] = [
    "offered",
    "admitted",
    "worst / limit",
    "wrong refusals",
    "5xx",
    "the filter's",
    "unanswered",
    "slowest",
    "connecting",
    "no processor",
    "held",
    "recovery",
];

/// Half of the shortest timeout of a store.
const STALL: Duration = Duration::from_millis(250);

/// For how long a store that was late may be given up.
const AFTER_STALL: Duration = Duration::from_secs(1);

/// For how long the filter may hold a request: the store's timeout, one tick and 5 ms for its turn. The
/// rest is for Envoy, whose clock this is. Who waits for a second timeout is far beyond it.
fn held_at_most(timeout: Duration) -> Duration {
    timeout * 3 / 2
}

impl Seen {
    /// For how long the client waited while nothing but the way through its Envoy kept it.
    fn own_wait(&self) -> Duration {
        self.without_others(self.done - self.sent)
    }

    /// The same by its Envoy's own clock, where that says so: for how long the filter held it.
    fn held(&self) -> Option<Duration> {
        self.in_envoy.map(|time| self.without_others(time))
    }

    fn without_others(&self, time: Duration) -> Duration {
        time.saturating_sub(self.upstream).saturating_sub(self.no_processor)
    }

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

    /// From `healed` until the quiet tenant is admitted for good: the last of its failures, apart from
    /// those that later stalls may have caused.
    pub fn recovery(&self, healed: Instant) -> Duration {
        let stalls = self.stalls();
        let failed = |seen: &&Seen| seen.tenant == QUIET && seen.status != Some(200);
        let failed = self.0.iter().filter(failed).filter(|seen| !seen.lies_in(&stalls));
        let last = failed.map(|seen| seen.done).max();
        last.map_or(Duration::ZERO, |last| last.saturating_duration_since(healed))
    }

    /// When containers had no processor for so long that Redis, which is one of them, may have been too
    /// late for the Envoys; and as long afterwards as they may keep from asking it.
    pub fn stalls(&self) -> Vec<(Instant, Instant)> {
        let stalled = self.0.iter().filter(|seen| seen.no_processor > STALL);
        stalled.map(|seen| (seen.sent, seen.done + AFTER_STALL)).collect()
    }

    /// Nobody who got an answer waited for longer than `patience` for anything but the upstream and a
    /// processor, and no request was held by the filter for longer than it may be.
    pub fn assert_prompt(&self, timeout: Duration, patience: Duration) {
        for seen in &self.0 {
            assert!(seen.held().is_none_or(|held| held < held_at_most(timeout)), "held: {seen:?}");
            assert!(seen.status.is_none() || seen.own_wait() < patience, "waited: {seen:?}");
        }
        // Or nothing was compared.
        let answered = self.offered() - self.unanswered();
        let known = self.0.iter().filter(|seen| seen.in_envoy.is_some()).count();
        assert!(known * 10 > answered * 9, "{known} of {answered} in the access logs");
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
            seconds(self.longest(|seen| seen.done - seen.sent)),
            seconds(self.longest(|seen| seen.connected - seen.sent)),
            seconds(self.longest(|seen| seen.no_processor)),
            seconds(self.longest(|seen| seen.held().unwrap_or_default())),
            seconds(self.recovery(healed)),
        ];
        println!(
            "\n{}\n{}",
            row("scenario", COLUMNS),
            row(scenario, cells.each_ref().map(|cell| cell.as_str()))
        );
    }

    /// The longest such time of requests that were answered.
    fn longest(&self, time: impl Fn(&Seen) -> Duration) -> Duration {
        self.0.iter().filter(|seen| seen.status.is_some()).map(time).max().unwrap_or_default()
    }

    fn errors(&self) -> impl Iterator<Item = Seen> {
        self.with_status(|status| status.is_some_and(|status| status >= 500))
    }

    fn with_status(&self, is: impl Fn(Option<u16>) -> bool) -> impl Iterator<Item = Seen> {
        self.0.iter().filter(move |seen| is(seen.status)).copied()
    }
}

fn row(scenario: &str, cells: [&str; 12]) -> String {
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
