//! Errors as Redis really words them. None is a grant, and none of them charges anything.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use process::poll_until;

fn five() -> [StoreCharge; 1] {
    [charge("k", window(5, 60 * SECOND_US), 1)]
}

fn with_password(username: &str, password: &str) -> StorePolicy {
    StorePolicy { username: username.to_owned(), password: Secret(password.to_owned()), ..policy() }
}

fn decide_as(redis: &Redis, policy: &StorePolicy) -> Result<Answer, StoreError> {
    let decisions = [ask(&five())];
    let body = redis.exchange(&encode(policy, &decisions, ScriptCall::Load));
    decode(policy, &decisions, ScriptCall::Load, &body).remove(0)
}

fn decide_cached(redis: &Redis) -> Result<Answer, StoreError> {
    let decisions = [ask(&five())];
    let body = redis.exchange(&encode(&policy(), &decisions, ScriptCall::Cached));
    decode(&policy(), &decisions, ScriptCall::Cached, &body).remove(0)
}

/// Goal: a script that the store forgot is named as such, is taken again, and charges once.
#[test]
fn red_3_a_flushed_script_is_loaded_again() {
    let redis = aged();
    assert_eq!(decide_cached(&redis), Err(StoreError::NoScript));
    assert!(decide_one(&redis, &five()).unwrap().admitted);
    assert!(decide_cached(&redis).unwrap().admitted);
    redis.run(&["SCRIPT", "FLUSH"]);
    assert_eq!(decide_cached(&redis), Err(StoreError::NoScript));
    let answer = decide_one(&redis, &five()).unwrap();
    assert_eq!(answer.levels[0].remaining, 2, "three charges in all");
}

#[test]
fn red_4_passwords() {
    let redis = aged();
    assert_eq!(decide_as(&redis, &with_password("", "surplus")), Err(StoreError::WrongPass));
    redis.run(&["SCRIPT", "FLUSH"]);
    redis.run(&["ACL", "SETUSER", "app", "on", ">s3cret", "~*", "+@all"]);
    redis.run(&["ACL", "SETUSER", "weak", "on", ">s3cret", "~*", "+@all", "-script"]);
    redis.run(&["ACL", "SETUSER", "lost", "on", ">s3cret", "~other*", "+@all"]);
    // The user of the page, who may touch this test's key as well.
    let least = page::command("docs/redis.md", "redis-cli ACL SETUSER fairshare");
    let least: Vec<&str> = least.iter().skip(1).map(String::as_str).collect();
    redis.run(&least);
    redis.run(&["ACL", "SETUSER", "fairshare", "~k", "~{f}:*"]);
    redis.run(&["CONFIG", "SET", "requirepass", "s3cret"]);
    assert_eq!(decide_cached(&redis), Err(StoreError::NoAuth));
    assert_eq!(decide_as(&redis, &with_password("", "wrong")), Err(StoreError::WrongPass));
    assert_eq!(decide_as(&redis, &with_password("nobody", "s3cret")), Err(StoreError::WrongPass));
    assert_eq!(decide_as(&redis, &with_password("weak", "s3cret")), Err(StoreError::NoPermission));
    assert!(decide_as(&redis, &with_password("fairshare", "a long password")).unwrap().admitted);
    assert!(decide_as(&redis, &with_password("", "s3cret")).unwrap().admitted);
    assert!(decide_as(&redis, &with_password("app", "s3cret")).unwrap().admitted);
    assert_eq!(decide_as(&redis, &with_password("lost", "s3cret")), Err(StoreError::NoPermission));
}

