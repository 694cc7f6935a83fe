use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::figures::Figure;
use crate::filters::{document, fairshare};
use crate::proxy::{Proxy, Setup};
use crate::report::Report;
use crate::rounds::Plan;
use crate::support::client::{Connection, Request};
use crate::support::process::TempDir;
use crate::support::redis::Redis;
use crate::support::tools;

const WINDOW: Duration = Duration::from_secs(1);
const LIMIT: u64 = 200;

/// By how much the second Envoy's clock is ahead: neither a whole window, nor a whole part of one.
const AHEAD_MS: u32 = 1730;

/// The limits, by scope; each matches its own path.
const SCOPES: [&str; 3] = ["node", "leased", "strict"];

/// Connections that ask for one limit at one Envoy.
const CLIENTS: usize = 2;

/// What each waits after a refusal. Together they still want several times the limit.
const PAUSE: Duration = Duration::from_millis(2);

/// An admission: when the request left, and when its answer was there. It was admitted in between.
type Admission = (Instant, Instant);

/// Admissions under one limit, and how much it allows.
struct Budget {
    scope: &'static str,
    admissions: Vec<Admission>,
    unavailable: usize,
}

/// What one client got.
#[derive(Default)]
struct Answers {
    admissions: Vec<Admission>,
    /// Answers that the store was out of reach.
    unavailable: usize,
}

/// Two Envoys, one Redis, demand that never lets up, times as the clients see them.
pub(crate) fn windows(plan: Plan, report: &mut Report) {
    eprintln!("Windows, over two Envoys");
    let (rounds, windows) = if plan.quick { (7, 2) } else { (15, 4) };
    let round = WINDOW * windows;
    let redis = Redis::start();
    let setup = Setup::new(vec![fairshare(&policy())]).redis(redis.socket());
    let directory = TempDir::new("clock");
    let ahead = Setup { wrapper: other_clock(&directory), ..setup.clone() };
    let proxies = [setup.start(), ahead.start()];
    expect_ahead(&proxies);
    report.note(format!("The second Envoy's clock was {AHEAD_MS} ms ahead."));
    let start = Instant::now();
    let end = start + round * rounds + WINDOW;
    let budgets = demand(&proxies, end);
    proxies.iter().for_each(Proxy::expect_no_trap);
    let over = |number: u32| {
        let from = start + round * number;
        let worst = |budget: &Budget| budget.worst_window(from, from + round);
        budgets.iter().map(worst).max().unwrap_or(0) as f64 / LIMIT as f64
    };
    report.figure("window_overshoot_max", Figure::of(&(0..rounds).map(over).collect::<Vec<_>>()));
    let utilisation = |budget: &Budget| budget.utilisation(windows, end);
    let used: Vec<Vec<f64>> = budgets.iter().map(utilisation).collect();
    let most = used.iter().map(Vec::len).max().unwrap_or(0);
    let of = |round: usize| used.iter().filter_map(move |used| used.get(round)).copied();
    let least = (0..most).map(|round| of(round).fold(1.0, f64::min));
    report.figure("window_utilisation_min", Figure::of(&least.collect::<Vec<_>>()));
    let whole = |(budget, used): (&Budget, &Vec<f64>)| {
        let percent = used.iter().sum::<f64>() / used.len() as f64 * 100.0;
        let worst = budget.worst_window(start, end);
        format!("{} {worst} of {LIMIT}, {percent:.1} % used", budget.scope)
    };
    let whole: Vec<String> = budgets.iter().zip(&used).map(whole).collect();
    let unavailable: usize = budgets.iter().map(|budget| budget.unavailable).sum();
    report.note(format!("The worst window of each budget: {}.", whole.join("; ")));
    report.note(format!("{unavailable} answers said that the store was out of reach."));
}

fn policy() -> Value {
    let limit = |scope: &&str| {
        let mut limit = json!({
            "name": scope,
            "match": {"path_prefix": format!("/{scope}/")},
            "tenant": {"requests": LIMIT, "window": "1s"},
        });
        if *scope != "node" {
            limit["scope"] = json!("global");
            limit["consistency"] = json!(scope);
            // What is measured is the promise, not what replaces it while the store does not answer.
            limit["on_store_error"] = json!("deny");
        }
        limit
    };
    document(&SCOPES.iter().map(limit).collect())
}

/// Words that give the program behind them another clock, which a C compiler makes.
fn other_clock(directory: &TempDir) -> Vec<String> {
    let library = directory.file("clock.so");
    let source = tools::repository().join("benches/envoy/clock.c");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O2", &format!("-DAHEAD_MS={AHEAD_MS}"), "-o"]);
    let compiled = compile.arg(&library).arg(source).status().is_ok_and(|status| status.success());
    assert!(compiled, "cc is missing, which makes the second Envoy another clock: install gcc");
    vec!["env".to_owned(), format!("LD_PRELOAD={}", library.display())]
}

