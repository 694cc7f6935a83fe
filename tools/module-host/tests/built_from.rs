//! The module under test is the one that the sources beside it make.

use std::process::Command;

use wasmi::{Engine, Module};

/// The custom section in which `wasm-build.sh` says what the module was built from.
const SECTION: &str = "fairshare.inputs";

fn built_from(module: &[u8]) -> Option<String> {
    let module = Module::new(&Engine::default(), module).expect("a module");
    let section = module.custom_sections().find(|section| section.name() == SECTION)?;
    Some(String::from_utf8_lossy(section.data()).into_owned())
}

#[test]
fn the_module_is_not_stale() {
    let build = module_host::repository().join("wasm-build.sh");
    let now = Command::new(build).arg("--inputs").output().expect("wasm-build.sh");
    assert!(now.status.success(), "{}", String::from_utf8_lossy(&now.stderr));
    let now = String::from_utf8_lossy(&now.stdout).trim().to_owned();
    assert_eq!(now.len(), 64, "a SHA-256 in hex: {now}");
    let then = built_from(&module_host::module());
    assert_eq!(then, Some(now), "the module was built from other files: run ./wasm-build.sh");
}
