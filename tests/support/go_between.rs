//! A store that is sick as a test wants it: it stands between Envoy and a real Redis.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::commands::{commands, reply_to_each};
use super::process::TempDir;
use super::redis::Redis;

/// What it does with an exchange.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// Hands it on to Redis.
    Healthy,
    /// Gives this reply to every command, and closes. Half a reply it gives once.
    Says(&'static [u8]),
    /// Hands it on to Redis, and its replies back only after this time.
    Late(Duration),
}

/// Listens at a Unix socket until it goes out of scope.
pub struct GoBetween {
    shared: Arc<Shared>,
    socket: PathBuf,
    _directory: TempDir,
}

struct Shared {
    redis: Redis,
    manner: Mutex<Manner>,
    exchanges: AtomicU64,
    commands: AtomicU64,
    ends: AtomicBool,
}

impl GoBetween {
    pub fn start(redis: Redis) -> Self {
        let directory = TempDir::new("go-between");
        let socket = directory.file("store.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let shared = Arc::new(Shared {
            redis,
            manner: Mutex::new(Manner::Healthy),
            exchanges: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        thread::spawn(move || own.listen(&listener));
        Self { shared, socket, _directory: directory }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn redis(&self) -> &Redis {
        &self.shared.redis
    }

    pub fn set(&self, manner: Manner) {
        *self.shared.manner.lock().expect("the manner") = manner;
    }

    /// How many exchanges there were, and how many commands were in them.
    pub fn seen(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        (read(&self.shared.exchanges), read(&self.shared.commands))
    }
}

impl Drop for GoBetween {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket);
    }
}

impl Shared {
    fn listen(self: &Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming() {
            if self.ends.load(Ordering::SeqCst) {
                return;
            }
            let (own, stream) = (Arc::clone(self), stream.expect("a connection"));
            thread::spawn(move || own.serve(stream));
        }
    }

    /// A client that leaves early is no fault of the store.
    fn serve(&self, mut stream: UnixStream) {
        let mut pipeline = Vec::new();
        if stream.read_to_end(&mut pipeline).is_err() || pipeline.is_empty() {
            return;
        }
        self.exchanges.fetch_add(1, Ordering::SeqCst);
        let count = u64::try_from(commands(&pipeline).len()).expect("a number");
        self.commands.fetch_add(count, Ordering::SeqCst);
        let manner = *self.manner.lock().expect("the manner");
        let replies = match manner {
            Manner::Healthy => self.redis.exchange(&pipeline),
            Manner::Says(half) if !half.ends_with(b"\r\n") => half.to_vec(),
            Manner::Says(reply) => reply_to_each(&pipeline, reply),
            Manner::Late(time) => {
                thread::sleep(time);
                self.redis.exchange(&pipeline)
            }
        };
        let _ = stream.write_all(&replies);
    }
}
