//! `prune IN OUT [INPUTS]` rewrites a proxy-wasm module with only the exports that the plugin needs.
//!
//! The SDK exports every callback of the ABI. The host calls each one that it finds, so an empty
//! callback costs a switch into the VM on every request. Without those exports the code behind them
//! is unreachable too, and is dropped together with names and tool notes (custom sections).
//!
//! The plugin's own callbacks cannot have the names of the SDK's before that. They get them here:
//! what is exported as `plugin_on_…` becomes `proxy_on_…`.
//!
//! INPUTS is a text that says what the module was built from. It stays with the module, so that a
//! test can tell whether it was built from what lies beside it.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::{env, fs};

use walrus::{Module, ModuleConfig, RawCustomSection};

/// What the SDK exports and the plugin needs.
const SDK_EXPORTS: &[&str] =
    &["memory", "_initialize", "proxy_abi_version_0_2_1", "proxy_on_memory_allocate"];

/// How the names of the plugin's own callbacks begin, and how the host's names begin.
const OWN_PREFIX: &str = "plugin_on_";
const HOST_PREFIX: &str = "proxy_on_";

/// The plugin's callbacks, and the one list of them, by the names that the host knows.
const CALLBACKS: &[&str] = &[
    "proxy_on_vm_start",
    "proxy_on_context_create",
    "proxy_on_configure",
    "proxy_on_tick",
    "proxy_on_queue_ready",
    "proxy_on_http_call_response",
    "proxy_on_request_headers",
    "proxy_on_response_headers",
    "proxy_on_delete",
];

/// The custom section that holds INPUTS.
const INPUTS_SECTION: &str = "fairshare.inputs";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let (input, output, inputs) = match args.as_slice() {
        [input, output] => (input, output, None),
        [input, output, inputs] => (input, output, Some(inputs.as_str())),
        _ => {
            eprintln!("usage: prune IN.wasm OUT.wasm [INPUTS]");
            return ExitCode::from(2);
        }
    };
    match prune_file(input, output, inputs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("prune: {message}");
            ExitCode::FAILURE
        }
    }
}

fn prune_file(input: &str, output: &str, inputs: Option<&str>) -> Result<(), String> {
    let bytes = fs::read(input).map_err(|error| format!("cannot read {input}: {error}"))?;
    let pruned = prune(&bytes, inputs).map_err(|error| format!("{input}: {error}"))?;
    fs::write(output, pruned).map_err(|error| format!("cannot write {output}: {error}"))
}

/// The module in `bytes` with the wanted exports, what they reach, `inputs`, and nothing else.
fn prune(bytes: &[u8], inputs: Option<&str>) -> Result<Vec<u8>, String> {
    let mut config = ModuleConfig::new();
    config.generate_name_section(false).generate_producers_section(false);
    let mut module =
        config.parse(bytes).map_err(|error| format!("not a WebAssembly module: {error:#}"))?;
    choose_exports(&mut module)?;
    remove_custom_sections(&mut module);
    if let Some(inputs) = inputs {
        let data = inputs.as_bytes().to_vec();
        module.customs.add(RawCustomSection { name: INPUTS_SECTION.to_owned(), data });
    }
    walrus::passes::gc::run(&mut module);
    Ok(module.emit_wasm())
}

/// Leaves the exports that the host is to see, by its names.
///
/// # Errors
///
/// The names of all that `module` does not have.
fn choose_exports(module: &mut Module) -> Result<(), String> {
    let mut missing: BTreeSet<&str> = SDK_EXPORTS.iter().chain(CALLBACKS).copied().collect();
    let mut unwanted = Vec::new();
    for export in module.exports.iter_mut() {
        let own = export.name.strip_prefix(OWN_PREFIX).map(|rest| format!("{HOST_PREFIX}{rest}"));
        let wanted = match &own {
            Some(name) => CALLBACKS.contains(&name.as_str()),
            None => SDK_EXPORTS.contains(&export.name.as_str()),
        };
        if !wanted {
            unwanted.push(export.id());
            continue;
        }
        export.name = own.unwrap_or_else(|| export.name.clone());
        missing.remove(export.name.as_str());
    }
    unwanted.into_iter().for_each(|id| module.exports.delete(id));
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<&str> = missing.into_iter().collect();
    Err(format!(
        "the module does not export what becomes {}; Envoy needs all of SDK_EXPORTS and CALLBACKS (tools/prune/src/main.rs)",
        missing.join(", ")
    ))
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

    /// The names that the linker sees: of the SDK's callbacks and of the plugin's.
    fn linked() -> Vec<String> {
        let own = |name: &&str| name.replacen(HOST_PREFIX, OWN_PREFIX, 1);
        let plugin = CALLBACKS.iter().map(own);
        SDK_EXPORTS.iter().chain(CALLBACKS).map(ToString::to_string).chain(plugin).collect()
    }

    fn pruned(exports: &[String]) -> Result<Vec<u8>, String> {
        let names: Vec<&str> = exports.iter().map(String::as_str).collect();
        prune(&module_with(&names), None)
    }

    #[test]
    fn keeps_wanted_exports_and_drops_the_rest() {
        let mut exports = linked();
        exports.push("proxy_on_request_body".into());
        exports.push("plugin_on_request_body".into());
        let wanted: Vec<&str> = SDK_EXPORTS.iter().chain(CALLBACKS).copied().collect();
        assert_eq!(export_names(&pruned(&exports).unwrap()), wanted);
    }

    #[test]
    fn drops_functions_that_nothing_reaches_any_more() {
        let module = Module::from_buffer(&pruned(&linked()).unwrap()).unwrap();
        let without_memory = SDK_EXPORTS.len() - 1;
        assert_eq!(module.funcs.iter().count(), without_memory + CALLBACKS.len());
    }

    #[test]
    fn drops_custom_sections_but_its_own() {
        let mut module = Module::from_buffer(&module_with(
            &linked().iter().map(String::as_str).collect::<Vec<_>>(),
        ))
        .unwrap();
        module.customs.add(RawCustomSection { name: "notes".into(), data: vec![1, 2, 3] });
        let kept = |pruned: Vec<u8>| {
            let module = Module::from_buffer(&pruned).unwrap();
            module.customs.iter().map(|(_, section)| section.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kept(prune(&module.emit_wasm(), None).unwrap()), [""; 0]);
        assert_eq!(kept(prune(&module.emit_wasm(), Some("abc")).unwrap()), [INPUTS_SECTION]);
    }

    #[test]
    fn a_callback_of_the_sdk_stands_in_for_none_of_the_plugin() {
        let mut exports = linked();
        exports.retain(|name| name != "plugin_on_tick");
        assert!(pruned(&exports).unwrap_err().contains("becomes proxy_on_tick;"));
    }

    #[test]
    fn names_every_missing_export() {
        let error = prune(&module_with(&["memory", "_initialize"]), None).unwrap_err();
        assert!(error.contains("proxy_on_configure, proxy_on_context_create"), "{error}");
    }

    #[test]
    fn refuses_what_is_no_module() {
        assert!(prune(b"hello", None).unwrap_err().contains("not a WebAssembly module"));
    }
}
