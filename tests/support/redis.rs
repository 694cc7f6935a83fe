//! A Redis of a test's own, and a client that speaks to it as the tunnel does.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::{Process, TempDir, poll_until};
use super::tools::program;

const READY_WITHIN: Duration = Duration::from_secs(10);

/// Far longer than any exchange takes, so that a hanging one fails its test.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A running server on a Unix socket, without persistence, killed with the value.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    socket: PathBuf,
    /// Who [`Redis::run`] is, where the server asks.
    login: Option<(String, String)>,
    // Last, so that the server is gone before its files are.
    _directory: TempDir,
}

/// A reply, as a test wants to compare it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Error(String),
    Integer(i64),
    Nil,
    List(Vec<Value>),
}

// === impl Redis ===

impl Redis {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further arguments.
    pub fn with(arguments: &[&str]) -> Self {
        Self::run_program(&program("redis-server", "REDIS_BIN"), arguments)
    }

    /// Starts a Valkey.
    pub fn valkey() -> Self {
        Self::run_program(&program("valkey-server", "VALKEY_BIN"), &[])
    }

    fn run_program(program: &Path, arguments: &[&str]) -> Self {
        let directory = TempDir::new("redis");
        let socket = directory.file("redis.sock");
        let mut command = Command::new(program);
        command.args(["--port", "0", "--unixsocket"]).arg(&socket);
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(directory.path());
        command.args(arguments);
        let process = Process::start(command, directory.file("redis.log"));
        let redis = Self { process, socket, login: None, _directory: directory };
        let ready = || UnixStream::connect(&redis.socket).ok();
        assert!(poll_until(READY_WITHIN, ready).is_some(), "Redis did not start:\n{}", redis.log());
        redis.age("fairshare");
        redis
    }

    /// Lets the store of `prefix` be long in use, so that no limit pauses because it is new. Where it
    /// refuses to be written to, it stays as it is.
    pub fn age(&self, prefix: &str) {
        self.run(&["SET", &record(prefix), "e1 1 0 0 0 0 0 -", "NX", "EX", "86400"]);
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// From now on [`Redis::run`] logs in first.
    pub fn log_in(&mut self, user: &str, password: &str) {
        self.login = Some((user.to_owned(), password.to_owned()));
    }

    /// Stops it in its tracks, so that it takes connections and says nothing.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().expect("kill");
        assert!(status.success());
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("a connection to Redis");
        stream.set_read_timeout(Some(ANSWER_WITHIN)).expect("a timeout");
        stream.set_write_timeout(Some(ANSWER_WITHIN)).expect("a timeout");
        stream
    }

    /// Sends `bytes` on a connection of their own, closes its sending half, and reads to the end.
    pub fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("writing to Redis");
        stream.shutdown(Shutdown::Write).expect("half-closing");
        let mut replies = Vec::new();
        stream.read_to_end(&mut replies).expect("reading from Redis");
        replies
    }

    /// Runs one command. Unlike an exchange it keeps the connection open until the reply is there: a
    /// newer Redis flushes in the background, and forgets clients that are gone by then.
    pub fn run(&self, arguments: &[&str]) -> Value {
        let login = self.login.as_ref().map(|(user, password)| command(&["AUTH", user, password]));
        let mut stream = self.connect();
        let mut reply_to = |command: &[u8]| {
            stream.write_all(command).expect("writing to Redis");
            let mut bytes = Vec::new();
            loop {
                let mut rest = bytes.as_slice();
                if let Some(value) = read(&mut rest) {
                    assert!(rest.is_empty(), "more than one reply: {}", bytes.escape_ascii());
                    return value;
                }
                let mut chunk = [0; 4096];
                let length = stream.read(&mut chunk).expect("reading from Redis");
                assert!(length > 0, "not a whole reply: {}", bytes.escape_ascii());
                bytes.extend(&chunk[..length]);
            }
        };
        if let Some(login) = login {
            assert_eq!(reply_to(&login), Value::Text("OK".to_owned()), "logging in");
        }
        reply_to(&command(arguments))
    }

    /// The text under a key.
    pub fn get(&self, key: &str) -> Option<String> {
        match self.run(&["GET", key]) {
            Value::Text(text) => Some(text),
            Value::Nil => None,
            other => panic!("GET {key}: {other:?}"),
        }
    }

    /// Milliseconds until the key expires; -1 where it never does, -2 where it is not there.
    pub fn pttl(&self, key: &str) -> i64 {
        match self.run(&["PTTL", key]) {
            Value::Integer(millis) => millis,
            other => panic!("PTTL {key}: {other:?}"),
        }
    }

    /// A section of what Redis tells of itself.
    pub fn info(&self, section: &str) -> String {
        let Value::Text(info) = self.run(&["INFO", section]) else { panic!("INFO is a text") };
        info
    }

    /// How often it has run each command, by its own count.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        self.info("commandstats").lines().filter_map(calls).collect()
    }

    /// The names of all keys that hold usage.
    pub fn keys(&self) -> Vec<String> {
        let Value::List(keys) = self.run(&["KEYS", "*"]) else { panic!("KEYS gives a list") };
        let text = |key| match key {
            Value::Text(text) => text,
            other => panic!("a key's name: {other:?}"),
        };
        keys.into_iter().map(text).filter(|key| !key.ends_with(":1:epoch")).collect()
    }
}

/// The key of the record of the store's epochs.
pub fn record(prefix: &str) -> String {
    format!("{{{prefix}}}:1:epoch")
}

/// A command as Redis reads it.
pub fn command(arguments: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n{argument}\r\n", argument.len()).into_bytes());
    }
    bytes
}

/// Takes the first reply off `rest`, if it is whole.
fn read(rest: &mut &[u8]) -> Option<Value> {
    let end = rest.windows(2).position(|window| window == b"\r\n")?;
    let line = String::from_utf8_lossy(&rest[1..end]).into_owned();
    let kind = rest[0];
    *rest = &rest[end + 2..];
    let number = || line.parse::<i64>().expect("a number");
    Some(match kind {
        b'+' => Value::Text(line),
        b'-' => Value::Error(line),
        b':' => Value::Integer(number()),
        b'$' if number() < 0 => Value::Nil,
        b'$' => {
            let length = usize::try_from(number()).expect("a length");
            let text = String::from_utf8_lossy(rest.get(..length)?).into_owned();
            *rest = rest.get(length + 2..)?;
            Value::Text(text)
        }
        b'*' => Value::List((0..number()).map(|_| read(rest)).collect::<Option<_>>()?),
        other => panic!("an unknown kind of reply: {other}"),
    })
}
