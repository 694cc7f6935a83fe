//! The embedded store against a real Redis: the same commands at the same times, the same replies
//! and the same values. Each runs the script with its own clock replaced by a time that is given,
//! so that both see the same; in the embedded one that is what `TIME` says anyway.

use fairshare::limiter::{GcraQuota, Quota, WindowQuota};
use fairshare::policy::{Level, Secret, StorePolicy, Topology};
use fairshare::store::epoch::State;
use fairshare::store::{
    Decision, Operation, Part, SCRIPT, SCRIPT_SHA1, ScriptCall, StoreCharge, Want, encode,
    record_key,
};
use fairshare::units::Span;

use crate::embedded_redis::EmbeddedRedis;
use crate::redis::{Redis, Value, command};
use crate::rng::Rng;

const START_US: u64 = 1_700_000_000_000_000;
const CALLS: u64 = 400;
const SEEDS: u64 = 40;

/// A real server, whose script takes its time from its last argument.
struct Real {
    redis: Redis,
    sha1: String,
}

impl Real {
    fn start() -> Self {
        let redis = Redis::start();
        let script = SCRIPT.replace("redis.call('TIME')", "table.remove(CLOCK)");
        let script = format!("local CLOCK = {{ {{ 0, table.remove(ARGV) }} }}\n{script}");
        let script = script.replace("SLACK_MS=500", "SLACK_MS=600000");
        let Value::Text(sha1) = redis.run(&["SCRIPT", "LOAD", &script]) else {
            panic!("the script does not load")
        };
        Self { redis, sha1 }
    }

    fn call(&self, body: &[u8], now_us: u64) -> Vec<u8> {
        let body = String::from_utf8(body.to_vec()).unwrap().replace(SCRIPT_SHA1, &self.sha1);
        let (count, rest) = body.strip_prefix('*').unwrap().split_once("\r\n").unwrap();
        let (count, time) = (count.parse::<u64>().unwrap() + 1, now_us.to_string());
        let body = format!("*{count}\r\n{rest}${}\r\n{time}\r\n", time.len());
        self.redis.exchange(body.as_bytes())
    }
}

fn policy() -> StorePolicy {
    StorePolicy {
        cluster: String::new(),
        timeout: Span::from_millis(50),
        key_prefix: String::new(),
        username: String::new(),
        password: Secret::default(),
        topology: Topology::Single,
    }
}

/// Something that the filter may ask for, about some of `quotas`.
fn question(rng: &Rng, prefix: u64, quotas: &[Quota], clocks: &[u64]) -> Decision {
    let charges: Vec<StoreCharge> = quotas
        .iter()
        .enumerate()
        .filter(|_| rng.in_thousand(600))
        .map(|(place, quota)| StoreCharge {
            key: format!("{{{prefix}}}:1:l{place}:s"),
            level: Level::Shared,
            // Now and then another configuration asks.
            quota: if rng.in_thousand(950) { *quota } else { any_quota(rng) },
            cost: rng.within(0, 5),
            hold: rng.in_thousand(200),
        })
        .collect();
    let operation = match rng.within(0, 5) {
        4 => Operation::Restore(std::array::from_fn(|_| Part {
            at_us: rng.pick(clocks),
            units: rng.within(0, 9),
        })),
        0 => Operation::Decide,
        1 => Operation::Return(charges.iter().map(|_| rng.pick(clocks)).collect()),
        _ => Operation::Lease(
            charges
                .iter()
                .map(|_| Want { firm: rng.within(0, 9), ahead: rng.within(0, 9) })
                .collect(),
        ),
    };
    let known = match rng.within(0, 100) {
        0 => State { epoch: START_US + rng.within(0, 9_000_000), changes: 1 },
        _ => State::NONE,
    };
    let record = record_key(&format!("{{{prefix}}}"));
    Decision { group: 0, operation, charges, record, known }
}

fn any_quota(rng: &Rng) -> Quota {
    let span = Span::from_micros(rng.pick(&[1, 17, 1_000, 333_333, 1_000_000, 60_000_000]));
    match rng.in_thousand(500) {
        true => Quota::Window(WindowQuota { requests: rng.within(0, 40), window: span }),
        false => {
            Quota::Gcra(GcraQuota { rate: rng.within(1, 40), per: span, burst: rng.within(0, 40) })
        }
    }
}