/// RED-4: a user who may not run one of the commands of the page is told apart, whether the filter sends it or
/// the script runs it. `INFO` alone may be missing.
#[test]
fn red_4_a_user_who_lacks_a_command_is_told_apart() {
    let redis = aged();
    let words = page::command("docs/redis.md", "redis-cli ACL SETUSER fairshare");
    let commands: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix('+')).collect();
    let user = with_password("fairshare", "p");
    for lacking in ["evalsha", "script|load", "get", "set", "time", "pttl", "pexpire", "info"] {
        assert!(commands.contains(&lacking), "{lacking} is not on the page");
        let without = format!("-{lacking}");
        let rights = ["reset", "on", ">p", "~*", "+@all", &without];
        redis.run(&[&["ACL", "SETUSER", "fairshare"], &rights[..]].concat());
        let mut told = BTreeSet::new();
        for cost in [1, 0] {
            redis.run(&["SCRIPT", "FLUSH"]);
            // A key that never expires is given an expiry.
            redis.run(&["SET", "k", "w1 60000000 1 1 1:1"]);
            let decisions = [ask(&[charge("k", window(5, 60 * SECOND_US), cost)])];
            let body = redis.exchange(&encode(&user, &decisions, ScriptCall::Load));
            let answer = decode(&user, &decisions, ScriptCall::Load, &body).remove(0);
            told.insert(answer.err().map(StoreError::name));
        }
        let expected: &[_] = match lacking {
            "info" => &[None],
            // A key that is written again needs neither.
            "pttl" | "pexpire" => &[None, Some("no_permission")],
            _ => &[Some("no_permission")],
        };
        assert_eq!(told, expected.iter().copied().collect(), "without {lacking}");
    }
}

/// RED-4: users and passwords may hold any characters.
#[test]
fn red_4_passwords_of_any_characters() {
    let mut redis = aged();
    redis.run(&["ACL", "SETUSER", "tester", "on", ">t3ster", "~*", "+@all"]);
    redis.log_in("tester", "t3ster");
    let long = "long".repeat(200);
    for password in [" with blanks ", "\"'`\\$5*1:-", "line\r\n$end\t", "pässwörd ✓", &long] {
        let secret = format!(">{password}");
        redis.run(&["ACL", "SETUSER", "app", "reset", "on", &secret, "~*", "+@all"]);
        redis.run(&["CONFIG", "SET", "requirepass", password]);
        for user in ["", "app"] {
            let answer = decide_as(&redis, &with_password(user, password));
            assert!(answer.is_ok(), "{user:?}, {password:?}: {answer:?}");
            let other = with_password(user, &format!("{password}."));
            assert_eq!(decide_as(&redis, &other), Err(StoreError::WrongPass), "{password:?}");
        }
    }
}

