//! The proxy-wasm adapter: the host's callbacks in, the host's functions out. No decisions.
//!
//! One root context stands for one configuration in one worker. It and its streams share a
//! [`Plugin`]; the host never calls back into the module during a host function except for memory,
//! so the plugin is never borrowed twice, and where it were, the callback does nothing rather than
//! trap.

mod abi;
mod host;
mod log;
#[cfg(feature = "test-trap")]
mod trap;

use std::cell::RefCell;
use std::rc::Rc;

use ::log::{error, info};
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

use self::abi::{Buffer, Map};
use self::host::WasmHost;
use crate::config;
use crate::filter::{Reply, Step, Worker};
use crate::host::{CallId, StreamId};
use crate::policy::{HeaderMap, Policy};
use crate::store::StoreError;
use crate::units::Instant;

proxy_wasm::main! {{
    log::install();
    proxy_wasm::set_root_context(|_| Box::new(Root::default()));
}}

/// A configured worker and its host.
struct Plugin {
    worker: Worker,
    host: WasmHost,
}

/// None until configured.
type SharedPlugin = Rc<RefCell<Option<Plugin>>>;

/// One configuration in one worker.
#[derive(Default)]
struct Root {
    plugin: SharedPlugin,
}

/// One request.
struct Stream {
    id: StreamId,
    plugin: SharedPlugin,
}

impl Plugin {
    fn new(policy: Policy) -> Self {
        let mut host = WasmHost::default();
        let worker = Worker::new(Rc::new(policy), abi::random());
        host.define(worker.metrics());
        let millis = u32::try_from(worker.tick_period().as_millis_ceil()).unwrap_or(u32::MAX);
        let _ = abi::set_tick_period(millis);
        Self { worker, host }
    }
}

/// Runs `work` on the plugin, if it is configured.
fn with<T>(plugin: &SharedPlugin, work: impl FnOnce(&mut Plugin) -> T) -> Option<T> {
    plugin.try_borrow_mut().ok().and_then(|mut plugin| plugin.as_mut().map(work))
}

fn now() -> Instant {
    Instant::from_nanos(abi::clock_nanos())
}

impl Context for Root {
    fn on_http_call_response(
        &mut self,
        token: u32,
        num_headers: usize,
        _body_size: usize,
        _num_trailers: usize,
    ) {
        let body = read_call_response(num_headers);
        with(&self.plugin, |Plugin { worker, host }| {
            worker.on_store_reply(
                host,
                CallId(token),
                body.as_deref().map_err(|error| *error),
                now(),
            );
        });
    }
}

/// The body of a successful call. No headers at all mean that the connection broke.
fn read_call_response(num_headers: usize) -> Result<Vec<u8>, StoreError> {
    let headers = match num_headers {
        0 => Vec::new(),
        _ => abi::header_map(Map::CallResponse).unwrap_or_default(),
    };
    let status = HeaderMap::new(&headers).pairs().find(|(name, _)| *name == b":status");
    match StoreError::of_status(status.map(|(_, value)| value)) {
        Some(error) => Err(error),
        None => Ok(abi::buffer(Buffer::CallResponseBody).unwrap_or_default()),
    }
}

impl RootContext for Root {
    fn on_vm_start(&mut self, _vm_configuration_size: usize) -> bool {
        info!("fairshare {} starts", env!("CARGO_PKG_VERSION"));
        true
    }

    fn on_configure(&mut self, _plugin_configuration_size: usize) -> bool {
        let document = abi::buffer(Buffer::PluginConfiguration).unwrap_or_default();
        match config::parse(&document) {
            Ok(policy) => {
                if let Ok(mut plugin) = self.plugin.try_borrow_mut() {
                    *plugin = Some(Plugin::new(policy));
                }
                true
            }
            Err(errors) => {
                error!("fairshare: the configuration is refused, {} error(s):", errors.len());
                errors.iter().for_each(|line| error!("fairshare: {line}"));
                false
            }
        }
    }

    fn on_tick(&mut self) {
        with(&self.plugin, |Plugin { worker, host }| worker.on_tick(host, now()));
    }

    fn on_queue_ready(&mut self, queue: u32) {
        with(&self.plugin, |Plugin { worker, host }| {
            if host.is_own_queue(queue) {
                // One message, one call: an empty queue is no failure here.
                let _ = abi::dequeue(queue);
                worker.on_wake(host, now());
            }
        });
    }

    fn create_http_context(&self, context_id: u32) -> Option<Box<dyn HttpContext>> {
        let plugin = Rc::clone(&self.plugin);
        Some(Box::new(Stream { id: StreamId(context_id), plugin }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _num_headers: usize, _end_of_stream: bool) -> Action {
        if with(&self.plugin, |plugin| plugin.worker.is_off()) == Some(true) {
            return Action::Continue;
        }
        let headers = host::request_headers();
        #[cfg(feature = "test-trap")]
        trap::where_asked(&headers);
        let step = with(&self.plugin, |Plugin { worker, host }| {
            worker.on_request(host, self.id, HeaderMap::new(&headers), now())
        });
        match step {
            Some(Step::Continue) => Action::Continue,
            Some(Step::Pause) => Action::Pause,
            Some(Step::Reply(reply)) => {
                host::send(&reply);
                Action::Pause
            }
            // The host asks a plugin that it could not configure: refused, never unlimited.
            None => {
                host::send(&Reply::unconfigured());
                Action::Pause
            }
        }
    }

    fn on_http_response_headers(&mut self, _num_headers: usize, _end_of_stream: bool) -> Action {
        let fields = with(&self.plugin, |Plugin { worker, host }| {
            if worker.watches(self.id) {
                let headers = host::response_headers();
                worker.on_answer(host, self.id, HeaderMap::new(&headers), now());
            }
            worker.on_response(self.id)
        });
        if let Some(fields) = fields.flatten() {
            for (name, value) in fields.pairs() {
                let _ = abi::add_header(Map::Response, name, value);
            }
        }
        Action::Continue
    }
}

/// The host deletes a stream however it ended, so this is the one place where it is let go.
impl Drop for Stream {
    fn drop(&mut self) {
        with(&self.plugin, |Plugin { worker, host }| worker.on_end(host, self.id, now()));
    }
}
