//! Every kind of store, and every way to it, that the pages tell of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::EnvoyRig;
use crate::scenarios::{by, global_limit, store, window, with_store};
use crate::support::client::Connection;
use crate::support::envoy::{Builder, Envoy};
use crate::support::page;
use crate::support::ports::free_port;
use crate::support::process::{TempDir, poll_until};
use crate::support::redis::{Redis, Value as Reply};

const PAGE: &str = "docs/redis.md";

/// The one that the page has.
pub(crate) const PASSWORD: &str = "a long password";

/// Certificates of an authority of the test's own, made by openssl.
pub(crate) struct Authority {
    directory: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new("certificates");
        // Nothing of the machine's own configuration.
        let config = "[req]\ndistinguished_name = name\n[name]\n";
        fs::write(directory.file("openssl.cnf"), config).expect("a configuration");
        let authority = Self { directory };
        authority.make("ca", &["-addext", "basicConstraints=critical,CA:TRUE"]);
        authority
    }

    /// The authority's own certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.file("ca.crt")
    }

    /// A signed certificate for the host `name`, and its key.
    pub(crate) fn sign(&self, name: &str) -> [String; 2] {
        let (ca, ca_key) =
            (text(&self.directory.file("ca.crt")), text(&self.directory.file("ca.key")));
        let host = format!("subjectAltName=DNS:{name}");
        self.make(name, &["-CA", &ca, "-CAkey", &ca_key, "-addext", &host]);
        ["crt", "key"].map(|kind| text(&self.directory.file(&format!("{name}.{kind}"))))
    }

    fn make(&self, name: &str, arguments: &[&str]) {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        command.args(["-noenc", "-days", "2", "-subj", &format!("/CN={name}"), "-config"]);
        command.arg(self.directory.file("openssl.cnf")).args(arguments);
        command.arg("-keyout").arg(self.directory.file(&format!("{name}.key")));
        command.arg("-out").arg(self.directory.file(&format!("{name}.crt")));
        let output = command.output().expect("openssl, which ./envoy/test.sh installs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// A Redis at a TCP port of this machine, besides its Unix socket.
fn on_tcp(arguments: &[&str]) -> Redis {
    Redis::with(&[&["--bind", "127.0.0.1", "-::1"], arguments].concat())
}

/// A Redis that speaks TLS, and nothing else, at a port; whether clients need a certificate.
fn on_tls(authority: &Authority, host: &str, port: &str, clients: &str) -> Redis {
    let [certificate, key] = authority.sign(host);
    let ca = text(&authority.certificate());
    let files =
        ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    on_tcp(&[&["--tls-port", port, "--tls-auth-clients", clients], &files[..]].concat())
}

/// Runs the `redis-cli` command of the page that begins like this.
fn run(redis: &Redis, start: &str) {
    let words = page::command(PAGE, start);
    let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    assert_eq!(redis.run(&words), Reply::Text("OK".to_owned()));
}

/// Lets in the user of the page alone, and another for the test itself.
fn restrict(redis: &mut Redis) {
    run(redis, "redis-cli ACL SETUSER fairshare");
    redis.run(&["ACL", "SETUSER", "tester", "on", ">t3ster", "~*", "&*", "+@all"]);
    redis.log_in("tester", "t3ster");
    redis.run(&["ACL", "SETUSER", "default", "off"]);
}

/// Three of a tenant in a minute, decided by this store, and without it refused or let pass.
fn plugin(on_store_error: &str, consistency: &str, password: &str) -> Value {
    let settings = json!({"consistency": consistency, "on_store_error": on_store_error});
    let mut plugin = global_limit(settings, json!({"tenant": window(3, "1m")}));
    if !password.is_empty() {
        plugin["store"]["username"] = json!("fairshare");
        plugin["store"]["password"] = json!(password);
    }
    plugin
}

fn tls(builder: Builder, port: &str, authority: &Authority) -> Builder {
    let ca = text(&authority.certificate());
    builder.redis_by("tls.yaml", &[("HOST", "localhost"), ("PORT", port), ("CA", &ca)])
}

fn statuses(envoy: &Envoy, tenant: &str) -> Vec<u16> {
    (0..4).map(|_| envoy.send(&by(tenant)).status).collect()
}

fn calls(envoy: &Envoy, result: &str) -> u64 {
    envoy.metric("fairshare_store_calls", &[("result", result)])
}

/// Goal: over TLS and as the least user of the page, global limits hold; a wrong password or a
/// certificate that is not right is told apart, follows `on_store_error`, and no secret is shown.
#[test]
fn tls_and_acl_to_redis() {
    let authority = Authority::new();
    let port = free_port().to_string();
    let mut redis = on_tls(&authority, "localhost", &port, "no");
    restrict(&mut redis);
    let mut texts = Vec::new();
    for consistency in ["strict", "leased"] {
        let builder = Envoy::builder(plugin("deny", consistency, PASSWORD));
        let envoy = tls(builder, &port, &authority).start();
        assert_eq!(statuses(&envoy, consistency), [200, 200, 200, 429], "{consistency}");
        assert!(calls(&envoy, "ok") > 0);
        assert!(envoy.stat("cluster.redis.ssl.session_reused") > 0, "every handshake was whole");
        texts.extend([envoy.log(), envoy.stats(), envoy.prometheus()]);
    }
    for (on_store_error, expected) in [("deny", [503; 4]), ("allow", [200; 4])] {
        let builder = Envoy::builder(plugin(on_store_error, "strict", "not the s3cret"));
        let envoy = tls(builder, &port, &authority).start();
        assert_eq!(statuses(&envoy, "acme"), expected);
        assert!(calls(&envoy, "wrong_pass") > 0);
        let answer = envoy.send(&by("acme")).text();
        texts.extend([envoy.log(), envoy.stats(), envoy.prometheus(), answer]);
        // Somebody else's authority, although its certificate names the host.
        let builder = Envoy::builder(plugin(on_store_error, "strict", PASSWORD));
        let envoy = tls(builder, &port, &Authority::new()).start();
        assert_eq!(statuses(&envoy, "acme"), expected);
        assert!(calls(&envoy, "unreachable") > 0);
        assert!(envoy.stat("cluster.redis.ssl.fail_verify_error") > 0);
        texts.extend([envoy.log(), envoy.stats(), envoy.prometheus()]);
    }
    // In clear nobody gets in.
    let builder = Envoy::builder(plugin("deny", "strict", PASSWORD));
    let envoy = builder.redis_by("tcp.yaml", &[("HOST", "localhost"), ("PORT", &*port)]).start();
    assert_eq!(statuses(&envoy, "acme"), [503; 4]);
    assert_eq!(calls(&envoy, "ok"), 0);
    texts.extend([envoy.log(), redis.log(), redis.keys().join(" ")]);
    for secret in [PASSWORD, "s3cret"] {
        assert!(texts.iter().all(|text| !text.contains(secret)), "{secret} in {texts:?}");
    }
}

/// Goal: a certificate for another host is refused, although the right authority has signed it.
#[test]
fn tls_checks_the_name_of_redis() {
    let authority = Authority::new();
    let port = free_port().to_string();
    let _redis = on_tls(&authority, "other.example", &port, "no");
    let envoy = tls(Envoy::builder(plugin("deny", "strict", "")), &port, &authority).start();
    assert_eq!(statuses(&envoy, "acme"), [503; 4]);
    assert!(envoy.stat("cluster.redis.ssl.fail_verify_san") > 0);
}

/// Goal: with the client's certificate that the page shows, a Redis that wants one lets Envoy in, and
/// without it not.
#[test]
fn tls_with_a_client_certificate() {
    let authority = Authority::new();
    let port = free_port().to_string();
    let _redis = on_tls(&authority, "localhost", &port, "yes");
    let without = tls(Envoy::builder(plugin("deny", "strict", "")), &port, &authority).start();
    assert_eq!(statuses(&without, "acme"), [503; 4]);
    let [certificate, key] = authority.sign("envoy");
    let shown = page::block(PAGE, "# into envoy/redis/tls.yaml");
    let place = shown.lines().next().expect("its first line");
    let shown = shown.replace("/etc/envoy/redis-client.crt", &certificate);
    let shown = shown.replace("/etc/envoy/redis-client.key", &key);
    let builder = Envoy::builder(plugin("deny", "strict", "")).replacing(place, &shown);
    let with = tls(builder, &port, &authority).start();
    assert_eq!(statuses(&with, "acme"), [200, 200, 200, 429]);
}

/// Goal: many requests at once, whose pipelines are long, lose no reply on the way through TLS.
#[test]
fn tls_loses_no_reply_of_long_pipelines() {
    let authority = Authority::new();
    let port = free_port().to_string();
    let redis = on_tls(&authority, "localhost", &port, "no");
    let levels = json!({"shared": window(100_000, "1h"), "tenant": window(100_000, "1h")});
    let mut plugin = global_limit(json!({"on_store_error": "deny"}), levels);
    // The store is held up until all wait for it, however long this machine takes for that.
    plugin["store"]["timeout"] = json!("10s");
    let envoy = tls(Envoy::builder(plugin).workers(1), &port, &authority)
        .replacing("connect_timeout: 0.25s", "connect_timeout: 10s")
        .start();
    let mut connections: Vec<Connection> =
        (0..200).map(|_| Connection::open(envoy.port()).expect("a connection")).collect();
    let active = || envoy.stat("http.fairshare.downstream_rq_active");
    for round in 0..5 {
        redis.pause();
        for (number, connection) in connections.iter_mut().enumerate() {
            let request = by(&format!("tenant-{number}"));
            connection.send_raw(&request.to_bytes()).expect("a request");
        }
        let all_wait = poll_until(Duration::from_secs(8), || (active() == 200).then_some(()));
        redis.resume();
        all_wait.expect("all wait for the store");
        for connection in &mut connections {
            let answer = connection.read_response(false).expect("an answer");
            assert_eq!(answer.status, 200, "round {round}: {}", answer.text());
        }
        poll_until(Duration::from_secs(8), || (active() == 0).then_some(())).expect("all are over");
    }
    let answered = calls(&envoy, "ok");
    assert_eq!(answered, 1000);
    // Of 200 that wait, eight calls at most are under way, and the others share those that come next.
    let exchanges = envoy.stat("cluster.redis.upstream_cx_total");
    assert!(exchanges < 100, "{exchanges} exchanges carry 1000 decisions");
}

/// Goal: of several Redis the primary is asked, also after another one has become it.
#[test]
fn the_primary_is_found_by_its_role() {
    let ports = [free_port().to_string(), free_port().to_string()];
    let replication =
        ["--masteruser", "tester", "--masterauth", "t3ster", "--repl-diskless-sync-delay", "0"];
    let [mut first, mut second] =
        ports.each_ref().map(|port| on_tcp(&[&["--port", port], &replication[..]].concat()));
    for redis in [&mut first, &mut second] {
        restrict(redis);
        run(redis, "redis-cli ACL SETUSER default");
    }
    second.run(&["REPLICAOF", "127.0.0.1", &ports[0]]);
    let values = [
        ("HOST_1", "localhost"),
        ("PORT_1", &*ports[0]),
        ("HOST_2", "127.0.0.1"),
        ("PORT_2", &*ports[1]),
    ];
    let envoy =
        Envoy::builder(plugin("deny", "strict", PASSWORD)).redis_by("primary.yaml", &values);
    let envoy = envoy.start();
    assert_eq!(statuses(&envoy, "acme"), [200, 200, 200, 429]);
    // The fail-over: what was charged has been copied, so nothing is admitted twice.
    let copied = || (second.keys().len() == first.keys().len()).then_some(());
    poll_until(Duration::from_secs(20), copied).expect("a copy");
    second.run(&["REPLICAOF", "NO", "ONE"]);
    first.run(&["REPLICAOF", "127.0.0.1", &ports[1]]);
    let asked = || {
        let seen = statuses(&envoy, "acme");
        assert!(!seen.contains(&200), "what was charged is forgotten: {seen:?}");
        (seen == [429; 4]).then_some(())
    };
    poll_until(Duration::from_secs(20), asked).expect("the new primary is asked");
    assert_eq!(calls(&envoy, "other"), 0);
}

/// Goal: everything that holds with Redis holds with Valkey.
#[test]
fn valkey_works() {
    for (name, scenario) in with_store!(named,) {
        println!("{name}");
        let mut rig = EnvoyRig::with_store(Redis::valkey());
        let valkey = rig.store();
        scenario(&mut rig);
        assert!(valkey.keys().iter().all(|key| valkey.pttl(key) > 0), "{name}: no expiry");
    }
    let mut rig = EnvoyRig::with_store(Redis::valkey());
    let valkey = rig.store();
    let version = format!("{:?}", valkey.run(&["INFO", "server"]));
    assert!(version.contains("valkey_version"), "that is no Valkey: {version}");
    let mut forget = || drop(valkey.run(&["SCRIPT", "FLUSH"]));
    store::red_3_a_forgotten_script_is_sent_again(&mut rig, &mut forget);
}
