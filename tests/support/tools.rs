//! Finds the programs that the tests run, and builds the module that they test.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Envoy to test with.
pub fn envoy() -> PathBuf {
    program("envoy", "ENVOY_BIN")
}

/// A program: named by `variable`, on PATH, or put into `.tools/bin` by the scripts in `envoy/`.
pub fn program(name: &str, variable: &str) -> PathBuf {
    if let Some(named) = env::var_os(variable).filter(|value| !value.is_empty()) {
        let named = PathBuf::from(named);
        assert!(named.is_file(), "{variable} names {}, which is no file", named.display());
        return named;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([repository().join(".tools/bin")])
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| {
            panic!("no {name} on PATH or in .tools/bin: run ./envoy/test.sh once, which gets it, or set {variable}")
        })
}

/// The module under test: `FAIRSHARE_WASM`, else `target/fairshare.wasm`, built from this tree.
///
/// A module left over from an earlier tree would test the wrong code, so it is built here unless
/// `FAIRSHARE_WASM_FRESH=1` says that the caller has just done so.
pub fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        if let Some(named) = env::var_os("FAIRSHARE_WASM").filter(|value| !value.is_empty()) {
            return fs::canonicalize(&named)
                .unwrap_or_else(|error| panic!("FAIRSHARE_WASM names {named:?}: {error}"));
        }
        if env::var_os("FAIRSHARE_WASM_FRESH").is_none_or(|value| value != "1") {
            build_module();
        }
        let module = repository().join("target/fairshare.wasm");
        assert!(module.is_file(), "target/fairshare.wasm is missing: run ./wasm-build.sh");
        module
    })
}

/// The module with the feature `test-trap`, built from this tree into a place of its own.
pub fn trapping_module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let directory = repository().join("target/test-trap");
        let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.current_dir(repository());
        build.args(["build", "--release", "--lib", "--no-default-features", "--locked"]);
        build.args(["--features", "test-trap", "--target", "wasm32-wasip1", "--target-dir"]);
        let output = build.arg(&directory).output().expect("cargo");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (built, pruned) = (
            directory.join("wasm32-wasip1/release/fairshare.wasm"),
            directory.join("fairshare.wasm"),
        );
        prune(&built, &pruned);
        pruned
    })
}

/// As `wasm-build.sh` does: what cargo builds is no module that a host can use.
fn prune(module: &Path, into: &Path) {
    let mut prune = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    prune.current_dir(repository()).env_remove("CARGO_TARGET_DIR");
    prune.args(["run", "--quiet", "--release", "--locked", "--manifest-path"]);
    prune.args(["tools/prune/Cargo.toml", "--target-dir", "target/tools", "--"]);
    let output = prune.arg(module).arg(into).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `./wasm-build.sh`, one test process at a time.
fn build_module() {
    let target = repository().join("target");
    fs::create_dir_all(&target).expect("the directory target");
    let lock = File::create(target.join("wasm-build.lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let output = Command::new(repository().join("wasm-build.sh")).output().expect("wasm-build.sh");
    assert!(
        output.status.success(),
        "./wasm-build.sh failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
