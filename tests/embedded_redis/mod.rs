//! A Redis in the test's own memory: the production script in a Lua 5.1 of its own, on a clock that
//! the test moves. It knows the commands that the filter and its script send and no other, and
//! `tests/simulation/embedded.rs` compares it with a real server.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]

/// Keys, values and their expiry.
mod keyspace;
/// What Redis does between Lua and its own protocol.
mod scripting;

use std::cell::RefCell;
use std::rc::Rc;

use fairshare::store::{SCRIPT, SCRIPT_SHA1};
use mlua::{Function, Lua};

pub use keyspace::Keyspace;

/// The server.
pub struct EmbeddedRedis {
    keyspace: Rc<RefCell<Keyspace>>,
    lua: Lua,
    script: Function,
    /// Whether the script is in the cache.
    has_script: bool,
    /// An error that every command is answered with.
    pub failing: Option<&'static str>,
    pub password: Option<String>,
    /// Script calls that have run.
    pub evaluations: u64,
}

/// What replies to a command that this server is not to run.
pub type Gate<'a> = dyn FnMut(&Keyspace, &[Vec<u8>]) -> Option<Vec<u8>> + 'a;

/// A copy of all data.
#[derive(Clone)]
pub struct Snapshot(Keyspace);

impl EmbeddedRedis {
    /// A server with the production script.
    pub fn new() -> Self {
        Self::with_script(SCRIPT)
    }

    /// A server that has been in use for long at `now_us`, under the ordinary prefix of keys.
    pub fn aged(now_us: u64) -> Self {
        let mut redis = Self::new();
        redis.set_clock(now_us);
        redis.age("fairshare");
        redis
    }

    /// A server that runs `script` where the production script is called.
    pub fn with_script(script: &str) -> Self {
        let keyspace = Rc::new(RefCell::new(Keyspace::default()));
        let lua = scripting::lua(&keyspace).expect("a Lua");
        let script = lua.load(script).into_function().expect("the script compiles");
        Self {
            keyspace,
            lua,
            script,
            has_script: false,
            failing: None,
            password: None,
            evaluations: 0,
        }
    }

    /// Forgets everything, the time included, so that one Lua serves many runs. The server's run has
    /// this number.
    pub fn reset(&mut self, run: u64) {
        let mut keyspace = self.keyspace.borrow_mut();
        *keyspace = Keyspace::default();
        keyspace.run = run;
        drop(keyspace);
        (self.has_script, self.failing, self.password) = (false, None, None);
        self.evaluations = 0;
    }

    /// Puts the clock, in microseconds of Unix time. It may go back.
    pub fn set_clock(&mut self, now_us: u64) {
        self.keyspace.borrow_mut().now_us = now_us;
    }

