use serde_json::{Value, json};

use crate::scenarios::{by, merged, window};
use crate::support::client::Connection;
use crate::support::envoy::Envoy;

/// IDN-7, D7: invented tenants take a bounded number of bytes, and more of them take no more. Ten
/// limits make each tenant's record ten times as large, so that few tenants fill the slab.
#[test]
fn idn_7_memory_is_bounded_however_many_tenants_there_are() {
    const TENANTS: u32 = 40_000;
    const MIB: u64 = 1 << 20;
    let levels = json!({"tenant": window(5, "1h"), "credential": window(5, "1h")});
    let limits =
        (0..10).map(|number| merged(json!({"name": format!("limit-{number}")}), levels.clone()));
    let plugin = json!({"limits": limits.collect::<Value>()});
    let envoy = Envoy::builder(plugin).start();
    assert_eq!(envoy.send(&by("warm-up")).status, 200);
    let before = envoy.resident_bytes();
    flood(&envoy, 0..TENANTS);
    let first = envoy.resident_bytes();
    flood(&envoy, TENANTS..2 * TENANTS);
    let second = envoy.resident_bytes();
    assert!(first < before + 64 * MIB, "{} MiB", (first - before) / MIB);
    assert!(second < first + 8 * MIB, "{} MiB more", second.saturating_sub(first) / MIB);
}

/// Sends one request for each of many tenants and credentials, on a few connections.
fn flood(envoy: &Envoy, tenants: std::ops::Range<u32>) {
    const CONNECTIONS: u32 = 4;
    std::thread::scope(|scope| {
        for offset in 0..CONNECTIONS {
            let tenants = tenants.clone().skip(usize::try_from(offset).unwrap());
            let mut connection = Connection::open(envoy.port()).expect("a connection");
            scope.spawn(move || {
                for number in tenants.step_by(usize::try_from(CONNECTIONS).unwrap()) {
                    let tenant = format!("tenant-{number}");
                    let request = by(&tenant).header("x-api-key", &tenant);
                    let answer = connection.send(&request).expect("an answer");
                    assert!(matches!(answer.status, 200 | 429), "{}", answer.status);
                }
            });
        }
    });
}
