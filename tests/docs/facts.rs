use std::collections::{BTreeMap, BTreeSet};

use fairshare::config;
use fairshare::filter::Metrics;
use fairshare::policy::MAX_LIMITS;
use fairshare::store::StoreError;
use fairshare::store::node::SLOTS;
use fairshare::store::slab::{SLOT_BYTES, SLOT_BYTES_MAX};

use crate::{code_spans, expect_none, pages, prose, tree};

/// Names with this beginning that are no metrics: the store's cluster, and the details of an answer
/// that has no code.
const OTHER_NAMES: [&str; 2] = ["fairshare_redis", "fairshare_unconfigured"];

/// The code's metrics as Prometheus shows them: by name, the values of each label.
fn metrics() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let document = br#"{"limits": [{"name": "dns", "tenant": {"rate": 1}}]}"#;
    let policy = config::parse(document).unwrap();
    let mut metrics = BTreeMap::<_, BTreeMap<_, BTreeSet<_>>>::new();
    for name in Metrics::new(&policy).names() {
        let mut parts = name.split('.');
        let labels = metrics.entry(parts.next().unwrap().to_owned()).or_default();
        for part in parts {
            let (label, value) = part.split_once('=').unwrap();
            labels.entry(label.to_owned()).or_default().insert(value.to_owned());
        }
    }
    metrics
}

#[test]
fn every_metric_is_described_and_no_other() {
    let page = tree::read("docs/operations.md");
    let section =
        page.text.split("\n## ").find(|section| section.starts_with("Metrics\n")).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `fairshare_"));
    let described: BTreeSet<String> =
        rows.map(|row| format!("fairshare_{}", row.split('`').next().unwrap())).collect();
    let real = metrics().into_iter().map(|(name, labels)| {
        let mut labels: Vec<String> = labels.into_keys().collect();
        // Prometheus has no order of labels; the page has the contract's.
        labels.sort_by_key(|label| ["limit", "level", "outcome"].iter().position(|l| l == label));
        if labels.is_empty() { name } else { format!("{name}{{{}}}", labels.join(",")) }
    });
    assert_eq!(described, real.collect());
}

/// Without its rule a label stays in the metric's name.
#[test]
fn every_label_has_its_rule() {
    let labels: BTreeSet<String> = metrics().into_values().flat_map(BTreeMap::into_keys).collect();
    for path in ["envoy/envoy.yaml", "docs/envoy.md"] {
        let text = tree::read(path).text;
        for label in &labels {
            let rule = format!(r"- {{tag_name: {label}, regex: '(\.{label}=([^.]+))'}}");
            assert!(text.contains(&rule), "{path}: {rule}");
        }
    }
}

#[test]
fn every_value_of_a_label_is_described() {
    let operations = tree::read("docs/operations.md").text;
    let store = tree::read("docs/store.md").text;
    let metrics = metrics();
    for outcome in &metrics["fairshare_requests"]["outcome"] {
        assert!(operations.contains(&format!("`{outcome}`")), "{outcome}");
    }
    for code in &metrics["fairshare_refusals"]["code"] {
        assert!(operations.contains(&format!("| `fairshare_{code}` |")), "{code}");
    }
    for error in StoreError::ALL {
        assert!(store.contains(&format!("`{error}`")), "{error}");
    }
}

#[test]
fn names_of_metrics_and_details_are_real() {
    let metrics = metrics();
    let mut known: BTreeSet<String> = metrics.keys().cloned().collect();
    known.extend(
        metrics["fairshare_refusals"]["code"].iter().map(|code| format!("fairshare_{code}")),
    );
    known.extend(OTHER_NAMES.map(String::from));
    let mut unknown = Vec::new();
    for page in pages() {
        for (index, line) in page.text.lines().enumerate() {
            for (at, _) in line.match_indices("fairshare_") {
                let rest = &line[at..];
                let end = rest.find(|c: char| c != '_' && !c.is_ascii_lowercase());
                let name = &rest[..end.unwrap_or(rest.len())];
                // Envoy's own statistics have the plugin's name within theirs.
                let is_part = line[..at].ends_with('_');
                if name != "fairshare_" && !is_part && !known.contains(name) {
                    unknown.push(format!("{}:{}: {name}", page.path, index + 1));
                }
            }
        }
    }
    expect_none("names that the code does not know", &unknown);
}

