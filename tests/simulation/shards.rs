//! The servers of the store: one, or the shards of a Redis Cluster, which send questions on to each
//! other as Redis does.

use std::collections::BTreeMap;

use fairshare::store::slot;

use crate::embedded_redis::{EmbeddedRedis, Keyspace, Snapshot};
use crate::plan::Plan;
use crate::rng::Rng;

/// Servers that a run has at most.
pub const SHARDS_MAX: usize = 3;

/// The store's servers.
pub struct Shards<'a> {
    servers: Vec<Server<'a>>,
    map: SlotMap,
}

struct Server<'a> {
    redis: &'a mut EmbeddedRedis,
    /// Until when nobody answers there, after a fail-over.
    down_until: u64,
}

/// Who has which slot.
struct SlotMap {
    /// What a canary does: every server says that all slots are its own.
    strays: bool,
    /// What another canary does: a server goes on with a slot that has moved, as if nothing had.
    clings: bool,
    /// Slots that have moved, and whose they were.
    former: Vec<(i64, usize)>,
    /// Whether it is a Redis Cluster.
    is_spread: bool,
    /// By slot.
    owners: BTreeMap<i64, usize>,
    on_its_way: Option<Move>,
    /// How often each server was replaced, which gave it another address.
    replaced: Vec<u64>,
}

/// A slot that goes from its owner to another server.
#[derive(Clone, Copy)]
struct Move {
    slot: i64,
    to: usize,
    until: u64,
}

impl<'a> Shards<'a> {
    pub fn new(plan: &Plan, redis: &'a mut [EmbeddedRedis]) -> Self {
        let count = plan.shards.max(1);
        let tags: Vec<String> = match plan.shards {
            0 => vec!["fairshare".to_owned()],
            _ => (0..plan.limits.len()).map(|place| format!("fairshare:l{place}")).collect(),
        };
        let all = tags.iter().cloned().chain(["fairshare".to_owned()]);
        let place = |number: i64| usize::try_from(number).unwrap() % count;
        let owners = all.map(|tag| slot(&tag)).map(|slot| (slot, place(slot))).collect();
        let mut servers: Vec<Server<'_>> = Vec::new();
        for (number, redis) in redis.iter_mut().take(count).enumerate() {
            redis.reset(1000 * u64::try_from(number).unwrap());
            redis.password = plan.password.then(|| "secret".to_owned());
            servers.push(Server { redis, down_until: 0 });
        }
        let replaced = vec![0; count];
        let map = SlotMap {
            strays: false,
            clings: false,
            former: vec![],
            is_spread: plan.shards > 0,
            owners,
            on_its_way: None,
            replaced,
        };
        let mut shards = Self { servers, map };
        shards.set_clock(crate::network::STORE_START / 1000);
        for tag in tags {
            let owner = shards.map.owners[&slot(&tag)];
            shards.servers[owner].redis.age(&tag);
        }
        shards
    }

    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// A server that has something.
    pub fn with_limits(&self, rng: &Rng) -> usize {
        let owners: Vec<usize> = self.map.owners.values().copied().collect();
        rng.pick(&owners)
    }

    pub fn set_clock(&mut self, now_us: u64) {
        self.servers.iter_mut().for_each(|server| server.redis.set_clock(now_us));
    }

    /// Every command is answered with this error.
    pub fn set_failing(&mut self, error: Option<&'static str>) {
        self.servers.iter_mut().for_each(|server| server.redis.failing = error);
    }

