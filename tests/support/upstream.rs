//! An upstream that tells what reached it, over HTTP/1.1 and cleartext HTTP/2 on one port.
//!
//! It answers 200 with a JSON of the method, path, headers and body size that it saw. A request
//! steers its own answer:
//!
//! | header | effect |
//! |---|---|
//! | `x-echo-status: 401` | the status of the answer |
//! | `x-echo-location: http://host/next` | where the answer redirects to |
//! | `x-echo-delay-ms: 250` | waits before it answers |
//! | `x-echo-hold: yes` | waits until the test lets it go |
//! | `x-echo-abort: headers` | closes the connection instead of answering |
//! | `x-echo-abort: body` | closes it in the middle of the answer's body |
//! | `x-echo-stall-ms: 250` | waits in the middle of the answer's body |
//! | `upgrade: websocket` | 101, then sends back each byte it gets |
//!
//! `/__count` answers with the number of requests so far; it does not count itself.

use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, LOCATION, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::Sleep;

/// How long the first half of a body has to reach the proxy before the connection closes.
const ABORT_DELAY: Duration = Duration::from_millis(20);

/// How often a request that is held looks whether it is let go.
const HOLD_INTERVAL: Duration = Duration::from_millis(5);

/// A running upstream on 127.0.0.1; dropping it closes the port and all connections.
pub struct Upstream {
    port: u16,
    seen: Arc<Seen>,
    runtime: Option<Runtime>,
}

/// What has arrived.
#[derive(Default)]
struct Seen {
    count: AtomicU64,
    under_way: AtomicU64,
    most_at_once: AtomicU64,
    /// How often all that were held have been let go.
    releases: AtomicU64,
}

/// A request that is not yet answered.
struct UnderWay(Arc<Seen>);

/// An answer's body: one piece, and then its end or a broken connection, at once or later.
struct EchoBody {
    piece: Option<Bytes>,
    rest: Option<Pin<Box<Sleep>>>,
    broken: bool,
}

/// Why a connection is closed on purpose.
#[derive(Debug)]
struct Abort;

// === impl Upstream ===

impl Upstream {
    /// Starts on a free port.
    pub fn start() -> Self {
        Self::start_on(0).expect("an upstream on a free port")
    }

    /// Starts on `port`; 0 takes a free one.
    pub fn start_on(port: u16) -> io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, port)))?;
        let port = listener.local_addr()?.port();
        let seen = Arc::new(Seen::default());
        runtime.spawn(accept(listener, Arc::clone(&seen)));
        Ok(Self { port, seen, runtime: Some(runtime) })
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// How many requests have arrived.
    pub fn count(&self) -> u64 {
        self.seen.count.load(Ordering::SeqCst)
    }

    /// Lets all requests go that are held now.
    pub fn release(&self) {
        self.seen.releases.fetch_add(1, Ordering::SeqCst);
    }

    /// The most requests that were waiting for their answers at the same time.
    pub fn most_at_once(&self) -> u64 {
        self.seen.most_at_once.load(Ordering::SeqCst)
    }
}

impl Seen {
    fn begin(self: &Arc<Self>) -> UnderWay {
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(under_way, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
        UnderWay(Arc::clone(self))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, seen: Arc<Seen>) {
    loop {
        // An error concerns the one connection that was about to be accepted.
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&seen)));
        }
    }
}

