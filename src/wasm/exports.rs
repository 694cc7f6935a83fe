//! The callbacks through which the host enters the module.
//!
//! They stand in the place of the SDK's, which keep a boxed context for each request and trap where
//! a number is not one that they know. The linker wants each name once, so these begin with
//! `plugin_` where the host's names begin with `proxy_`; `tools/prune` gives them the host's names
//! and drops the SDK's.
//!
//! A callback may come in any order and with any number, and does at most nothing.
#![allow(unsafe_code)]

use proxy_wasm::types::Action;

use super::vm::with;

// The entry that sets the module up, which the SDK writes.
proxy_wasm::main! {{ super::log::install(); }}

#[unsafe(export_name = "plugin_on_vm_start")]
extern "C" fn on_vm_start(_root: u32, _configuration_size: usize) -> bool {
    log::info!("fairshare {} starts", env!("CARGO_PKG_VERSION"));
    true
}

#[unsafe(export_name = "plugin_on_context_create")]
extern "C" fn on_context_create(context: u32, root: u32) {
    with(|vm| vm.create(context, root));
}

#[unsafe(export_name = "plugin_on_configure")]
extern "C" fn on_configure(root: u32, _configuration_size: usize) -> bool {
    with(|vm| vm.configure(root)).unwrap_or(false)
}

#[unsafe(export_name = "plugin_on_tick")]
extern "C" fn on_tick(root: u32) {
    with(|vm| vm.on_tick(root));
}

#[unsafe(export_name = "plugin_on_queue_ready")]
extern "C" fn on_queue_ready(root: u32, queue: u32) {
    with(|vm| vm.on_queue_ready(root, queue));
}

#[unsafe(export_name = "plugin_on_http_call_response")]
extern "C" fn on_http_call_response(
    root: u32,
    call: u32,
    headers: usize,
    _body_size: usize,
    _trailers: usize,
) {
    with(|vm| vm.on_call_response(root, call, headers));
}

#[unsafe(export_name = "plugin_on_request_headers")]
extern "C" fn on_request_headers(stream: u32, _headers: usize, _end_of_stream: u32) -> Action {
    with(|vm| vm.on_request_headers(stream)).unwrap_or(Action::Pause)
}

#[unsafe(export_name = "plugin_on_response_headers")]
extern "C" fn on_response_headers(stream: u32, _headers: usize, _end_of_stream: u32) -> Action {
    with(|vm| vm.on_response_headers(stream));
    Action::Continue
}

#[unsafe(export_name = "plugin_on_delete")]
extern "C" fn on_delete(context: u32) {
    with(|vm| vm.delete(context));
}