/// Goal: to every sequence of questions, at times that go back and forth, and with values of others
/// in between, the embedded store replies as a real Redis does, and holds the same values.
#[test]
fn the_embedded_store_is_redis() {
    let real = Real::start();
    let slack = SCRIPT.replace("SLACK_MS=500", "SLACK_MS=600000");
    let mut embedded = EmbeddedRedis::with_script(&slack);
    embedded.exchange(&command(&["SCRIPT", "LOAD", SCRIPT]));
    let (mut asked, mut granted) = (0, 0);
    for seed in 0..SEEDS {
        let rng = Rng::new(seed);
        let quotas: Vec<Quota> = (0..rng.within(1, 5)).map(|_| any_quota(&rng)).collect();
        let (mut now_us, mut clocks) = (START_US, vec![START_US]);
        for _ in 0..CALLS {
            now_us += rng.pick(&[0, 1, 3, 200, 5_000, 80_000, 900_000]);
            let back = if rng.in_thousand(30) { rng.within(0, 3_000_000) } else { 0 };
            embedded.set_clock(now_us - back);
            clocks.push(now_us - back);
            let decision = question(&rng, seed, &quotas, &clocks);
            if decision.charges.is_empty() {
                continue;
            }
            let key = decision.charges[0].key.clone();
            if let Some(odd) = odd_command(&rng, &key) {
                let odd = command(&odd.iter().map(String::as_str).collect::<Vec<_>>());
                assert_eq!(text(&embedded.exchange(&odd)), text(&real.redis.exchange(&odd)));
            }
            let body = encode(&policy(), &[&decision], ScriptCall::Cached);
            let (here, there) = (embedded.exchange(&body), real.call(&body, now_us - back));
            assert_eq!(text(&here), text(&there), "seed {seed}: {decision:?} at {now_us}");
            asked += 1;
            granted += u64::from(here.starts_with(b"*"));
            let get = command(&["GET", &key]);
            assert_eq!(text(&embedded.exchange(&get)), text(&real.redis.exchange(&get)));
        }
    }
    assert!(asked > SEEDS * CALLS / 2 && granted > asked / 3, "{asked} asked, {granted} answered");
}

/// What is no call of the filter, now and then.
fn odd_command(rng: &Rng, key: &str) -> Option<Vec<String>> {
    let words: &[&str] = match rng.within(0, 200) {
        0 => &["SET", key, "something else"],
        1 => &["SET", key, "w1 1000 99999999999999999999 1 5:1"],
        2 => &["SET", key, "g1 1700000000000000 18 1000 1", "PX", "700000"],
        3 => &["LPUSH", key, "a"],
        4..8 => &["DEL", key],
        _ => return None,
    };
    // A list would not take another value.
    Some(words.iter().map(|word| (*word).to_owned()).collect())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Goal: keys live as long as in Redis, in milliseconds, and are gone at the same one.
#[test]
fn keys_expire_as_in_redis() {
    let mut embedded = EmbeddedRedis::new();
    embedded.set_clock(START_US);
    embedded.exchange(&command(&["SET", "k", "v", "PX", "1500"]));
    let ttl = |store: &mut EmbeddedRedis| text(&store.exchange(&command(&["PTTL", "k"])));
    embedded.set_clock(START_US + 500_000);
    assert_eq!(ttl(&mut embedded), ":1000\r\n");
    embedded.set_clock(START_US + 1_500_000);
    assert_eq!(ttl(&mut embedded), ":0\r\n");
    embedded.set_clock(START_US + 1_501_000);
    assert_eq!(ttl(&mut embedded), ":-2\r\n");
}

/// Goal: what is not asked by the script is answered as Redis words it.
#[test]
fn errors_are_worded_as_in_redis() {
    let real = Redis::with(&["--requirepass", "secret"]);
    let mut embedded = EmbeddedRedis::new();
    embedded.password = Some("secret".to_owned());
    let call =
        |words: &[&str]| command(&[&["EVALSHA", SCRIPT_SHA1, "2", "e", "k"], words].concat());
    // Whoever has not logged in may not even say as much as other calls do.
    let poll = command(&["EVALSHA", SCRIPT_SHA1, "1", "e", "1", "poll", "0", "0", "0"]);
    let evalsha = call(&["1", "decide", "0", "0", "0", "w", "1", "1", "1000"]);
    let bad = call(&["1", "decide", "0", "0", "0", "w", "1"]);
    let unknown = call(&["2", "decide"]);
    let load = command(&["SCRIPT", "LOAD", SCRIPT]);
    let auth = |password: &str| command(&["AUTH", password]);
    for body in [
        [auth("wrong"), poll.clone()].concat(),
        [auth("secret"), evalsha].concat(),
        [auth("secret"), load, bad, unknown].concat(),
        poll,
    ] {
        assert_eq!(text(&embedded.exchange(&body)), text(&real.exchange(&body)));
    }
    let (real, mut embedded) = (Redis::start(), EmbeddedRedis::new());
    let body = auth("secret");
    let begins = |reply: Vec<u8>| text(&reply)[..30].to_owned();
    assert_eq!(begins(embedded.exchange(&body)), begins(real.exchange(&body)));
}
