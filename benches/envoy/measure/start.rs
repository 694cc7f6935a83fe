use std::fs;

use crate::figures::Figure;
use crate::filters::{fairshare, node_policy};
use crate::proxy::Setup;
use crate::report::Report;
use crate::rounds::Plan;
use crate::support::tools;

/// Workers beyond the first, each of which starts a VM of its own.
const MORE_WORKERS: u32 = 8;

/// The module's bytes, and the CPU time until it can serve: of the first VM, which is what Envoy with one
/// worker needs more than without the filter, V8's own start and the compiling of the module included;
/// and of one VM more, which is what eight workers need more than one, without the filter's share in
/// either. The first is paid once, before Envoy listens; the other for each worker, and again after
/// a trap.
pub(crate) fn start(plan: Plan, report: &mut Report) {
    eprintln!("The module's size and start");
    let bytes = fs::metadata(tools::module()).expect("the module").len();
    report.figure("wasm_bytes", Figure::of(&[bytes as f64]));
    let ours = [fairshare(&node_policy())];
    let cpu_ms = |filters: &[serde_json::Value], workers: u32| {
        let proxy = Setup::new(filters.to_vec()).workers(workers).start();
        let vms = if filters.is_empty() { 0 } else { workers };
        proxy.start_cpu_ns(vms) as f64 / 1e6
    };
    let (mut first, mut further) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds.min(9) {
        let [one, nine] =
            [1, 1 + MORE_WORKERS].map(|workers| cpu_ms(&ours, workers) - cpu_ms(&[], workers));
        first.push(one);
        further.push((nine - one) / f64::from(MORE_WORKERS));
    }
    report.figure("vm_start_ms", Figure::of(&further));
    report.figure("first_vm_start_ms", Figure::of(&first));
}
