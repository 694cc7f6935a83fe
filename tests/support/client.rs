//! An HTTP/1.1 client on a plain socket, which sends header values of any bytes and any number of times.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// How long a client waits for bytes before it gives up.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// A request, sent byte for byte as it was put together.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    peer: Ipv4Addr,
}

/// A response, read to its end.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

/// One connection, kept open between requests.
pub struct Connection {
    stream: BufReader<TcpStream>,
}

// === impl Request ===

impl Request {
    pub fn new(method: &str, target: &str) -> Self {
        let host = ("host".to_owned(), b"fairshare.test".to_vec());
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: vec![host],
            body: Vec::new(),
            peer: Ipv4Addr::LOCALHOST,
        }
    }

    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    pub fn post(target: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref().to_vec();
        let request = Self::new("POST", target).header("content-length", body.len().to_string());
        Self { body, ..request }
    }

    /// The same request to another target.
    #[must_use]
    pub fn with_target(self, target: &str) -> Self {
        Self { target: target.to_owned(), ..self }
    }

    /// Adds one header line; calling it twice with a name sends the header twice.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Adds `x-tenant-id`.
    #[must_use]
    pub fn tenant(self, tenant: impl AsRef<[u8]>) -> Self {
        self.header("x-tenant-id", tenant)
    }

    /// Sends it from another loopback address, so that the proxy sees another client.
    #[must_use]
    pub fn from(self, peer: [u8; 4]) -> Self {
        Self { peer: peer.into(), ..self }
    }

    /// The address that it is sent from.
    pub fn peer(&self) -> Ipv4Addr {
        self.peer
    }

    /// Sends it on a new connection to `port` and reads the response, or fails the test.
    pub fn send(&self, port: u16) -> Response {
        self.try_send(port)
            .unwrap_or_else(|error| panic!("{} {}: {error}", self.method, self.target))
    }

    /// As [`Request::send`], for requests that may end without a response.
    pub fn try_send(&self, port: u16) -> io::Result<Response> {
        Connection::open_from(self.peer, port)?.send(self)
    }

    /// The header map that a proxy makes of it.
    pub fn pairs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let pseudo = [(":method", &self.method), (":path", &self.target)];
        let pseudo = pseudo.map(|(name, value)| (name.into(), value.clone().into_bytes()));
        let lower = |name: &str| match name.to_ascii_lowercase().as_str() {
            "host" => b":authority".to_vec(),
            name => name.as_bytes().to_vec(),
        };
        let headers = self.headers.iter().map(|(name, value)| (lower(name), value.clone()));
        pseudo.into_iter().chain(headers).collect()
    }

    /// The bytes that go over the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

// === impl Response ===

impl Response {
    /// The first value of a header, with bytes that are not UTF-8 replaced.
    pub fn header(&self, name: &str) -> Option<String> {
        self.header_values(name).into_iter().next()
    }

    /// All values of a header, in the order in which they came.
    pub fn header_values(&self, name: &str) -> Vec<String> {
        self.headers
            .iter()
            .filter(|(present, _)| present.eq_ignore_ascii_case(name))
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .collect()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON, or fails the test.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }
}

// === impl Connection ===

impl Connection {
    pub fn open(port: u16) -> io::Result<Self> {
        Self::open_from(Ipv4Addr::LOCALHOST, port)
    }

    /// Connects from one of the loopback addresses.
    pub fn open_from(peer: Ipv4Addr, port: u16) -> io::Result<Self> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = match peer {
            Ipv4Addr::LOCALHOST => TcpStream::connect(to)?,
            _ => connect_from(SocketAddr::from((peer, 0)), to)?,
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub fn send(&mut self, request: &Request) -> io::Result<Response> {
        self.send_raw(&request.to_bytes())?;
        self.read_response(request.method == "HEAD")
    }

    /// Whether there is something to read within `time`: an answer, or the connection's end.
    pub fn is_readable(&mut self, time: Duration) -> bool {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(time)).expect("a timeout");
        let readable = stream.peek(&mut [0]).is_ok();
        stream.set_read_timeout(Some(READ_TIMEOUT)).expect("a timeout");
        readable || !self.stream.buffer().is_empty()
    }

    /// Asks for a WebSocket and returns the status; after 101 the connection is the other end's.
    pub fn upgrade(&mut self, request: &Request) -> io::Result<u16> {
        let asks = request.clone().header("connection", "upgrade").header("upgrade", "websocket");
        self.send_raw(&asks.to_bytes())?;
        let status = parse_status(&self.read_line()?)?;
        let headers = self.read_headers()?;
        if status != 101 {
            self.read_body(&Response { status, headers, body: Vec::new() })?;
        }
        Ok(status)
    }

    /// Reads as many bytes as these and says whether they are these.
    pub fn reads(&mut self, expected: &[u8]) -> io::Result<bool> {
        let mut bytes = vec![0; expected.len()];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes == expected)
    }

    /// Sends bytes as they are: half a request, or something that is none.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads one response; `headers_only` for the answer to a HEAD request.
    pub fn read_response(&mut self, headers_only: bool) -> io::Result<Response> {
        loop {
            let status = parse_status(&self.read_line()?)?;
            let headers = self.read_headers()?;
            if (100..200).contains(&status) {
                continue;
            }
            let mut response = Response { status, headers, body: Vec::new() };
            if !headers_only && !matches!(status, 204 | 304) {
                response.body = self.read_body(&response)?;
            }
            return Ok(response);
        }
    }

    /// Reads the first response head that comes, be it an interim one, and no body.
    pub fn read_first_response(&mut self) -> io::Result<Response> {
        let status = parse_status(&self.read_line()?)?;
        let headers = self.read_headers()?;
        Ok(Response { status, headers, body: Vec::new() })
    }

    fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(line)
    }

    fn read_headers(&mut self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut headers = Vec::new();
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Ok(headers);
            }
            let colon = line
                .iter()
                .position(|byte| *byte == b':')
                .ok_or_else(|| malformed("a header without a colon", &line))?;
            let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
            headers.push((name, line[colon + 1..].trim_ascii().to_vec()));
        }
    }

    fn read_body(&mut self, response: &Response) -> io::Result<Vec<u8>> {
        if response.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
            return self.read_chunks();
        }
        let mut body = Vec::new();
        match response.header("content-length") {
            Some(length) => {
                let length =
                    length.parse().map_err(|_| malformed("a length", length.as_bytes()))?;
                body.resize(length, 0);
                self.stream.read_exact(&mut body)?;
            }
            None => drop(self.stream.read_to_end(&mut body)?),
        }
        Ok(body)
    }

    fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line()?;
            let text = String::from_utf8_lossy(&line);
            let digits = text.split(';').next().unwrap_or_default().trim();
            let size =
                usize::from_str_radix(digits, 16).map_err(|_| malformed("a chunk size", &line))?;
            if size == 0 {
                self.read_headers()?;
                return Ok(body);
            }
            let start = body.len();
            body.resize(start + size, 0);
            self.stream.read_exact(&mut body[start..])?;
            self.read_line()?;
        }
    }
}

/// The standard library cannot choose where a connection comes from.
fn connect_from(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(from)?;
        let stream = socket.connect(to).await?.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    })
}

fn parse_status(line: &[u8]) -> io::Result<u16> {
    String::from_utf8_lossy(line)
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or_else(|| malformed("a status line", line))
}

fn malformed(expected: &str, found: &[u8]) -> io::Error {
    io::Error::other(format!("expected {expected}, found {:?}", String::from_utf8_lossy(found)))
}
