use proptest::prelude::*;

use super::*;
use crate::limiter::{Quota, WindowQuota};
use crate::policy::{Level, Secret, Topology};
use crate::store::{CHARGES_MAX, Want};

fn policy(username: &str, password: &str) -> StorePolicy {
    StorePolicy {
        cluster: "redis".to_owned(),
        timeout: Span::from_millis(50),
        key_prefix: "f".to_owned(),
        username: username.to_owned(),
        password: Secret(password.to_owned()),
        topology: Topology::Single,
    }
}

fn decision(levels: &[Level]) -> Decision {
    let quota = Quota::Window(WindowQuota { requests: 5, window: Span::from_secs(1) });
    let charge = |level: &Level| StoreCharge {
        key: crate::store::key("{f}", "dns", *level, None),
        level: *level,
        quota,
        cost: 1,
        hold: *level == Level::Tenant,
    };
    Decision {
        group: 0,
        operation: Operation::Decide,
        charges: levels.iter().map(charge).collect(),
        record: crate::store::record_key("{f}"),
        known: State { epoch: 8, changes: 3 },
    }
}

fn shared() -> Decision {
    decision(&[Level::Shared])
}

/// The results for `count` decisions of one level each.
fn decoded(count: usize, body: &[u8]) -> Vec<Result<Answer, StoreError>> {
    decode(&policy("", ""), &vec![shared(); count], ScriptCall::Cached, body)
}

const ADMITTED: &[u8] =
    b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:1\r\n:1\r\n:1\r\n:4\r\n:0\r\n:1000000\r\n";
const REFUSED: &[u8] =
    b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:0\r\n:0\r\n:0\r\n:0\r\n:250000\r\n:1000000\r\n";

fn admitted() -> Answer {
    let verdict = Verdict {
        admitted: true,
        capacity: 5,
        remaining: 4,
        retry_after: Span::ZERO,
        reset_after: Span::from_secs(1),
    };
    Answer {
        admitted: true,
        levels: vec![verdict],
        units: vec![1],
        clock_us: 77,
        state: State { epoch: 8, changes: 4 },
        why: 1,
    }
}

#[test]
fn a_pipeline_is_a_password_a_script_and_the_decisions() {
    let decisions = [shared(), decision(&[Level::Shared, Level::Tenant])];
    let calls = format!(
        "*14\r\n$7\r\nEVALSHA\r\n$40\r\n{SCRIPT_SHA1}\r\n$1\r\n2\r\n$11\r\n{{f}}:1:epoch\r\n\
         $11\r\n{{f}}:1:dns:s\r\n$1\r\n1\r\n$6\r\ndecide\r\n$1\r\n8\r\n$1\r\n3\r\n$1\r\n0\r\n\
         $1\r\nw\r\n$1\r\n1\r\n$1\r\n5\r\n$7\r\n1000000\r\n"
    );
    // A server without the script may be another one than before.
    let calls_of_new = calls.replace("$1\r\n3\r\n$1\r\n0\r\n", "$1\r\n3\r\n$1\r\n1\r\n");
    let cached = encode(&policy("", ""), &decisions[..1], ScriptCall::Cached);
    assert_eq!(String::from_utf8(cached).unwrap(), calls);

    let load = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n{SCRIPT}\r\n", SCRIPT.len());
    let whole = encode(&policy("app", "s3cret"), &decisions, ScriptCall::Load);
    let whole = String::from_utf8(whole).unwrap();
    let auth = "*3\r\n$4\r\nAUTH\r\n$3\r\napp\r\n$6\r\ns3cret\r\n";
    assert!(whole.starts_with(&format!("{auth}{load}{calls_of_new}")), "{whole}");

    let none: [Decision; 0] = [];
    let default_user = encode(&policy("", "s3cret"), &none, ScriptCall::Cached);
    assert_eq!(default_user, b"*2\r\n$4\r\nAUTH\r\n$6\r\ns3cret\r\n");
}

#[test]
fn answers_come_in_the_order_of_the_decisions() {
    let results = decoded(2, &[ADMITTED, REFUSED].concat());
    assert_eq!(results[0], Ok(admitted()));
    let refused = results[1].as_ref().unwrap();
    assert!(!refused.admitted);
    assert_eq!(refused.levels[0].retry_after, Span::from_millis(250));
}