async fn serve(stream: TcpStream, seen: Arc<Seen>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(request, Arc::clone(&seen)));
    // Clients that go away and aborts that a request asked for end here as errors.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    mut request: Request<Incoming>,
    seen: Arc<Seen>,
) -> Result<Response<EchoBody>, Abort> {
    if request.uri().path() == "/__count" {
        let text = seen.count.load(Ordering::SeqCst).to_string();
        return Ok(Response::new(EchoBody::whole(text)));
    }
    // Before it counts as arrived, after which it may be let go at any time.
    let releases = seen.releases.load(Ordering::SeqCst);
    let _under_way = seen.begin();
    if request.headers().contains_key(UPGRADE) {
        return Ok(upgrade(&mut request));
    }
    let body_bytes = drain(request.body_mut()).await;
    if let Some(millis) = number(request.headers(), "x-echo-delay-ms") {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
    if request.headers().contains_key("x-echo-hold") {
        while seen.releases.load(Ordering::SeqCst) == releases {
            tokio::time::sleep(HOLD_INTERVAL).await;
        }
    }
    let abort = request.headers().get("x-echo-abort").map(|value| value.as_bytes());
    let stall = number(request.headers(), "x-echo-stall-ms").map(Duration::from_millis);
    let text = describe(&request, body_bytes);
    let body = match (abort, stall) {
        (Some(b"headers"), _) => return Err(Abort),
        (Some(b"body"), _) => EchoBody::in_two(text, ABORT_DELAY, true),
        (_, Some(stall)) => EchoBody::in_two(text, stall, false),
        (_, None) => EchoBody::whole(text),
    };
    let mut response = Response::new(body);
    *response.status_mut() = wanted_status(request.headers());
    if let Some(location) = request.headers().get("x-echo-location") {
        response.headers_mut().insert(LOCATION, location.clone());
    }
    response
        .headers_mut()
        .insert(CONTENT_TYPE, "application/json".parse().expect("a header value"));
    Ok(response)
}

/// Takes the connection over from HTTP and sends back what comes.
fn upgrade(request: &mut Request<Incoming>) -> Response<EchoBody> {
    let upgraded = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    });
    let mut response = Response::new(EchoBody::whole(String::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [(CONNECTION, "upgrade"), (UPGRADE, "websocket")] {
        response.headers_mut().insert(name, value.parse().expect("a header value"));
    }
    response
}

/// Reads the request's body to its end, so that the connection can serve the next one.
async fn drain(body: &mut Incoming) -> usize {
    let mut total = 0;
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
        total += frame.data_ref().map_or(0, Bytes::len);
    }
    total
}

fn describe(request: &Request<Incoming>, body_bytes: usize) -> String {
    let headers: Vec<(&str, String)> = request
        .headers()
        .iter()
        .map(|(name, value)| {
            (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    serde_json::json!({
        "method": request.method().as_str(),
        "path": request.uri().path_and_query().map_or("", |path| path.as_str()),
        "headers": headers,
        "body_bytes": body_bytes,
    })
    .to_string()
}

fn wanted_status(headers: &HeaderMap) -> StatusCode {
    number(headers, "x-echo-status")
        .and_then(|status| u16::try_from(status).ok())
        .and_then(|status| StatusCode::from_u16(status).ok())
        .unwrap_or(StatusCode::OK)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

// === impl EchoBody ===

impl EchoBody {
    fn whole(text: String) -> Self {
        Self { piece: Some(text.into()), rest: None, broken: false }
    }

    fn in_two(text: String, pause: Duration, broken: bool) -> Self {
        let rest = Some(Box::pin(tokio::time::sleep(pause)));
        Self { piece: Some(text.into()), rest, broken }
    }
}

impl Body for EchoBody {
    type Data = Bytes;
    type Error = Abort;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Abort>>> {
        if let Some(piece) = self.piece.take() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let broken = self.broken;
        match &mut self.rest {
            Some(pause) => pause.as_mut().poll(context).map(|()| broken.then_some(Err(Abort))),
            None => Poll::Ready(None),
        }
    }

    /// The size is known, and announced, only where the whole body will come.
    fn size_hint(&self) -> SizeHint {
        match (&self.piece, &self.rest) {
            (Some(piece), None) => SizeHint::with_exact(piece.len().try_into().unwrap_or(u64::MAX)),
            _ => SizeHint::default(),
        }
    }
}

impl std::fmt::Display for Abort {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("closed as the request asked")
    }
}

impl std::error::Error for Abort {}
