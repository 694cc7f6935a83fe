//! An Envoy for one variant: the same connection manager for all, with different filters.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::machine;
use crate::support::client::Request;
use crate::support::process::{Process, TempDir};
use crate::support::{stats, tools};

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running Envoy, killed with the value.
pub(crate) struct Proxy {
    process: Process,
    admin_port: u16,
    port: u16,
    start_cpu_ns: u64,
    // Last, so that the process is gone before its files are.
    directory: TempDir,
}

/// What an Envoy is started with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// HTTP filters before the router.
    pub(crate) filters: Vec<Value>,
    /// Clusters besides the store's.
    pub(crate) clusters: Vec<Value>,
    pub(crate) route: Value,
    pub(crate) workers: u32,
    /// The Unix socket of a Redis, where the filter is to reach one.
    pub(crate) redis: Option<PathBuf>,
    /// Words before the command line: to give it another clock.
    pub(crate) wrapper: Vec<String>,
}

// === impl Setup ===

impl Setup {
    /// One worker, answers 200 by itself, and has these filters.
    pub(crate) fn new(filters: Vec<Value>) -> Self {
        let route = json!({"direct_response": {"status": 200, "body": {"inline_string": "ok"}}});
        let (clusters, redis, wrapper) = (Vec::new(), None, Vec::new());
        Self { filters, clusters, route, workers: 1, redis, wrapper }
    }

    pub(crate) fn redis(mut self, socket: &Path) -> Self {
        self.redis = Some(socket.to_owned());
        self
    }

    pub(crate) fn workers(mut self, workers: u32) -> Self {
        self.workers = workers;
        self
    }

    /// Has a route that leads to a cluster, for filters that ask for one. A fault answers 200 before
    /// anything is sent there, so that no upstream takes a share of the machine.
    pub(crate) fn routed(mut self) -> Self {
        self.route = json!({"route": {"cluster": "nowhere"}});
        self.clusters.push(json!({"name": "nowhere", "type": "STATIC"}));
        self.filters.push(json!({
            "name": "envoy.filters.http.fault",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
                "abort": {"http_status": 200, "percentage": {"numerator": 100}},
            },
        }));
        self
    }

    pub(crate) fn start(&self) -> Proxy {
        Proxy::start(self)
    }

    fn bootstrap(&self) -> Value {
        let mut filters = self.filters.clone();
        filters.push(router());
        let mut route = self.route.clone();
        route["match"] = json!({"prefix": "/"});
        let mut listeners = vec![json!({
            "name": "bench",
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
            "filter_chains": [{"filters": [connection_manager("bench", &route, &filters, &json!({
                "use_remote_address": true,
                "normalize_path": true,
                "merge_slashes": true,
                "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD",
            }))]}],
        })];
        let mut clusters = self.clusters.clone();
        let mut extensions = Vec::new();
        if let Some(socket) = &self.redis {
            extensions.push(json!({
                "name": "envoy.bootstrap.internal_listener",
                "typed_config": {"@type": INTERNAL_LISTENER},
            }));
            listeners.push(tunnel_listener());
            clusters.extend(tunnel_clusters(socket));
        }
        json!({
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
            "bootstrap_extensions": extensions,
            "static_resources": {"listeners": listeners, "clusters": clusters},
        })
    }
}

const INTERNAL_LISTENER: &str =
    "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener";

fn router() -> Value {
    json!({
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        },
    })
}

fn connection_manager(name: &str, route: &Value, filters: &[Value], more: &Value) -> Value {
    let mut config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {
            "name": name,
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}],
        },
        "http_filters": filters,
    });
    for (field, value) in more.as_object().expect("an object") {
        config[field] = value.clone();
    }
    json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": config})
}

/// The tunnel to Redis, as `envoy/envoy.yaml` has it.
fn tunnel_listener() -> Value {
    let route = json!({
        "match": {"prefix": "/"},
        "route": {
            "cluster": "redis",
            "timeout": "0s",
            "upgrade_configs": [
                {"upgrade_type": "CONNECT", "connect_config": {"allow_post": true}},
            ],
        },
    });
    let more = json!({"codec_type": "HTTP2", "generate_request_id": false});
    json!({
        "name": "redis_tunnel",
        "internal_listener": {},
        "filter_chains": [{
            "filters": [connection_manager("redis_tunnel", &route, &[router()], &more)],
        }],
    })
}

