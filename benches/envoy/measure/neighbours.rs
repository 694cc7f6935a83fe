use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::load::Load;
use crate::measure::{CONNECTIONS, requests_of};
use crate::report::Report;
use crate::rounds::{Plan, Series, Variant};
use crate::support::ports::free_port;
use crate::support::process::{Process, TempDir, poll_until};

const READY_WITHIN: Duration = Duration::from_secs(10);

/// A proxy other than Envoy.
struct Kind {
    program: &'static str,
    /// Names the program to the benchmark.
    variable: &'static str,
    configuration: fn(u16, bool) -> String,
    /// The variants without and with limits.
    names: [&'static str; 2],
    key: &'static str,
}

/// A running one, killed with the value.
struct Neighbour {
    process: Process,
    port: u16,
    _directory: TempDir,
}

const KINDS: [Kind; 2] = [
    Kind {
        program: "nginx",
        variable: "NGINX_BIN",
        configuration: nginx,
        names: ["nginx, no limit", "nginx, limit_req"],
        key: "nginx_limit_req_cpu_vs_none",
    },
    Kind {
        program: "haproxy",
        variable: "HAPROXY_BIN",
        configuration: haproxy,
        names: ["HAProxy, no limit", "HAProxy, stick table"],
        key: "haproxy_stick_table_cpu_vs_none",
    },
];

/// Each relative to itself: what their limiters add to them.
pub(crate) fn neighbours(plan: Plan, report: &mut Report) {
    for kind in KINDS {
        let Kind { program, variable, names, key, .. } = kind;
        let binary = std::env::var(variable).ok().filter(|path| Path::new(path).is_file());
        let Some(binary) = binary else {
            report.note(format!("{program} is left out: {variable} names none, and ./envoy/bench.sh could not get it."));
            continue;
        };
        let processes = [false, true].map(|limits| Neighbour::start(&kind, &binary, limits));
        let mut variants = [0, 1].map(|index| {
            let Neighbour { process, port, .. } = &processes[index];
            let load = Load::connect(&[*port], CONNECTIONS, requests_of("acme"));
            Variant::new(names[index], load, vec![process.id()])
        });
        let series = Series::measure(program, plan, &mut variants);
        names.iter().for_each(|name| series.expect_refused(name, 0.0..=0.0));
        report.figure(key, series.cpu_ratio(names[1], names[0]));
        report.series(series);
    }
}

impl Neighbour {
    fn start(kind: &Kind, binary: &str, limits: bool) -> Self {
        let program = kind.program;
        let directory = TempDir::new(program);
        let port = free_port();
        let file = directory.file("configuration");
        std::fs::write(&file, (kind.configuration)(port, limits)).expect("a configuration");
        let mut command = Command::new("env");
        if let Ok(libraries) = std::env::var("NEIGHBOUR_LIBRARIES") {
            command.arg(format!("LD_LIBRARY_PATH={libraries}"));
        }
        command.arg(binary).current_dir(directory.path());
        match program {
            "nginx" => command.arg("-p").arg(directory.path()).arg("-c").arg(&file),
            _ => command.args(["-db", "-f"]).arg(&file),
        };
        let process = Process::start(command, directory.file("log"));
        let ready = || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
        let is_ready = poll_until(READY_WITHIN, ready).is_some();
        assert!(is_ready, "{program} did not start:\n{}", process.log());
        Self { process, port, _directory: directory }
    }
}

/// One process without a master. `return` would answer before `limit_req`, so a file of no length is
/// what it serves.
fn nginx(port: u16, limits: bool) -> String {
    let limit = if limits { "limit_req zone=tenants burst=1000000 nodelay;" } else { "" };
    format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr warn;
        events {{ worker_connections 1024; }}
        http {{
          access_log off;
          client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
          uwsgi_temp_path uwsgi; scgi_temp_path scgi;
          keepalive_requests 1000000000; keepalive_time 24h; keepalive_timeout 1h;
          limit_req_zone $http_x_tenant_id zone=tenants:10m rate=1000000r/s;
          server {{ listen 127.0.0.1:{port}; location / {{ {limit} empty_gif; }} }}
        }}\n"
    )
}

fn haproxy(port: u16, limits: bool) -> String {
    let limit = "http-request track-sc0 req.hdr(x-tenant-id)
          http-request deny deny_status 429 if { sc_http_req_rate(0) gt 100000000 }";
    let limit = if limits { limit } else { "" };
    format!(
        "global
          nbthread 1
          maxconn 1000
        defaults
          mode http
          timeout client 1h
          timeout server 1h
          timeout connect 1s
          timeout http-keep-alive 1h
        frontend bench
          bind 127.0.0.1:{port}
          stick-table type string len 64 size 100k expire 60s store http_req_rate(10s)
          {limit}
          http-request return status 200 content-type text/plain string ok\n"
    )
}
