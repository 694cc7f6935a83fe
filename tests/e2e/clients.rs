use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, io::BufRead, io::BufReader};

use serde_json::json;

use crate::scenarios::{node_limit, window};
use crate::support::envoy::Envoy;
use crate::support::tools::repository;

/// The Python that has the stock clients: `CLIENTS_PYTHON`, or what `envoy/test.sh` has put up.
fn python() -> Command {
    let named = env::var_os("CLIENTS_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| repository().join(".tools/clients/bin/python"));
    assert!(
        python.is_file(),
        "{} is missing: run ./envoy/test.sh once, which gets it, or set CLIENTS_PYTHON to a Python with grpcio and urllib3",
        python.display()
    );
    Command::new(python)
}

/// What a client prints.
fn run(script: &str, arguments: &[u32]) -> Vec<String> {
    let script = repository().join("tests/clients").join(script);
    let arguments = arguments.iter().map(u32::to_string);
    let output = python().arg(script).args(arguments).output().expect("python");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// A gRPC service, killed with the value.
struct GrpcServer {
    process: Child,
    port: u16,
}

impl GrpcServer {
    fn start() -> Self {
        let script = repository().join("tests/clients/grpc_server.py");
        let mut process =
            python().arg(script).stdout(Stdio::piped()).spawn().expect("a gRPC service");
        let mut line = String::new();
        let output = process.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("its port");
        let port = line.trim().parse().expect("a port");
        Self { process, port }
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// O11: a stock HTTP client that heeds `Retry-After`, as its library does by itself, gets all of its
/// requests through, however far beyond the limit it is.
#[test]
fn rate_limited_client_recovers() {
    let envoy = Envoy::builder(node_limit(json!({"tenant": window(4, "1s")}))).start();
    let told = run("http_client.py", &[envoy.port().into(), 12, 10, 1]).concat();
    let (admitted, refused) = told.split_once(' ').expect("two numbers");
    assert_eq!(admitted, "12");
    assert!((1..=8).contains(&refused.parse::<u32>().expect("a number")), "{refused}");
    assert_eq!(envoy.upstream().count(), 12);
}

/// O11: a stock gRPC client without a retry policy sees RESOURCE_EXHAUSTED, and with one recovers.
#[test]
fn rate_limited_grpc_client_recovers() {
    let server = GrpcServer::start();
    let http_2 = "  - name: upstream\n    type: STATIC\n    typed_extension_protocol_options:\n      \
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n        \
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n        \
        explicit_http_config: {http2_protocol_options: {}}\n";
    let envoy = Envoy::builder(node_limit(json!({"tenant": window(3, "1s")})))
        .upstream_port(server.port)
        .replacing("  - name: upstream\n    type: STATIC\n", http_2)
        .start();
    let port = envoy.port().into();
    let plain = run("grpc_client.py", &[port, 4, 0]);
    assert_eq!(plain[..3], ["OK", "OK", "OK"]);
    assert!(plain[3].starts_with("RESOURCE_EXHAUSTED Limit dns allows"), "{}", plain[3]);
    assert_eq!(run("grpc_client.py", &[port, 8, 1]), ["OK"; 8]);
}

/// O11: with the documented rates of the node's defaults, a stock client that goes as fast as it can
/// is never refused.
#[test]
fn default_limits_never_throttle_stock_client() {
    let plugin = include_str!("../../envoy/plugin/node-rates.json");
    let envoy = Envoy::builder(plugin).start();
    let told = run("http_client.py", &[envoy.port().into(), 1500, 0, 8]);
    assert_eq!(told, ["1500 0"]);
}
