//! An HTTP/2 client that asks for WebSockets (RFC 8441).

use std::net::Ipv4Addr;

use hyper::client::conn::http2::{self, SendRequest};
use hyper::ext::Protocol;
use hyper::{Request, upgrade::Upgraded};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// One connection.
pub struct Client {
    runtime: Runtime,
    sender: SendRequest<String>,
}

/// A stream that was asked to become a WebSocket; dropping it closes it.
pub struct WebSocket {
    status: u16,
    _open: Option<Upgraded>,
}

impl Client {
    pub fn connect(port: u16) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
        let sender = runtime.block_on(async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("a port");
            let io = TokioIo::new(stream);
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), io).await.expect("a connection");
            tokio::spawn(connection);
            // Only after the server's settings is it known that it takes such requests.
            let first =
                Request::get("http://fairshare.test/").body(String::new()).expect("a request");
            sender.send_request(first).await.expect("an answer");
            sender
        });
        Self { runtime, sender }
    }

    pub fn websocket(&self, tenant: &str) -> WebSocket {
        let mut request = Request::connect("http://fairshare.test/")
            .header("x-tenant-id", tenant)
            .header("sec-websocket-version", "13")
            .body(String::new())
            .expect("a request");
        request.extensions_mut().insert(Protocol::from_static("websocket"));
        let mut sender = self.sender.clone();
        self.runtime.block_on(async {
            let response = sender.send_request(request).await.expect("an answer");
            let status = response.status().as_u16();
            let open = match status {
                200 => Some(hyper::upgrade::on(response).await.expect("a WebSocket")),
                _ => None,
            };
            WebSocket { status, _open: open }
        })
    }
}

impl WebSocket {
    pub fn status(&self) -> u16 {
        self.status
    }
}