#[test]
fn red_4_a_replica_takes_no_charge() {
    let redis = aged();
    assert!(decide_one(&redis, &five()).unwrap().admitted);
    redis.run(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(decide_cached(&redis), Err(StoreError::ReadOnly));
    redis.run(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(decide_cached(&redis).unwrap().levels[0].remaining, 3);
}

#[test]
fn red_4_a_full_store_charges_nothing() {
    let redis = aged();
    assert!(decide_one(&redis, &five()).unwrap().admitted);
    redis.run(&["CONFIG", "SET", "maxmemory", "1"]);
    let two = ask(&[charge("other", window(5, 60 * SECOND_US), 1), five()[0].clone()]);
    let body = redis.exchange(&encode(&policy(), &[&two], ScriptCall::Cached));
    let results = decode(&policy(), &[&two], ScriptCall::Cached, &body);
    assert_eq!(results, [Err(StoreError::OutOfMemory)]);
    redis.run(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(redis.keys(), ["k"]);
    assert_eq!(decide_cached(&redis).unwrap().levels[0].remaining, 3);
}

#[test]
fn red_4_a_key_of_another_type_is_left_alone_and_is_no_grant() {
    let redis = aged();
    redis.run(&["LPUSH", "k", "x"]);
    let charges = [charge("fresh", window(5, SECOND_US), 1), five()[0].clone()];
    assert_eq!(decide_one(&redis, &charges), Err(StoreError::WrongType));
    assert_eq!(redis.keys(), ["k"]);
    assert_eq!(redis.run(&["LLEN", "k"]), Value::Integer(1));
}

#[test]
fn red_4_a_busy_store_says_so() {
    let redis = Redis::with(&["--busy-reply-threshold", "1"]);
    redis.age("f");
    assert!(decide_one(&redis, &five()).unwrap().admitted);
    std::thread::scope(|scope| {
        let endless = scope.spawn(|| redis.run(&["EVAL", "while true do end", "0"]));
        let busy = || (decide_cached(&redis) == Err(StoreError::Busy)).then_some(());
        let seen = poll_until(Duration::from_secs(10), busy);
        redis.run(&["SCRIPT", "KILL"]);
        endless.join().expect("the endless script's client");
        assert!(seen.is_some());
    });
}

#[test]
fn what_the_script_does_not_know_is_an_error() {
    let redis = aged();
    let call = |arguments: &[&str]| match redis.run(&[&["EVAL", SCRIPT], arguments].concat()) {
        Value::Error(line) => line,
        other => panic!("{other:?}"),
    };
    for operation in [&[][..], &["2", "decide"], &["1", "borrow"]] {
        let operation = [&["2", "{f}:1:epoch", "k"], operation].concat();
        assert_eq!(call(&operation), "FAIRSHARE unknown operation", "{operation:?}");
    }
    let largest = "9007199254740993000";
    for arguments in [
        &[][..],
        &["x", "1", "1", "1"],
        &["w", "1", "1"],
        &["w", "1", "1", "0"],
        &["w", "1", "1", "1", "1"],
        &["w", "-1", "1", "1"],
        &["w", "1.5", "1", "1"],
        &["w", "nan", "1", "1"],
        &["w", "1", "inf", "1"],
        &["w", "1", largest, "1"],
        &["g", "1", "0", "1", "1"],
        &["g", "1", "1", "0", "1"],
        &["g", "1", "1", "1000000000", "1000000000"],
        &["w", "1", "5", "1", "g", "1", "1", "1", "1"],
    ] {
        let arguments =
            [&["2", "{f}:1:epoch", "k", "1", "decide", "0", "0", "0"], arguments].concat();
        assert_eq!(call(&arguments), "FAIRSHARE bad argument", "{arguments:?}");
    }
    let twice = ["3", "{f}:1:epoch", "k", "k", "1", "decide", "0", "0", "0"];
    let twice = [&twice[..], &["w", "1", "5", "1", "w", "1", "5", "1"]].concat();
    assert_eq!(call(&twice), "FAIRSHARE bad argument", "one key twice");
    assert_eq!(call(&["0", "1", "decide"]), "FAIRSHARE bad argument");
    for known in [["x", "0", "0"], ["0", "-1", "0"], ["1.5", "0", "0"]] {
        let arguments = [&["1", "{f}:1:epoch", "1", "poll"], &known[..]].concat();
        assert_eq!(call(&arguments), "FAIRSHARE bad argument", "{arguments:?}");
    }
    assert!(redis.keys().is_empty());
}

/// Goal: in a Redis Cluster all keys of a decision lie in one slot, and its own errors are known.
#[test]
fn a_cluster_takes_decisions_and_its_errors_are_told_apart() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bus = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port, bus) = (port.to_string(), bus.to_string());
    let redis = Redis::with(&[
        "--cluster-enabled",
        "yes",
        "--bind",
        "127.0.0.1",
        "--port",
        &port,
        "--cluster-port",
        &bus,
    ]);
    let keys = [
        key("{f}", "dns", Level::Shared, None),
        key("{f}", "dns", Level::Tenant, Some(&fairshare::policy::Subject([1; 32]))),
        key("{f}", "rdap", Level::Credential, Some(&fairshare::policy::Subject([2; 32]))),
    ];
    let slot = |key: &String| redis.run(&["CLUSTER", "KEYSLOT", key]);
    assert_eq!(slot(&keys[0]), slot(&keys[1]));
    assert_eq!(slot(&keys[0]), slot(&keys[2]));

    let charges = keys.map(|key| charge(&key, window(5, 60 * SECOND_US), 1));
    assert_eq!(decide_one(&redis, &charges), Err(StoreError::ClusterDown));
    redis.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let ready = || decide_one(&redis, &charges).ok().filter(|answer| answer.admitted);
    assert!(poll_until(Duration::from_secs(20), ready).is_some(), "a cluster of one node");
    let apart = [charge("a", window(5, SECOND_US), 1), charge("b", window(5, SECOND_US), 1)];
    assert_eq!(decide_one(&redis, &apart), Err(StoreError::Other), "CROSSSLOT");
}

/// Goal: the largest batch that the filter sends is answered to the last decision, although the
/// sender is gone before the first.
#[test]
fn a_whole_batch_is_answered_after_the_half_close() {
    let redis = aged();
    // The longest numbers that there are, and the most of them.
    let quota = window(1 << 53, 365 * 86_400 * SECOND_US);
    let levels: Vec<StoreCharge> =
        (0..8).map(|level| charge(&format!("{{f}}:{level}"), quota, 1)).collect();
    let decisions = vec![ask(&levels); DECISIONS_MAX];
    assert_eq!(pipeline_len(&decisions), DECISIONS_MAX);
    assert!(decide(&redis, &decisions).iter().all(|answer| answer.as_ref().unwrap().admitted));
}
