use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

/// A way to Redis on which everything takes its time: the kernels of many machines have no delays of
/// their own. It takes each exchange as a whole, as the filter makes it.
pub struct SlowLink {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    redis: SocketAddr,
    /// Time in each direction.
    delay_ms: AtomicU64,
    ends: AtomicBool,
}

impl SlowLink {
    /// Leads to `redis` without a delay, until it is dropped.
    pub fn start(redis: SocketAddr) -> Self {
        // Containers reach this machine at an address of their own network.
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let delay_ms = AtomicU64::new(0);
        let shared = Arc::new(Shared { redis, delay_ms, ends: AtomicBool::new(false) });
        let own = Arc::clone(&shared);
        thread::spawn(move || own.listen(&listener));
        Self { port, shared }
    }

    /// Where it listens.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// From now on everything takes so long in each direction.
    pub fn delay(&self, millis: u64) {
        self.shared.delay_ms.store(millis, Ordering::Relaxed);
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    fn listen(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            let (own, stream) = (Arc::clone(self), stream.expect("a connection"));
            // A client that leaves early is no fault of the link.
            thread::spawn(move || own.carry(stream));
        }
    }

    fn carry(&self, mut client: TcpStream) -> io::Result<()> {
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes)?;
        self.wait();
        let mut redis = TcpStream::connect(self.redis)?;
        redis.write_all(&bytes)?;
        redis.shutdown(Shutdown::Write)?;
        bytes.clear();
        redis.read_to_end(&mut bytes)?;
        self.wait();
        client.write_all(&bytes)
    }

    fn wait(&self) {
        sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed)));
    }
}
