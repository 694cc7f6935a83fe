//! What the module is made of: known licences, one registry, and a list that is kept.
//! `./envoy/test.sh supply-chain` asks more, and takes longer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test may fail, and reads files"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::{env, fs};

use serde_json::{Value, json};

/// The repository's files.
mod tree;

/// The bill of materials. `UPDATE_GOLDEN=1` writes it anew.
const BILL: &str = "docs/sbom.cdx.json";

/// Everything that is built here, each with its own lock file.
const MANIFESTS: [&str; 5] = [
    "Cargo.toml",
    "tools/prune/Cargo.toml",
    "tools/module-host/Cargo.toml",
    "tools/empty-plugin/Cargo.toml",
    "fuzz/Cargo.toml",
];

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What cargo knows of the packages behind a manifest.
fn metadata(manifest: &str, arguments: &[&str]) -> Value {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(tree::root());
    cargo.args(["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest]);
    let output = cargo.args(arguments).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn list<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// An SPDX expression; older packages write "/" for "OR".
fn licence(package: &Value) -> String {
    text(package, "license").replace('/', " OR ").replace("  ", " ")
}

/// Whether an expression can be met with the licences that `deny.toml` allows.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let all = expression.split(" AND ").map(|part| part.trim_matches(['(', ')']));
    all.into_iter().all(|part| part.split(" OR ").any(|name| allowed.contains(name)))
}

/// The list `allow` of `deny.toml`.
fn allowed_licences() -> BTreeSet<String> {
    let file = tree::read("deny.toml").text;
    let list = file.split("\nallow = [\n").nth(1).unwrap().split("\n]").next().unwrap();
    list.lines().map(|line| line.trim().trim_matches(['"', ',']).to_owned()).collect()
}

#[test]
fn licences_are_understood() {
    let allowed = ["MIT", "Zlib", "Unicode-3.0"].map(String::from).into();
    assert!(is_allowed("MIT", &allowed) && is_allowed("GPL-3.0 OR MIT", &allowed));
    assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0", &allowed));
    assert!(!is_allowed("(MIT OR Apache-2.0) AND GPL-3.0", &allowed));
    assert!(!is_allowed("", &allowed));
}

#[test]
fn everything_comes_from_one_registry_under_known_licences() {
    let allowed = allowed_licences();
    let mut odd = Vec::new();
    for manifest in MANIFESTS {
        for package in list(&metadata(manifest, &["--all-features"]), "packages") {
            let ours = package["source"].is_null();
            let known = ours || text(package, "source") == CRATES_IO;
            if !known || !is_allowed(&licence(package), &allowed) {
                odd.push(format!("{manifest}: {} {}", text(package, "name"), licence(package)));
            }
        }
    }
    assert!(odd.is_empty(), "not from crates.io, or under another licence:\n{}", odd.join("\n"));
}

/// A licence that no package has is one that a later package may have unseen.
#[test]
fn no_licence_is_allowed_for_nobody() {
    let mut unused = allowed_licences();
    for manifest in MANIFESTS {
        for package in list(&metadata(manifest, &["--all-features"]), "packages") {
            let licence = licence(package);
            for name in licence.split(" AND ").flat_map(|part| part.split(" OR ")) {
                unused.remove(name.trim_matches(['(', ')']));
            }
        }
    }
    assert!(unused.is_empty(), "deny.toml allows what nobody has: {unused:?}");
}

/// The packages that the module is built from, by their number; true where their code is in it, and
/// false where it only writes code.
fn parts(metadata: &Value) -> BTreeMap<&str, bool> {
    let is_macro = |id: &str| {
        let package = list(metadata, "packages").iter().find(|package| text(package, "id") == id);
        let targets = list(package.expect("a package"), "targets");
        targets.iter().any(|target| target["kind"] == json!(["proc-macro"]))
    };
    let mut parts = BTreeMap::new();
    let mut open = vec![(text(&metadata["resolve"], "root"), true)];
    while let Some((id, inside)) = open.pop() {
        let inside = inside && !is_macro(id);
        if parts.get(id).is_some_and(|known| *known >= inside) {
            continue;
        }
        parts.insert(id, inside);
        let nodes = list(&metadata["resolve"], "nodes");
        let node = nodes.iter().find(|node| text(node, "id") == id).expect("a node");
        for dependency in list(node, "deps").iter().filter(|dependency| is_normal(dependency)) {
            open.push((text(dependency, "pkg"), inside));
        }
    }
    parts
}

/// Neither for tests nor for a build script.
fn is_normal(dependency: &Value) -> bool {
    list(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null())
}

/// The checksums in the lock file, by name and version.
fn checksums() -> BTreeMap<String, String> {
    let lock = tree::read("Cargo.lock").text;
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").skip(1).filter_map(|package| {
        let name = format!("{}@{}", field(package, "name")?, field(package, "version")?);
        Some((name, field(package, "checksum")?))
    });
    packages.collect()
}

/// The bill of materials in the form of CycloneDX 1.5.
fn bill() -> Value {
    let arguments = ["--no-default-features", "--filter-platform", "wasm32-wasip1"];
    let metadata = metadata("Cargo.toml", &arguments);
    let (parts, checksums) = (parts(&metadata), checksums());
    let packages = list(&metadata, "packages").iter();
    let packages: BTreeMap<&str, &Value> =
        packages.map(|package| (text(package, "id"), package)).collect();
    let label = |id: &str| {
        let package = packages[id];
        format!("{}@{}", text(package, "name"), text(package, "version"))
    };
    let url = |id: &str| format!("pkg:cargo/{}", label(id));
    let component = |(id, inside): (&&str, &bool)| {
        let package = packages[id];
        let mut component = json!({
            "type": "library",
            "bom-ref": url(id),
            "name": package["name"],
            "version": package["version"],
            "purl": url(id),
            "licenses": [{"expression": licence(package)}],
            "scope": if *inside { "required" } else { "excluded" },
        });
        if let Some(checksum) = checksums.get(&label(id)) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        component
    };
    let root = text(&metadata["resolve"], "root");
    let dependencies = list(&metadata["resolve"], "nodes").iter().filter_map(|node| {
        let id = text(node, "id");
        parts.contains_key(id).then(|| {
            let normal = list(node, "deps").iter().filter(|dependency| is_normal(dependency));
            let on: BTreeSet<String> =
                normal.map(|dependency| url(text(dependency, "pkg"))).collect();
            (url(id), on)
        })
    });
    let dependencies: BTreeMap<String, BTreeSet<String>> = dependencies.collect();
    let others: BTreeMap<String, Value> = parts
        .iter()
        .filter(|(id, _)| **id != root)
        .map(|part| (url(part.0), component(part)))
        .collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component((&root, &true))},
        "components": others.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies
            .into_iter()
            .map(|(of, on)| json!({"ref": of, "dependsOn": on}))
            .collect::<Vec<_>>(),
    })
}

#[test]
fn the_bill_of_materials_is_the_modules() {
    let bill = format!("{:#}\n", bill());
    if env::var("UPDATE_GOLDEN").is_ok() {
        fs::write(tree::root().join(BILL), &bill).expect("the bill is written");
    }
    let kept = fs::read_to_string(tree::root().join(BILL)).unwrap_or_default();
    assert!(
        kept == bill,
        "{BILL} is not what the module is made of: UPDATE_GOLDEN=1 cargo test --test supply_chain"
    );
}
