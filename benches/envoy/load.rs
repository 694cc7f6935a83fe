//! The load generator: a few connections that are kept open, each with one request under way.
//!
//! *Closed*: each connection sends its next request when it has its answer, so that the proxy is
//! never idle. *Paced*: requests leave by a timetable, so that latency is what a client of a proxy
//! with room to spare sees.

use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::http::{self, Answer};

/// Writes the bytes of the n-th request.
pub(crate) type Requests = Arc<dyn Fn(u64, &mut Vec<u8>) + Send + Sync>;

/// Connections to one or more ports, kept open from slice to slice.
pub(crate) struct Load {
    runtime: Runtime,
    connections: Vec<Connection>,
    requests: Requests,
    next: Arc<AtomicU64>,
}

/// What came of some time of load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Microseconds from each request to its answer, in no order.
    pub(crate) latencies_us: Vec<u32>,
    /// Answers 429.
    pub(crate) refused: u64,
    /// The first status that is neither that nor 200.
    pub(crate) failure: Option<u16>,
    /// How long it took.
    pub(crate) seconds: f64,
}

struct Connection {
    stream: tokio::net::TcpStream,
    request: Vec<u8>,
    response: Vec<u8>,
}

// === impl Tally ===

impl Tally {
    pub(crate) fn requests(&self) -> u64 {
        u64::try_from(self.latencies_us.len()).expect("a number of requests")
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.requests() as f64 / self.seconds
    }

    pub(crate) fn refused_share(&self) -> f64 {
        self.refused as f64 / self.requests() as f64
    }

    /// Fails the run where something else was answered than 200 or 429.
    pub(crate) fn expect_answered(&self, by: &str) {
        assert_eq!(self.failure, None, "{by} has failed, with this status");
    }

    /// The latency in milliseconds below which this share of the requests stayed.
    pub(crate) fn latency_ms(&self, share: f64) -> f64 {
        let mut sorted = self.latencies_us.clone();
        sorted.sort_unstable();
        let index = (share * (sorted.len() - 1) as f64).round() as usize;
        f64::from(sorted[index]) / 1000.0
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.latencies_us.extend_from_slice(&other.latencies_us);
        self.refused += other.refused;
        self.failure = self.failure.or(other.failure);
        self.seconds += other.seconds;
    }

    fn note(&mut self, latency: Duration, status: u16) {
        self.latencies_us.push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
        match status {
            200 => {}
            429 => self.refused += 1,
            _ => self.failure = self.failure.or(Some(status)),
        }
    }
}

// === impl Load ===

impl Load {
    /// Connects `count` times, to the ports in turn.
    pub(crate) fn connect(ports: &[u16], count: usize, requests: Requests) -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_io().build().expect("a runtime");
        let connect = |port: &u16| runtime.block_on(Connection::open(*port)).expect("a connection");
        let connections = ports.iter().cycle().take(count).map(connect).collect();
        Self { runtime, connections, requests, next: Arc::default() }
    }

    /// As many requests as fit into `time`.
    pub(crate) fn run_for(&mut self, time: Duration) -> Tally {
        let end = Instant::now() + time;
        self.run(move |_| Instant::now() < end)
    }

    /// `count` requests.
    pub(crate) fn run_count(&mut self, count: u64) -> Tally {
        let end = self.next.load(Ordering::Relaxed) + count;
        self.run(move |index| index < end)
    }

    fn run(&mut self, goes_on: impl Fn(u64) -> bool + Send + Sync + 'static) -> Tally {
        let start = Instant::now();
        let goes_on = Arc::new(goes_on);
        let (requests, next) = (Arc::clone(&self.requests), Arc::clone(&self.next));
        let connections = std::mem::take(&mut self.connections);
        let (connections, mut tally) = self.runtime.block_on(async {
            let drive = |mut connection: Connection| {
                let (requests, next) = (Arc::clone(&requests), Arc::clone(&next));
                let goes_on = Arc::clone(&goes_on);
                tokio::spawn(async move {
                    let mut tally = Tally::default();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if !goes_on(index) {
                            next.fetch_sub(1, Ordering::Relaxed);
                            return (connection, tally);
                        }
                        requests(index, &mut connection.request);
                        let sent = Instant::now();
                        let answer = connection.exchange().await.expect("an answer");
                        tally.note(sent.elapsed(), answer.status);
                    }
                })
            };
            let tasks: Vec<_> = connections.into_iter().map(drive).collect();
            let (mut connections, mut sum) = (Vec::new(), Tally::default());
            for task in tasks {
                let (connection, tally) = task.await.expect("a connection's task");
                connections.push(connection);
                sum.add(&tally);
            }
            (connections, sum)
        });
        self.connections = connections;
        tally.seconds = start.elapsed().as_secs_f64();
        tally
    }
}

// === impl Connection ===

impl Connection {
    async fn open(port: u16) -> io::Result<Self> {
        let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, request: Vec::new(), response: Vec::with_capacity(4096) })
    }

    async fn exchange(&mut self) -> io::Result<Answer> {
        self.stream.write_all(&self.request).await?;
        self.response.clear();
        loop {
            if self.stream.read_buf(&mut self.response).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(answer) = http::answer(&self.response) {
                return Ok(answer);
            }
        }
    }
}

/// Sends `rate` requests a second over `count` connections for `time`, each by its timetable. A
/// request that its connection's last answer holds up is measured from when it was due.
///
/// Each connection has a thread of its own, because a runtime's timers tick once a millisecond.
pub(crate) fn paced(
    port: u16,
    count: u32,
    rate: u32,
    time: Duration,
    requests: &Requests,
) -> Tally {
    let start = Instant::now() + Duration::from_millis(10);
    let period = Duration::from_secs(1) * count / rate;
    let rounds = u32::try_from(time.as_nanos() / period.as_nanos()).expect("few rounds");
    let tallies: Vec<Tally> = thread::scope(|scope| {
        let drive = |number: u32| {
            let first = start + period * number / count;
            scope.spawn(move || drive_paced(port, first, period, rounds, requests))
        };
        let threads: Vec<_> = (0..count).map(drive).collect();
        threads.into_iter().map(|thread| thread.join().expect("a connection's thread")).collect()
    });
    let mut sum = Tally::default();
    tallies.iter().for_each(|tally| sum.add(tally));
    sum.seconds = time.as_secs_f64();
    sum
}

fn drive_paced(
    port: u16,
    first: Instant,
    period: Duration,
    rounds: u32,
    requests: &Requests,
) -> Tally {
    let mut stream =
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection");
    stream.set_nodelay(true).expect("no delay");
    let (mut request, mut response) = (Vec::new(), vec![0; 4096]);
    let mut tally = Tally::default();
    let mut free = Instant::now();
    for round in 0..rounds {
        requests(u64::from(round), &mut request);
        let due = first + period * round;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let sent = if free > due { due } else { Instant::now() };
        stream.write_all(&request).expect("a request");
        let mut length = 0;
        let answer = loop {
            let read = stream.read(&mut response[length..]).expect("an answer");
            assert!(read > 0, "the connection was closed");
            length += read;
            if let Some(answer) = http::answer(&response[..length]) {
                break answer;
            }
        };
        free = Instant::now();
        tally.note(free.duration_since(sent), answer.status);
    }
    tally
}