/// Fails the run where the second Envoy's clock is not ahead: it tells its time in whole seconds.
fn expect_ahead(proxies: &[Proxy; 2]) {
    let seconds = |proxy: &Proxy| {
        let answer = Request::get("/").send(proxy.port());
        let date = answer.header("date").expect("the time of an answer");
        let time = date.split(' ').nth(4).expect("a time of the day").split(':');
        time.fold(0, |sum, part| sum * 60 + part.parse::<i64>().expect("a number"))
    };
    let ahead = (seconds(&proxies[1]) - seconds(&proxies[0])).rem_euclid(24 * 3600);
    assert!((1..=3).contains(&ahead), "the second Envoy's clock is {ahead} s ahead");
}

/// Asks for every limit at every Envoy until `end`.
fn demand(proxies: &[Proxy; 2], end: Instant) -> Vec<Budget> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for name in SCOPES {
            for (number, proxy) in proxies.iter().enumerate() {
                for _ in 0..CLIENTS {
                    let client = scope.spawn(move || ask(proxy.port(), name, end));
                    threads.push((name, number, client));
                }
            }
        }
        // A node limit is each process's own; of the others there is one for both.
        let mut budgets: Vec<(usize, Budget)> = Vec::new();
        for (name, number, client) in threads {
            let owner = if name == "node" { number } else { 0 };
            let known = budgets.iter_mut().find(|(of, known)| *of == owner && known.scope == name);
            let Answers { admissions, unavailable } = client.join().expect("a client");
            match known {
                Some((_, budget)) => {
                    budget.admissions.extend(admissions);
                    budget.unavailable += unavailable;
                }
                None => budgets.push((owner, Budget { scope: name, admissions, unavailable })),
            }
        }
        budgets.into_iter().map(|(_, budget)| budget.sorted()).collect()
    })
}

fn ask(port: u16, scope: &str, end: Instant) -> Answers {
    let mut connection = Connection::open(port).expect("a connection");
    let request = Request::get(&format!("/{scope}/")).tenant("acme").header("x-api-key", "key");
    let mut answers = Answers::default();
    while Instant::now() < end {
        let sent = Instant::now();
        let answer = connection.send(&request).expect("an answer");
        match answer.status {
            200 => answers.admissions.push((sent, Instant::now())),
            429 => thread::sleep(PAUSE),
            503 => answers.unavailable += 1,
            status => panic!("{status} {}", answer.text()),
        }
    }
    answers
}

impl Budget {
    fn sorted(mut self) -> Self {
        self.admissions.sort_unstable();
        self
    }

    /// How much of the limit was used, in parts of so many windows' worth of admissions each: the time
    /// that the limit asks for by the time that it took until the next one. Admissions come in bursts,
    /// and time that is cut at fixed points would hold one more or one less of them. The last part, which `end`
    /// cuts short, counts where it took too long already.
    fn utilisation(&self, windows: u32, end: Instant) -> Vec<f64> {
        let part = usize::try_from(u64::from(windows) * LIMIT).expect("few admissions");
        let mut answers: Vec<Instant> = self.admissions.iter().map(|(_, got)| *got).collect();
        answers.sort_unstable();
        let cut: Vec<&[Instant]> = answers.chunks(part).collect();
        let due = (WINDOW * windows).as_secs_f64();
        let used = |from: Instant, to: Instant| due / to.duration_since(from).as_secs_f64();
        let mut parts: Vec<f64> = cut.windows(2).map(|pair| used(pair[0][0], pair[1][0])).collect();
        // A limit that has admitted nothing has used nothing.
        let (last, count) = cut.last().map_or((0.0, 0), |last| (used(last[0], end), last.len()));
        if last < 0.9 {
            parts.push(last * count as f64 / part as f64);
        }
        parts
    }

    /// The most admissions that certainly lie within one window that starts within this time: sent
    /// after its start, answered before its end. No admission before a request or after its answer
    /// is possible, so nothing is counted too much.
    fn worst_window(&self, from: Instant, to: Instant) -> usize {
        let first = |time: Instant| self.admissions.partition_point(|(sent, _)| *sent < time);
        let within = |index: usize| {
            let start = self.admissions[index].0;
            let window = &self.admissions[index..first(start + WINDOW)];
            window.iter().filter(|(_, got)| *got < start + WINDOW).count()
        };
        (first(from)..first(to)).map(within).max().unwrap_or(0)
    }
}
