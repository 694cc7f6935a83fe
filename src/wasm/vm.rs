//! What one VM of the host holds: a plugin for each configuration, and whose each request is.
//!
//! The host has one VM for each worker thread and keeps it through changes of the configuration, so
//! there are several configurations at times: the one that serves new requests and those whose last
//! requests are still under way.

use std::cell::RefCell;
use std::rc::Rc;

use log::{error, warn};
use proxy_wasm::types::{Action, BufferType, MapType};

use super::abi;
use super::clock::now;
use super::host::{self, WasmHost};
use crate::config;
use crate::filter::{Reply, Step, Worker};
use crate::host::{CallId, StreamId};
use crate::map::{Map, seeded};
use crate::policy::{HeaderMap, Policy};

/// Everything in one VM, by the host's numbers.
pub(super) struct Vm {
    /// The configurations, by their root context. None until configured.
    plugins: Vec<(u32, Option<Plugin>)>,
    /// Each request's root context.
    streams: Map<u32, u32>,
}

/// A configured worker and its host.
struct Plugin {
    worker: Worker,
    host: WasmHost,
}

thread_local! {
    static VM: RefCell<Vm> = const { RefCell::new(Vm { plugins: Vec::new(), streams: seeded(0) }) };
}

/// Runs `work` on the VM. The host calls back into the module during a host function for memory
/// alone, so the VM is always there; where it were not, the callback does nothing rather than trap.
pub(super) fn with<T>(work: impl FnOnce(&mut Vm) -> T) -> Option<T> {
    VM.with(|vm| vm.try_borrow_mut().ok().map(|mut vm| work(&mut vm)))
}

impl Vm {
    /// The host has a new root context, whose `root` is 0, or a new request.
    pub(super) fn create(&mut self, context: u32, root: u32) {
        if root != 0 {
            self.streams.insert(context, root);
        } else if !self.plugins.iter().any(|(known, _)| *known == context) {
            self.plugins.push((context, None));
        }
    }

    /// Reads the configuration of a root context.
    pub(super) fn configure(&mut self, root: u32) -> bool {
        let document = abi::buffer(BufferType::PluginConfiguration).unwrap_or_default();
        let policy = match config::parse(&document) {
            Ok(policy) => policy,
            Err(errors) => {
                error!("fairshare: the configuration is refused, {} error(s):", errors.len());
                errors.iter().for_each(|line| error!("fairshare: {line}"));
                return false;
            }
        };
        for limit in &policy.limits {
            if let Some(poor) = config::poor_leases(limit).first() {
                warn!("fairshare: limit {}: {poor}", limit.name);
            }
        }
        if let Some((_, plugin)) = self.plugins.iter_mut().find(|(known, _)| *known == root) {
            *plugin = Some(Plugin::new(policy));
        }
        true
    }

    pub(super) fn on_tick(&mut self, root: u32) {
        if let Some(Plugin { worker, host }) = self.plugin(root) {
            worker.on_tick(host, now());
            host.tell_counts();
        }
    }

    pub(super) fn on_queue_ready(&mut self, root: u32, queue: u32) {
        let Some(Plugin { worker, host }) = self.plugin(root) else { return };
        if host.is_own_queue(queue) {
            // One message, one call: an empty queue is no failure here.
            let _ = abi::dequeue(queue);
            worker.on_wake(host, now());
        }
    }

    pub(super) fn on_call_response(&mut self, root: u32, call: u32, headers: usize) {
        let Some(Plugin { worker, host }) = self.plugin(root) else { return };
        let body = host::call_response(headers);
        let body = body.as_deref().map_err(|error| *error);
        worker.on_store_reply(host, CallId(call), body, now());
    }

    pub(super) fn on_request_headers(&mut self, stream: u32) -> Action {
        let Some(Plugin { worker, host }) = self.plugin_of(stream) else {
            // The host asks a plugin that it could not configure: refused, never unlimited.
            host::send(&Reply::unconfigured());
            return Action::Pause;
        };
        if worker.is_off() {
            return Action::Continue;
        }
        let headers = host::headers(MapType::HttpRequestHeaders);
        #[cfg(feature = "test-trap")]
        super::trap::where_asked(&headers);
        match worker.on_request(host, StreamId(stream), HeaderMap::new(&headers), now()) {
            Step::Continue => Action::Continue,
            Step::Pause => Action::Pause,
            Step::Reply(reply) => {
                host::send(&reply);
                Action::Pause
            }
        }
    }

    pub(super) fn on_response_headers(&mut self, stream: u32) {
        let Some(Plugin { worker, host }) = self.plugin_of(stream) else { return };
        let stream = StreamId(stream);
        if worker.watches(stream) {
            let headers = host::headers(MapType::HttpResponseHeaders);
            worker.on_answer(host, stream, HeaderMap::new(&headers), now());
        }
        let Some(fields) = worker.on_response(stream) else { return };
        for (name, value) in fields.pairs() {
            let _ = abi::add_header(MapType::HttpResponseHeaders, name, value);
        }
    }

    /// The host deletes a context. It does so with every request, however that ended, so this is the
    /// one place where a request is let go.
    pub(super) fn delete(&mut self, context: u32) {
        if let Some(root) = self.streams.remove(&context) {
            if let Some(Plugin { worker, host }) = self.plugin(root) {
                worker.on_end(host, StreamId(context), now);
            }
            return;
        }
        if let Some(Plugin { host, .. }) = self.plugin(context) {
            host.tell_counts();
        }
        self.plugins.retain(|(root, _)| *root != context);
    }

    fn plugin_of(&mut self, stream: u32) -> Option<&mut Plugin> {
        let root = *self.streams.get(&stream)?;
        self.plugin(root)
    }

    fn plugin(&mut self, root: u32) -> Option<&mut Plugin> {
        self.plugins.iter_mut().find(|(known, _)| *known == root)?.1.as_mut()
    }
}

impl Plugin {
    fn new(policy: Policy) -> Self {
        let mut host = WasmHost::default();
        let worker =
            Worker::new(Rc::new(policy), abi::random().unwrap_or_else(|| now().as_nanos()));
        host.define(worker.metrics());
        let millis = u32::try_from(worker.tick_period().as_millis_ceil()).unwrap_or(u32::MAX);
        let _ = abi::set_tick_period(millis);
        Self { worker, host }
    }
}