#[test]
fn red_4_odd_replies_are_told_apart_and_are_never_a_grant() {
    let cases: [(&[u8], StoreError); 29] = [
        (b"-READONLY You can't write against a read only replica.\r\n", StoreError::ReadOnly),
        (b"-NOAUTH Authentication required.\r\n", StoreError::NoAuth),
        (b"-WRONGPASS invalid username-password pair\r\n", StoreError::WrongPass),
        (b"-LOADING Redis is loading the dataset in memory\r\n", StoreError::Loading),
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", StoreError::OutOfMemory),
        (b"-CLUSTERDOWN The cluster is down\r\n", StoreError::ClusterDown),
        (b"-MOVED 1 h:1\r\n", StoreError::Moved),
        (b"-ASK 1 h:1\r\n", StoreError::Ask),
        (b"-NOSCRIPT No matching script.\r\n", StoreError::NoScript),
        (b"-FAIRSHARE wrong type\r\n", StoreError::WrongType),
        (b"-WHATEVER\r\n", StoreError::Other),
        (b"$-1\r\n", StoreError::Malformed),
        (b"*-1\r\n", StoreError::Malformed),
        (b"*0\r\n", StoreError::Malformed),
        (b"$1\r\n7\r\n", StoreError::Malformed),
        (b":-1\r\n", StoreError::Malformed),
        (b":1\r\n", StoreError::Malformed),
        (b"+OK\r\n", StoreError::Malformed),
        (b"*1\r\n:1\r\n", StoreError::Malformed),
        (
            b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:1\r\n:1\r\n:1\r\n:-4\r\n:0\r\n:1\r\n",
            StoreError::Malformed,
        ),
        (
            b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:2\r\n:1\r\n:1\r\n:4\r\n:0\r\n:1\r\n",
            StoreError::Malformed,
        ),
        (
            b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:1\r\n:1\r\n:0\r\n:4\r\n:9\r\n:1\r\n",
            StoreError::Malformed,
        ),
        (
            b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:1\r\n:0\r\n:1\r\n:4\r\n:0\r\n:1\r\n",
            StoreError::Malformed,
        ),
        (
            b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:0\r\n:1\r\n:0\r\n:4\r\n:9\r\n:1\r\n",
            StoreError::Malformed,
        ),
        (
            b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:1\r\n:1\r\n:1\r\n:4\r\n:9\r\n:1\r\n",
            StoreError::Malformed,
        ),
        (
            b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:1\r\n:1\r\n$1\r\n1\r\n:4\r\n:0\r\n:1\r\n",
            StoreError::Malformed,
        ),
        (b"*5\r\n:8\r\n:4\r\n:1\r\n:77\r\n:1\r\n", StoreError::Malformed),
        (b"*9\r\n:8\r\n:4\r\n:1\r\n:77\r\n:1\r\n:1\r\n:1\r\n:4\r\n:0\r\n", StoreError::Malformed),
        (b"*10\r\n:8\r\n:4\r\n:1\r\n:77\r\n:1\r\n", StoreError::Truncated),
    ];
    for (reply, error) in cases {
        let text = reply.escape_ascii();
        assert_eq!(decoded(1, reply), [Err(error)], "{text}");
        // What follows a reply that could be read to its end is not lost with it.
        let next = decoded(2, &[reply, ADMITTED].concat()).pop().unwrap();
        assert_eq!(next.is_ok(), error != StoreError::Truncated, "{text}");
    }
}

#[test]
fn missing_replies_are_truncated_and_extra_ones_spoil_all() {
    let truncated = Err(StoreError::Truncated);
    assert_eq!(decoded(3, ADMITTED), [Ok(admitted()), truncated.clone(), truncated.clone()]);
    assert_eq!(decoded(2, b""), [truncated.clone(), truncated]);
    assert_eq!(decoded(1, &[ADMITTED, b"+OK\r\n"].concat()), [Err(StoreError::Malformed)]);
    let first = decoded(2, &[b"?\r\n", ADMITTED].concat());
    assert_eq!(first, [Err(StoreError::Malformed), Err(StoreError::Malformed)]);
}

#[test]
fn a_refused_password_fails_every_decision() {
    let decode_with =
        |body: &[u8]| decode(&policy("", "wrong"), &[shared(), shared()], ScriptCall::Cached, body);
    let whole = [b"+OK\r\n", ADMITTED, REFUSED].concat();
    assert!(decode_with(&whole).iter().all(Result::is_ok));
    for (auth, error) in [
        (
            &b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"[..],
            StoreError::WrongPass,
        ),
        (b"-ERR AUTH <password> called without any password configured\r\n", StoreError::WrongPass),
        (b"-LOADING Redis is loading the dataset in memory\r\n", StoreError::Loading),
        (b":1\r\n", StoreError::Malformed),
        (b"+QUEUED\r\n", StoreError::Malformed),
        (b"", StoreError::Malformed),
    ] {
        let results = decode_with(&[auth, ADMITTED, REFUSED].concat());
        assert_eq!(results, [Err(error), Err(error)], "{}", auth.escape_ascii());
    }
}

