//! The `log` crate's lines in the host's log.

use log::{Level, LevelFilter, Log, Metadata, Record};
use proxy_wasm::types::LogLevel;

use super::abi;

struct HostLog;

static HOST_LOG: HostLog = HostLog;

/// Sends log lines of level "info" and above to the host.
pub(super) fn install() {
    // A second call finds the logger in place.
    if log::set_logger(&HOST_LOG).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

impl Log for HostLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = match record.level() {
                Level::Trace => LogLevel::Trace,
                Level::Debug => LogLevel::Debug,
                Level::Info => LogLevel::Info,
                Level::Warn => LogLevel::Warn,
                Level::Error => LogLevel::Error,
            };
            abi::log(level, &record.args().to_string());
        }
    }

    fn flush(&self) {}
}
