//! A proxy-wasm filter that does nothing, as the SDK's documentation says to write one.

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::LogLevel;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Warn);
    proxy_wasm::set_http_context(|_, _| Box::new(Empty));
}}

/// A request, to which nothing is done.
struct Empty;

impl Context for Empty {}

impl HttpContext for Empty {}