fn tunnel_clusters(socket: &Path) -> [Value; 2] {
    let transport = "type.googleapis.com/envoy.extensions.transport_sockets";
    [
        json!({
            "name": "fairshare_redis",
            "type": "STATIC",
            "connect_timeout": "1s",
            "typed_extension_protocol_options": http2_options(),
            "transport_socket": {
                "name": "envoy.transport_sockets.internal_upstream",
                "typed_config": {
                    "@type": format!("{transport}.internal_upstream.v3.InternalUpstreamTransport"),
                    "transport_socket": {
                        "name": "envoy.transport_sockets.raw_buffer",
                        "typed_config": {"@type": format!("{transport}.raw_buffer.v3.RawBuffer")},
                    },
                },
            },
            "load_assignment": assignment(
                "fairshare_redis",
                &json!({"envoy_internal_address": {"server_listener_name": "redis_tunnel"}}),
            ),
        }),
        json!({
            "name": "redis",
            "type": "STATIC",
            "connect_timeout": "0.25s",
            "load_assignment": assignment("redis", &json!({"pipe": {"path": socket}})),
        }),
    ]
}

/// A cluster of one Unix socket that speaks HTTP/2.
pub(crate) fn http2_cluster(name: &str, socket: &Path) -> Value {
    let address = json!({"pipe": {"path": socket}});
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": http2_options(),
        "load_assignment": assignment(name, &address),
    })
}

fn http2_options() -> Value {
    json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        },
    })
}

fn assignment(cluster: &str, address: &Value) -> Value {
    json!({
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
    })
}

// === impl Proxy ===

impl Proxy {
    fn start(setup: &Setup) -> Self {
        let directory = TempDir::new("bench");
        let bootstrap = setup.bootstrap().to_string();
        std::fs::write(directory.file("envoy.json"), bootstrap).expect("envoy.json");
        let mut words = setup.wrapper.clone();
        words.push(tools::envoy().to_str().expect("a path in UTF-8").to_owned());
        let mut command = Command::new(words.remove(0));
        command.args(words).current_dir(directory.path());
        command.args(["-c", "envoy.json", "--admin-address-path", "admin"]);
        command.args(["--concurrency", &setup.workers.to_string(), "--disable-hot-restart"]);
        command.args(["--service-node", "bench", "--service-cluster", "bench", "-l", "warn"]);
        let began = Instant::now();
        let process = Process::start(command, directory.file("envoy.log"));
        let mut proxy = Self { process, admin_port: 0, port: 0, start_cpu_ns: 0, directory };
        while !proxy.is_ready() {
            let ended = proxy.process.ended().is_some() || began.elapsed() > START_TIMEOUT;
            assert!(!ended, "Envoy did not start:\n{}", proxy.process.log());
            std::thread::sleep(Duration::from_millis(1));
        }
        proxy.start_cpu_ns = machine::process_cpu_ns(proxy.id());
        proxy
    }

    fn is_ready(&mut self) -> bool {
        let mut ready = || {
            let address = std::fs::read_to_string(self.directory.file("admin")).ok()?;
            self.admin_port = address.rsplit_once(':')?.1.trim().parse().ok()?;
            self.try_admin("/ready")?;
            self.port = stats::listener_port(&self.try_admin("/listeners?format=json")?, "bench")?;
            Some(())
        };
        ready().is_some()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The CPU time that it took until it served. Fails the run where fewer VMs are active by then: they
    /// would have been measured for nothing.
    pub(crate) fn start_cpu_ns(&self, vms: u32) -> u64 {
        let active = stats::sum(&self.prometheus(), "envoy_wasm_envoy_wasm_runtime_v8_active", &[]);
        assert!(active >= u64::from(vms), "{active} of {vms} VMs are active");
        self.start_cpu_ns
    }

    /// The text of `/stats/prometheus`.
    pub(crate) fn prometheus(&self) -> String {
        self.try_admin("/stats/prometheus").expect("Envoy's admin interface")
    }

    /// Fails the run where a VM has failed: what was measured then was not the filter.
    pub(crate) fn expect_no_trap(&self) {
        let log = self.process.log();
        let failed = ["wasm vm failed", "Function: proxy_on"];
        assert!(!failed.iter().any(|text| log.contains(text)), "{log}");
    }

    fn try_admin(&self, target: &str) -> Option<String> {
        let response = Request::get(target).try_send(self.admin_port).ok()?;
        (response.status == 200).then(|| response.text())
    }
}