    pub fn keyspace(&self) -> std::cell::Ref<'_, Keyspace> {
        self.keyspace.borrow()
    }

    /// Empties the data, as `FLUSHALL` does; the script stays.
    pub fn flush(&mut self) {
        self.keyspace.borrow_mut().clear();
    }

    /// Gives another server a key, as `MIGRATE` does.
    pub fn hand_over(&mut self, to: &mut Self, key: &[u8]) {
        if let Some(value) = self.keyspace.borrow_mut().remove(key) {
            to.keyspace.borrow_mut().put(key, value);
        }
    }

    /// Gives another server a copy of a key.
    pub fn share(&self, to: &Self, key: &[u8]) {
        let value = self.keyspace.borrow_mut().remove(key);
        for server in [self, to] {
            value.iter().for_each(|value| server.keyspace.borrow_mut().put(key, value.clone()));
        }
    }

    /// Lets go of one key.
    pub fn evict(&mut self, key: &[u8]) {
        self.keyspace.borrow_mut().remove(key);
    }

    /// Forgets the script, as `SCRIPT FLUSH` and every restart do.
    pub fn forget_script(&mut self) {
        self.has_script = false;
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.keyspace.borrow().clone())
    }

    /// A replica without the last writes takes over: data as they were, the clock as it is, and
    /// without the script.
    pub fn fail_over(&mut self, snapshot: &Snapshot) {
        let mut keyspace = self.keyspace.borrow_mut();
        let (now_us, run) = (keyspace.now_us, keyspace.run + 1);
        keyspace.clone_from(&snapshot.0);
        (keyspace.now_us, keyspace.run) = (now_us, run);
        drop(keyspace);
        self.forget_script();
    }

    /// Lets the store of `prefix` be long in use, so that no limit pauses because it is new.
    pub fn age(&mut self, prefix: &str) {
        let key = format!("{{{prefix}}}:1:epoch").into_bytes();
        let mut keyspace = self.keyspace.borrow_mut();
        let record = format!("e1 1 0 0 0 0 0 {:040x}", keyspace.run).into_bytes();
        let set = [b"SET".to_vec(), key, record, b"PX".to_vec(), b"86400000".to_vec()];
        keyspace.run(&set);
    }

    /// Runs the commands of one connection and returns the replies, in order. What is no whole
    /// command at the end is not run.
    pub fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.exchange_through(bytes, &mut |_, _| None)
    }

    /// The same, where `gate` may reply to a command before it is run.
    pub fn exchange_through(&mut self, bytes: &[u8], gate: &mut Gate<'_>) -> Vec<u8> {
        let (mut rest, mut replies) = (bytes, Vec::new());
        let mut known = self.password.is_none();
        while let Some(command) = read_command(&mut rest) {
            replies.extend(self.run(&command, &mut known, gate));
        }
        replies
    }

    fn run(&mut self, command: &[Vec<u8>], known: &mut bool, gate: &mut Gate<'_>) -> Vec<u8> {
        let name = command[0].to_ascii_uppercase();
        let text = |place: usize| String::from_utf8_lossy(&command[place]).into_owned();
        let may_run = name != b"AUTH" && *known && self.failing.is_none();
        if let Some(reply) = may_run.then(|| gate(&self.keyspace(), command)).flatten() {
            return reply;
        }
        match (name.as_slice(), self.failing) {
            (b"AUTH", _) => match &self.password {
                Some(password) if *password == text(command.len() - 1) => {
                    *known = true;
                    b"+OK\r\n".to_vec()
                }
                Some(_) => error("WRONGPASS invalid username-password pair or user is disabled."),
                None => error("ERR AUTH <password> called without any password configured"),
            },
            _ if !*known => error("NOAUTH Authentication required."),
            (_, Some(failure)) => error(failure),
            (b"SCRIPT", None) => {
                self.has_script = true;
                format!("${}\r\n{SCRIPT_SHA1}\r\n", SCRIPT_SHA1.len()).into_bytes()
            }
            (b"EVALSHA", None) if !self.has_script => {
                error("NOSCRIPT No matching script. Please use EVAL.")
            }
            (b"EVALSHA", None) => {
                let keys: usize = text(2).parse().expect("a number of keys");
                let (keys, arguments) = command[3..].split_at(keys);
                self.evaluations += 1;
                scripting::evaluate(&self.lua, &self.script, keys, arguments)
            }
            _ => self.keyspace.borrow_mut().run(command),
        }
    }
}

fn error(line: &str) -> Vec<u8> {
    format!("-{line}\r\n").into_bytes()
}

/// Takes the first command off `rest`, if it is whole.
pub fn read_command(rest: &mut &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut left = *rest;
    let count = read_number(&mut left, b'*')?;
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let length = read_number(&mut left, b'$')?;
        arguments.push(left.get(..length)?.to_vec());
        left = left.get(length + 2..)?;
    }
    *rest = left;
    Some(arguments)
}

fn read_number(rest: &mut &[u8], kind: u8) -> Option<usize> {
    let end = rest.windows(2).position(|window| window == b"\r\n")?;
    let number = std::str::from_utf8(rest[..end].strip_prefix(&[kind])?).ok()?.parse().ok()?;
    *rest = &rest[end + 2..];
    Some(number)
}