    /// What the server at this address, or any, replies; none where nobody is there.
    pub fn exchange(&mut self, address: Option<&str>, body: &[u8], now: u64) -> Option<Vec<u8>> {
        self.arrive(now);
        let any = usize::try_from(now).unwrap() % self.servers.len();
        let number = match address {
            None => any,
            Some(address) => {
                (0..self.count()).find(|number| self.map.address(*number) == address)?
            }
        };
        let (server, map) = (&mut self.servers[number], &self.map);
        if server.down_until > now {
            return None;
        }
        let mut asking = false;
        let mut gate = |keyspace: &Keyspace, command: &[Vec<u8>]| {
            map.is_spread.then(|| map.sent_on(number, keyspace, command, &mut asking)).flatten()
        };
        Some(server.redis.exchange_through(body, &mut gate))
    }

    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.servers.iter().map(|server| server.redis.snapshot()).collect()
    }

    /// Whether a slot is on its way. What is lost meanwhile may be one key of it alone.
    pub const fn moves(&self) -> bool {
        self.map.on_its_way.is_some()
    }

    /// A copy takes over, at another address, and answers from `until` on.
    pub fn fail_over(&mut self, number: usize, copy: &Snapshot, until: u64) {
        self.servers[number].redis.fail_over(copy);
        if self.map.is_spread {
            self.map.replaced[number] += 1;
            self.servers[number].down_until = until;
        }
    }

    /// Every server says from now on that all slots are its own.
    pub const fn stray(&mut self) {
        self.map.strays = true;
    }

    /// Every server goes on from now on with slots that it has given away, and their keys.
    pub const fn cling(&mut self) {
        self.map.clings = true;
    }

    /// All usage is gone, while every server's record says that nothing was lost.
    pub fn forget_usage(&mut self) {
        for server in &mut self.servers {
            let keys = server.redis.keyspace().names();
            let is_usage = |key: &&Vec<u8>| !key.ends_with(b":epoch");
            keys.iter().filter(is_usage).for_each(|key| server.redis.evict(key));
        }
    }

    pub fn redis(&mut self, number: usize) -> &mut EmbeddedRedis {
        self.servers[number].redis
    }

    /// The slot of a limit goes to another server: some of its keys now, the others at `until`.
    pub fn move_slot(&mut self, place: usize, rng: &Rng, until: u64) {
        let slot = slot(&format!("fairshare:l{place}"));
        let (from, to) = (self.map.owners[&slot], rng.place(self.count()));
        if self.moves() || from == to {
            return;
        }
        // Nobody keeps keys of a slot that is another's.
        for key in self.keys_of(to, slot) {
            self.servers[to].redis.evict(&key);
        }
        for key in self.keys_of(from, slot) {
            if rng.in_thousand(500) {
                self.move_key(from, to, &key);
            }
        }
        self.map.on_its_way = Some(Move { slot, to, until });
    }

    /// Ends what is due.
    fn arrive(&mut self, now: u64) {
        let Some(Move { slot, to, .. }) = self.map.on_its_way.take_if(|way| way.until <= now)
        else {
            return;
        };
        let from = self.map.owners[&slot];
        for key in self.keys_of(from, slot) {
            self.move_key(from, to, &key);
        }
        self.map.owners.insert(slot, to);
        self.map.former.push((slot, from));
    }

    fn keys_of(&self, number: usize, slot: i64) -> Vec<Vec<u8>> {
        let keys = self.servers[number].redis.keyspace().names();
        keys.into_iter().filter(|key| slot_of(key) == slot).collect()
    }

    fn move_key(&mut self, from: usize, to: usize, key: &[u8]) {
        let servers = self.servers.get_disjoint_mut([from, to]).unwrap();
        let [from, to] = servers.map(|server| &mut *server.redis);
        match self.map.clings {
            true => from.share(to, key),
            false => from.hand_over(to, key),
        }
    }

    /// Everything works from now on.
    pub fn heal(&mut self) {
        self.arrive(u64::MAX);
        self.servers.iter_mut().for_each(|server| server.down_until = 0);
    }
}

impl SlotMap {
    fn address(&self, number: usize) -> String {
        format!("192.0.2.{}:{}", number + 1, 7000 + self.replaced[number])
    }

    /// What the server says instead of an answer of its own, as in `getNodeByQuery` of Redis.
    fn sent_on(
        &self,
        number: usize,
        keyspace: &Keyspace,
        command: &[Vec<u8>],
        asking: &mut bool,
    ) -> Option<Vec<u8>> {
        let keys = match command[0].as_slice() {
            b"CLUSTER" => return Some(self.tell(number)),
            b"ASKING" => {
                *asking = true;
                return Some(b"+OK\r\n".to_vec());
            }
            b"GET" | b"PTTL" => &command[1..2],
            b"EVALSHA" => {
                &command[3..3 + str::from_utf8(&command[2]).unwrap().parse::<usize>().unwrap()]
            }
            _ => return None,
        };
        if self.strays || (self.clings && self.former.contains(&(slot_of(&keys[0]), number))) {
            return None;
        }
        let asked = std::mem::replace(asking, false);
        let slot = slot_of(&keys[0]);
        let owner = self.owners[&slot];
        let missing = keys.iter().filter(|key| !keyspace.has(key)).count();
        let way = self.on_its_way.filter(|way| way.slot == slot);
        let sent = |how: &str, to: usize| Some(format!("-{how} {slot} {}\r\n", self.address(to)));
        let again =
            || Some("-TRYAGAIN Multiple keys request during rehashing of slot\r\n".to_owned());
        let words = match way {
            Some(Move { to, .. }) if owner == number && missing == keys.len() => sent("ASK", to),
            Some(_) if owner == number && missing > 0 => again(),
            Some(Move { to, .. }) if to == number && asked => {
                if keys.len() > 1 && missing > 0 {
                    again()
                } else {
                    None
                }
            }
            _ if owner == number => None,
            _ => sent("MOVED", owner),
        };
        words.map(String::into_bytes)
    }

    /// The answer to `CLUSTER SLOTS`.
    fn tell(&self, number: usize) -> Vec<u8> {
        let mut reply = format!("*{}\r\n", self.owners.len());
        for (slot, owner) in &self.owners {
            let address = self.address(if self.strays { number } else { *owner });
            let (host, port) = address.split_once(':').unwrap();
            reply += &format!(
                "*3\r\n:{slot}\r\n:{slot}\r\n*3\r\n${}\r\n{host}\r\n:{port}\r\n",
                host.len()
            );
            reply += "$1\r\nx\r\n";
        }
        reply.into_bytes()
    }
}

/// The slot of a key, by the part of it in braces.
fn slot_of(key: &[u8]) -> i64 {
    let key = str::from_utf8(key).unwrap();
    let (tag, _) = key.strip_prefix('{').unwrap().split_once('}').unwrap();
    slot(tag)
}
