use std::collections::BTreeMap;

/// What stands under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    Text(Vec<u8>),
    /// Something that is not a string, of so many parts.
    List(u64),
}

/// All keys, and the server's clock.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    pub now_us: u64,
    /// The server's run: another one after a restart or a fail-over.
    pub run: u64,
    keys: BTreeMap<Vec<u8>, Value>,
}

/// With the millisecond after which it is gone.
pub type Value = (Stored, Option<u64>);

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

impl Keyspace {
    pub fn clear(&mut self) {
        self.keys.clear();
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<Value> {
        self.keys.remove(key)
    }

    pub fn put(&mut self, key: &[u8], value: Value) {
        self.keys.insert(key.to_vec(), value);
    }

    pub fn has(&self, key: &[u8]) -> bool {
        self.keys.get(key).is_some_and(|(_, expiry)| !self.is_over(*expiry))
    }

    /// The keys that are there.
    pub fn names(&self) -> Vec<Vec<u8>> {
        let there = self.keys.iter().filter(|(_, (_, expiry))| !self.is_over(*expiry));
        there.map(|(key, _)| key.clone()).collect()
    }

    /// Keys that would stay for ever.
    pub fn without_expiry(&self) -> usize {
        self.keys.values().filter(|(_, expiry)| expiry.is_none()).count()
    }

    fn is_over(&self, expiry: Option<u64>) -> bool {
        expiry.is_some_and(|expiry| self.now_us / 1000 > expiry)
    }

    fn find(&mut self, key: &[u8]) -> Option<&mut Value> {
        if self.keys.get(key).is_some_and(|(_, expiry)| self.is_over(*expiry)) {
            self.keys.remove(key);
        }
        self.keys.get_mut(key)
    }

    fn time(&self) -> Vec<u8> {
        let parts = [self.now_us / 1_000_000, self.now_us % 1_000_000].map(|part| part.to_string());
        let bulk = |part: &String| format!("${}\r\n{part}\r\n", part.len());
        format!("*2\r\n{}{}", bulk(&parts[0]), bulk(&parts[1])).into_bytes()
    }

    /// Runs one command and returns its reply as it goes over the wire.
    pub fn run(&mut self, command: &[Vec<u8>]) -> Vec<u8> {
        let arguments: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let number = |text: &[u8]| -> u64 {
            let text = std::str::from_utf8(text).expect("a number");
            text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
        };
        let now_ms = self.now_us / 1000;
        match arguments.as_slice() {
            [b"TIME"] => self.time(),
            [b"INFO", b"server"] => {
                let info = format!("# Server\r\nrun_id:{:040x}\r\n", self.run);
                format!("${}\r\n{info}\r\n", info.len()).into_bytes()
            }
            [b"GET", key] => match self.find(key) {
                None => b"$-1\r\n".to_vec(),
                Some((Stored::List(_), _)) => format!("-{WRONG_TYPE}\r\n").into_bytes(),
                Some((Stored::Text(text), _)) => {
                    let mut reply = format!("${}\r\n", text.len()).into_bytes();
                    reply.extend_from_slice(text);
                    reply.extend_from_slice(b"\r\n");
                    reply
                }
            },
            [b"SET", key, value] => {
                self.keys.insert(key.to_vec(), (Stored::Text(value.to_vec()), None));
                b"+OK\r\n".to_vec()
            }
            [b"SET", key, value, b"PX", millis] => {
                let expiry = now_ms + number(millis);
                self.keys.insert(key.to_vec(), (Stored::Text(value.to_vec()), Some(expiry)));
                b"+OK\r\n".to_vec()
            }
            [b"DEL", key] => {
                let there = self.find(key).is_some();
                self.keys.remove(*key);
                format!(":{}\r\n", u8::from(there)).into_bytes()
            }
            [b"LPUSH", key, _] => match self.find(key) {
                Some((Stored::Text(_), _)) => format!("-{WRONG_TYPE}\r\n").into_bytes(),
                Some((Stored::List(parts), _)) => {
                    *parts += 1;
                    format!(":{parts}\r\n").into_bytes()
                }
                None => {
                    self.keys.insert(key.to_vec(), (Stored::List(1), None));
                    b":1\r\n".to_vec()
                }
            },
            [b"PTTL", key] => match self.find(key) {
                None => b":-2\r\n".to_vec(),
                Some((_, None)) => b":-1\r\n".to_vec(),
                Some((_, Some(expiry))) => {
                    format!(":{}\r\n", expiry.saturating_sub(now_ms)).into_bytes()
                }
            },
            [b"PEXPIRE", key, millis] => {
                let expiry = now_ms + number(millis);
                let found = self.find(key).map(|(_, old)| *old = Some(expiry)).is_some();
                format!(":{}\r\n", u8::from(found)).into_bytes()
            }
            [b"FLUSHALL"] => {
                self.clear();
                b"+OK\r\n".to_vec()
            }
            _ => panic!("a command that this server does not know: {arguments:?}"),
        }
    }
}
