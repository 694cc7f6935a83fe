//! `prune IN OUT` rewrites a proxy-wasm module with only the exports that the plugin needs.
//!
//! The SDK exports every callback of the ABI. The host calls each one that it finds, so an empty
//! callback costs a switch into the VM on every request. Without those exports the code behind them
//! is unreachable too, and is dropped together with names and tool notes (custom sections).

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::{env, fs};

use walrus::{Module, ModuleConfig};

/// The exports that stay, and the one list of them. A module that lacks one is an error.
const WANTED_EXPORTS: &[&str] = &[
    "memory",
    "_initialize",
    "proxy_abi_version_0_2_1",
    "proxy_on_memory_allocate",
    "proxy_on_vm_start",
    "proxy_on_context_create",
    "proxy_on_configure",
    "proxy_on_tick",
    "proxy_on_queue_ready",
    "proxy_on_http_call_response",
    "proxy_on_request_headers",
    "proxy_on_response_headers",
    "proxy_on_log",
    "proxy_on_done",
    "proxy_on_delete",
];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let [input, output] = args.as_slice() else {
        eprintln!("usage: prune IN.wasm OUT.wasm");
        return ExitCode::from(2);
    };
    match prune_file(input, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("prune: {message}");
            ExitCode::FAILURE
        }
    }
}

fn prune_file(input: &str, output: &str) -> Result<(), String> {
    let bytes = fs::read(input).map_err(|error| format!("cannot read {input}: {error}"))?;
    let pruned = prune(&bytes).map_err(|error| format!("{input}: {error}"))?;
    fs::write(output, pruned).map_err(|error| format!("cannot write {output}: {error}"))
}

/// The module in `bytes` with the wanted exports, what they reach, and nothing else.
fn prune(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut config = ModuleConfig::new();
    config.generate_name_section(false).generate_producers_section(false);
    let mut module =
        config.parse(bytes).map_err(|error| format!("not a WebAssembly module: {error:#}"))?;
    check_exports(&module)?;
    remove_other_exports(&mut module);
    remove_custom_sections(&mut module);
    walrus::passes::gc::run(&mut module);
    Ok(module.emit_wasm())
}

/// Fails with the names of all wanted exports that `module` does not have.
fn check_exports(module: &Module) -> Result<(), String> {
    let present: BTreeSet<&str> =
        module.exports.iter().map(|export| export.name.as_str()).collect();
    let missing: Vec<&str> =
        WANTED_EXPORTS.iter().copied().filter(|name| !present.contains(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the module does not export {}; Envoy needs all of WANTED_EXPORTS (tools/prune/src/main.rs)",
        missing.join(", ")
    ))
}

fn remove_other_exports(module: &mut Module) {
    let unwanted: Vec<_> = module
        .exports
        .iter()
        .filter(|export| !WANTED_EXPORTS.contains(&export.name.as_str()))
        .map(walrus::Export::id)
        .collect();
    for id in unwanted {
        module.exports.delete(id);
    }
}

fn remove_custom_sections(module: &mut Module) {
    let sections: Vec<_> = module.customs.iter().map(|(id, _)| id).collect();
    for id in sections {
        module.customs.delete(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module whose every export is one empty function, apart from its memory.
    fn module_with(exports: &[&str]) -> Vec<u8> {
        let mut module = Module::default();
        let memory = module.memories.add_local(false, false, 1, None, None);
        for name in exports {
            if *name == "memory" {
                module.exports.add(name, memory);
                continue;
            }
            let mut function = walrus::FunctionBuilder::new(&mut module.types, &[], &[]);
            function.func_body();
            let id = function.finish(vec![], &mut module.funcs);
            module.exports.add(name, id);
        }
        module.emit_wasm()
    }

    fn export_names(bytes: &[u8]) -> Vec<String> {
        let module = Module::from_buffer(bytes).unwrap();
        module.exports.iter().map(|export| export.name.clone()).collect()
    }

    #[test]
    fn keeps_wanted_exports_and_drops_the_rest() {
        let mut exports = WANTED_EXPORTS.to_vec();
        exports.push("proxy_on_request_body");
        let pruned = prune(&module_with(&exports)).unwrap();
        assert_eq!(export_names(&pruned), WANTED_EXPORTS);
    }

    #[test]
    fn drops_functions_that_nothing_reaches_any_more() {
        let mut exports = WANTED_EXPORTS.to_vec();
        exports.push("proxy_on_request_body");
        let pruned = prune(&module_with(&exports)).unwrap();
        let module = Module::from_buffer(&pruned).unwrap();
        assert_eq!(module.funcs.iter().count(), WANTED_EXPORTS.len() - 1);
    }

    #[test]
    fn drops_custom_sections() {
        let mut module = Module::from_buffer(&module_with(WANTED_EXPORTS)).unwrap();
        module.customs.add(walrus::RawCustomSection { name: "notes".into(), data: vec![1, 2, 3] });
        let pruned = prune(&module.emit_wasm()).unwrap();
        assert_eq!(Module::from_buffer(&pruned).unwrap().customs.iter().count(), 0);
    }

    #[test]
    fn names_every_missing_export() {
        let error = prune(&module_with(&["memory", "_initialize"])).unwrap_err();
        assert!(error.contains("proxy_on_configure, proxy_on_tick"), "{error}");
    }

    #[test]
    fn refuses_what_is_no_module() {
        assert!(prune(b"hello").unwrap_err().contains("not a WebAssembly module"));
    }
}
