//! A rate limit service as cheap as one can be: it keeps no state and says OK to everything, over
//! HTTP/2 as gRPC wants it. No real service can be faster.

use std::convert::Infallible;
use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;

/// One message, not compressed, of two bytes: `RateLimitResponse { overall_code: OK }`.
const ALWAYS_OK: &[u8] = &[0, 0, 0, 0, 2, 0x08, 0x01];

/// Starts it on a Unix socket, as Redis has one, where it stays as long as this process does.
pub(crate) fn start(socket: &Path) {
    let listener = std::os::unix::net::UnixListener::bind(socket).expect("a socket");
    listener.set_nonblocking(true).expect("non-blocking");
    thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = UnixListener::from_std(listener).expect("a listener");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(async move {
                    let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    server.max_concurrent_streams(4096);
                    // It ends with an error where the proxy is killed.
                    let _ = server.serve_connection(TokioIo::new(stream), service_fn(say_ok)).await;
                });
            }
        });
    });
}

async fn say_ok(request: Request<Incoming>) -> Result<Response<Reply>, Infallible> {
    let mut body = request.into_body();
    while poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.is_some() {}
    let mut response = Response::new(Reply::Message);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// What is still to be sent.
enum Reply {
    Message,
    Status,
    Nothing,
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(match *self {
            Self::Message => {
                *self = Self::Status;
                Some(Ok(Frame::data(Bytes::from_static(ALWAYS_OK))))
            }
            Self::Status => {
                *self = Self::Nothing;
                let name = HeaderName::from_static("grpc-status");
                let trailers = HeaderMap::from_iter([(name, HeaderValue::from_static("0"))]);
                Some(Ok(Frame::trailers(trailers)))
            }
            Self::Nothing => None,
        })
    }
}