/// The table of invariants names, for each, tests as `name` (file).
#[test]
fn every_invariant_is_attacked_by_a_test() {
    let page = tree::read("ARCHITECTURE.md");
    let section = page.text.split("## Invariants").nth(1).expect("a section on invariants");
    let section = section.split("\n## ").next().unwrap();
    let mut tests = 0;
    for row in section.lines().filter(|line| line.starts_with("| **")) {
        let cell = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let spans: Vec<&str> = code_spans(cell).collect();
        assert!(
            !spans.is_empty() && spans.len().is_multiple_of(2),
            "no pairs of test and file: {row}"
        );
        for pair in spans.chunks(2) {
            let function = format!("fn {}(", pair[0]);
            assert!(tree::read(pair[1]).text.contains(&function), "{} in {}", pair[0], pair[1]);
            tests += 1;
        }
    }
    assert!(tests >= 10, "only {tests} tests are named");
}

#[test]
fn numbers_of_the_code_are_the_pages_numbers() {
    let operations = tree::read("docs/operations.md").text;
    let mib = SLOTS * u64::try_from(SLOT_BYTES).unwrap() / (1 << 20);
    for fact in [
        format!("{SLOTS} slots"),
        format!("{SLOT_BYTES} bytes"),
        format!("{SLOT_BYTES_MAX} bytes"),
        format!("{mib} MiB"),
    ] {
        assert!(operations.contains(&fact), "docs/operations.md does not say {fact:?}");
    }
    let config = tree::read("docs/config.md").text;
    assert!(config.contains(&format!("1 to {MAX_LIMITS}")));
}

/// Each decision has a number of its own, all have one form, and are listed in ARCHITECTURE.md.
#[test]
fn decisions_have_one_form() {
    let decisions = tree::below(&["docs/decisions"]);
    let list = tree::read("ARCHITECTURE.md").text;
    let mut numbers = BTreeSet::new();
    for decision in &decisions {
        let name = decision.path.strip_prefix("docs/decisions/").expect("the directory");
        let (number, _) = name.split_once('-').expect("a number and a name");
        let is_number = number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit());
        assert!(is_number && numbers.insert(number.to_owned()), "{}", decision.path);
        assert!(decision.text.starts_with(&format!("# {number} ")), "{}", decision.path);
        assert!(list.contains(&decision.path), "{} is not in ARCHITECTURE.md", decision.path);
        let headings: Vec<&str> =
            prose(decision).into_iter().filter_map(|(_, line)| line.strip_prefix("## ")).collect();
        assert_eq!(headings, ["Context", "Decision", "Consequences"], "{}", decision.path);
    }
}

/// Each figure of the benchmarks has its row.
#[test]
fn every_benchmark_is_described() {
    let page = tree::read("docs/benchmarks.md");
    let rows: Vec<&str> = page.text.lines().filter(|line| line.starts_with("| `")).collect();
    let described: BTreeSet<&str> =
        rows.iter().flat_map(|row| code_spans(row.split(" | ").next().unwrap())).collect();
    let keys = tree::read("benches/envoy/keys.rs").text;
    let name =
        |call: &str| Some(call.trim_start().strip_prefix('"')?.split('"').next()?.to_owned());
    let known: BTreeSet<String> = keys.split("key(").filter_map(name).collect();
    assert!(known.len() >= 15, "{known:?}");
    assert_eq!(described, known.iter().map(String::as_str).collect());
}
