use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::scenarios::{by, global_limit, merged, window};
use crate::support::envoy::Envoy;
use crate::support::process::poll_until;
use crate::support::redis::Redis;
use crate::support::tools::{program, repository};

const PROMISED: Duration = Duration::from_secs(10);

/// The command of docs/kill-switch.md that begins like this.
fn documented(beginning: &str) -> String {
    let page = fs::read_to_string(repository().join("docs/kill-switch.md")).expect("the page");
    let command = page.lines().find(|line| line.starts_with(beginning));
    command.unwrap_or_else(|| panic!("no command begins with {beginning}")).to_owned()
}

/// Runs a line as Alice does, and returns what it prints.
fn run(line: &str, socket: &Path) -> String {
    run_as(Some("alice"), line, socket)
}

/// Runs a line as an operator does, where containers and timers name nobody in `USER`.
fn run_as(user: Option<&str>, line: &str, socket: &Path) -> String {
    let here = format!("{} -s {}", program("redis-cli", "REDIS_CLI").display(), socket.display());
    let line = line.replacen("redis-cli", &here, 1);
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).env_remove("USER").envs(user.map(|user| ("USER", user)));
    let output = shell.output().expect("a shell");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// How long it takes until each Envoy answers every one of several requests with this status.
fn follow(envoys: &[Envoy], status: u16) -> Duration {
    let start = Instant::now();
    for envoy in envoys {
        let all = || (0..8).all(|_| envoy.send(&by("acme")).status == status).then_some(());
        assert!(poll_until(PROMISED, all).is_some(), "an Envoy does not follow");
    }
    start.elapsed()
}

/// Point of the kill switch: an operator's command reaches every node, whatever it is configured to,
/// within ten seconds and without a push; each tells who it was and when; and so does the way back.
/// The commands are those of the page.
#[test]
fn remote_kill_switch_within_ten_seconds() {
    let redis = Redis::start();
    let plugin = global_limit(json!({"consistency": "leased"}), json!({"tenant": window(0, "1h")}));
    let start = |plugin| Envoy::builder(plugin).redis_unix(redis.socket()).start();
    let envoys = [start(&plugin), start(&plugin), start(&plugin)];
    follow(&envoys, 429);
    for (command, status, gauge) in [
        ("redis-cli SET '{fairshare}:1:mode' \"off", 200, 0),
        ("redis-cli DEL", 429, 2),
        ("redis-cli SET '{fairshare}:1:mode' \"shadow", 200, 1),
    ] {
        run(&documented(command), redis.socket());
        let took = follow(&envoys, status);
        println!("{command}: {took:?}");
        assert!(took <= PROMISED, "{command}: {took:?}");
        assert!(envoys.iter().all(|envoy| envoy.metric("fairshare_mode", &[]) == gauge));
    }
    let year = run("date -u +%Y", redis.socket());
    let kept = run(&documented("redis-cli GET"), redis.socket());
    assert!(kept.starts_with(&format!("shadow by=alice at={year}-")), "{kept}");
    assert!(redis.pttl("{fairshare}:1:mode") > 0);
    for envoy in &envoys {
        for text in [": off by=alice at=", ": shadow by=alice at=", "no mode any more"] {
            envoy.log_line(text);
        }
        let lines = envoy.log().lines().filter(|line| line.contains("by=alice")).count();
        assert_eq!(lines, 2, "one line of each node for each change");
    }
    // One that is configured to do nothing follows as well, and does nothing afterwards.
    let idle = [start(&merged(plugin.clone(), json!({"mode": "off"})))];
    follow(&idle, 200);
    run_as(None, &documented("redis-cli SET '{fairshare}:1:mode' \"enforce"), redis.socket());
    assert!(follow(&idle, 429) <= PROMISED);
    run(&documented("redis-cli DEL"), redis.socket());
    assert!(follow(&idle, 200) <= PROMISED);
}
