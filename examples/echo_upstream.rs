//! The upstream behind the demonstration proxy: `echo_upstream [--port N]`, 0 or none for a free port.
//!
//! Prints `listening on 127.0.0.1:PORT` and serves until it is stopped. What a request can ask of it
//! stands in `tests/support/upstream.rs`, which the end-to-end tests use in their own process.
#![allow(dead_code, unreachable_pub, reason = "the tests use more of the upstream")]
#![allow(clippy::expect_used, clippy::arithmetic_side_effects, reason = "a tool for trying things")]

#[path = "../tests/support/upstream.rs"]
mod upstream;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let port = match args.as_slice() {
        [] => Some(0),
        ["--port", port] => port.parse().ok(),
        _ => None,
    };
    let Some(port) = port else {
        eprintln!("usage: echo_upstream [--port N]");
        return ExitCode::from(2);
    };
    let upstream = match upstream::Upstream::start_on(port) {
        Ok(upstream) => upstream,
        Err(error) => {
            eprintln!("echo_upstream: cannot listen on 127.0.0.1:{port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("listening on {}", upstream.address());
    loop {
        std::thread::park();
    }
}