#[test]
fn a_script_that_was_not_taken_is_reported_as_such() {
    let decode_load = |body: &[u8]| decode(&policy("", ""), &[shared()], ScriptCall::Load, body);
    let noscript = b"-NOSCRIPT No matching script.\r\n";
    let refused = [&b"-NOPERM no permissions to run 'script|load'\r\n"[..], noscript].concat();
    assert_eq!(decode_load(&refused), [Err(StoreError::NoPermission)]);
    let again = [&b"$3\r\nabc\r\n"[..], noscript].concat();
    assert_eq!(decode_load(&again), [Err(StoreError::NoScript)]);
    let cached = [&b"-NOPERM no permissions\r\n"[..], ADMITTED].concat();
    assert_eq!(decode_load(&cached), [Ok(admitted())]);
    assert_eq!(decode_load(&[b"+OK\r\n", ADMITTED].concat()), [Err(StoreError::Malformed)]);
}

#[test]
fn a_batch_is_bounded() {
    let decisions = vec![shared(); DECISIONS_MAX + 1];
    let pipeline = encode(&policy("", ""), &decisions, ScriptCall::Cached);
    let sent = encode(&policy("", ""), &decisions[1..], ScriptCall::Cached);
    assert_eq!(pipeline.len(), sent.len());
    let results = decoded(DECISIONS_MAX + 1, &ADMITTED.repeat(DECISIONS_MAX));
    assert!(results[..DECISIONS_MAX].iter().all(Result::is_ok));
    assert_eq!(results[DECISIONS_MAX], Err(StoreError::Truncated));

    let large = vec![decision(&[Level::Shared; CHARGES_MAX]); 12];
    assert_eq!(pipeline_len(&large), PIPELINE_CHARGES_MAX / CHARGES_MAX);
    assert_eq!(pipeline_len(&[shared()]), 1);
}

/// Bytes that look like replies, so that more than the first check is reached.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        Just(ADMITTED.to_vec()),
        Just(REFUSED.to_vec()),
        (any::<i8>(), 0..6u8).prop_map(|(n, k)| {
            let kind = char::from(b"+-:$*%"[usize::from(k)]);
            format!("{kind}{n}\r\n").into_bytes()
        }),
        Just(b"+OK\r\n".to_vec()),
        Just(b"-NOSCRIPT x\r\n".to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(token, 0..12).prop_map(|tokens| tokens.concat())
}

#[test]
fn a_store_cannot_give_more_than_was_wanted() {
    let wants = vec![Want { firm: 3, ahead: 4 }];
    let lease = Decision { operation: Operation::Lease(wants), ..shared() };
    let granted = |units: u64| {
        let body =
            format!("*10\r\n:8\r\n:4\r\n:1\r\n:9\r\n:1\r\n:{units}\r\n:1\r\n:4\r\n:0\r\n:1\r\n");
        let mut answers = decode(
            &policy("", ""),
            std::slice::from_ref(&lease),
            ScriptCall::Cached,
            body.as_bytes(),
        );
        answers.remove(0).map(|answer| answer.units[0])
    };
    assert_eq!(granted(7), Ok(7));
    assert_eq!(granted(8), Err(StoreError::Malformed));
}

proptest! {
    /// Goal: whatever comes back, there is one result for each decision, and a grant only where the
    /// body holds a whole admitted answer for it.
    #[test]
    fn no_body_is_a_grant_unless_it_says_so(
        body in prop_oneof![bodies(), prop::collection::vec(any::<u8>(), 0..200)],
        count in 0..5usize,
        has_password in any::<bool>(),
        load in any::<bool>(),
        cut in 0..100usize,
    ) {
        let body = &body[..body.len().saturating_sub(cut % 7)];
        let policy = policy("", if has_password { "s3cret" } else { "" });
        let call = if load { ScriptCall::Load } else { ScriptCall::Cached };
        let results = decode(&policy, &vec![shared(); count], call, body);
        prop_assert_eq!(results.len(), count);
        let grants = results.iter().flatten().filter(|answer| answer.admitted).count();
        let said = body.windows(ADMITTED.len()).filter(|window| *window == ADMITTED).count();
        prop_assert!(grants <= said);
        for answer in results.iter().flatten() {
            prop_assert_eq!(answer.levels.len(), 1);
            prop_assert_eq!(answer.admitted, answer.levels[0].admitted);
        }
    }
}

/// One reply that the script cannot have sent would else be told to the store for good, which refuses
/// numbers that it cannot count on from.
#[test]
fn numbers_that_no_script_says_are_malformed() {
    let large = [(1_i64 << 52) + 1, 1 << 53, i64::MAX];
    for (place, known) in [(":8", "epoch"), (":4", "changes")] {
        for number in large {
            let body = std::str::from_utf8(ADMITTED).unwrap();
            let body = body.replacen(&format!("{place}\r\n"), &format!(":{number}\r\n"), 1);
            let answers = decoded(1, body.as_bytes());
            assert_eq!(answers, [Err(StoreError::Malformed)], "{known} {number}");
        }
    }
    let clock = std::str::from_utf8(ADMITTED).unwrap().replacen(":77", ":9007199254740992", 1);
    assert_eq!(decoded(1, clock.as_bytes()), [Err(StoreError::Malformed)]);
}
