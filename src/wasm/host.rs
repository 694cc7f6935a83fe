//! The proxy as the filter's host.

use std::time::Duration;

use proxy_wasm::hostcalls;

use super::abi::{self, Failure, Map};
use crate::filter::{MetricId, Reply};
use crate::host::{CallId, Host, StoreCall, StreamId, WakeFailure};
use crate::store::StoreError;
use crate::store::shared_data::{SharedData, SharedDataFailure, Swap, Version, Versioned};

/// The key that numbers the wake-up queues of all workers.
const QUEUE_NUMBERS: &str = "fairshare/1/queues";

/// Tries for a number of one's own. Only other workers that start at the same moment compete.
const NUMBER_TRIES: u32 = 64;

/// The proxy, from one root context's point of view.
#[derive(Debug, Default)]
pub(super) struct WasmHost {
    /// The queue to which this worker sends itself a message to be called back.
    queue: Option<u32>,
    /// The host's number of each metric.
    metrics: Vec<Option<u32>>,
}

impl WasmHost {
    /// Defines the metrics. Done once for a configuration, because the host keeps each definition.
    pub(super) fn define(&mut self, names: &[String]) {
        self.metrics = names.iter().map(|name| abi::define_counter(name).ok()).collect();
    }

    /// Whether `queue` is the one that wakes this worker.
    pub(super) fn is_own_queue(&self, queue: u32) -> bool {
        self.queue == Some(queue)
    }

    fn wake_queue(&mut self) -> Result<u32, Failure> {
        if let Some(queue) = self.queue {
            return Ok(queue);
        }
        let queue = abi::register_queue(&format!("fairshare/wake/{}", own_number()?))?;
        self.queue = Some(queue);
        Ok(queue)
    }
}

/// A number that no other caller in the process gets.
fn own_number() -> Result<u64, Failure> {
    for _ in 0..NUMBER_TRIES {
        let (number, seen) = match abi::shared_data(QUEUE_NUMBERS) {
            Ok((bytes, cas)) => {
                (u64::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default()), Some(cas))
            }
            Err(Failure::NotFound) => (0, None),
            Err(failure) => return Err(failure),
        };
        let next = number.wrapping_add(1);
        match abi::set_shared_data(QUEUE_NUMBERS, &next.to_le_bytes(), seen) {
            Ok(()) => return Ok(number),
            Err(Failure::CasMismatch) => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::CasMismatch)
}

impl SharedData for WasmHost {
    fn get(&mut self, key: &str) -> Result<Versioned, SharedDataFailure> {
        match abi::shared_data(key) {
            Ok((bytes, cas)) => Ok(Versioned { bytes, version: Version::At(cas) }),
            Err(Failure::NotFound) => Ok(Versioned { bytes: vec![], version: Version::Absent }),
            Err(_) => Err(SharedDataFailure),
        }
    }

    fn swap(&mut self, key: &str, bytes: &[u8], seen: Version) -> Result<Swap, SharedDataFailure> {
        let seen = match seen {
            Version::Absent => None,
            Version::At(cas) => Some(cas),
        };
        match abi::set_shared_data(key, bytes, seen) {
            Ok(()) => Ok(Swap::Done),
            Err(Failure::CasMismatch) => Ok(Swap::Lost),
            Err(_) => Err(SharedDataFailure),
        }
    }
}

impl Host for WasmHost {
    fn wake(&mut self) -> Result<(), WakeFailure> {
        let queue = self.wake_queue().map_err(|_| WakeFailure)?;
        abi::enqueue(queue).map_err(|_| WakeFailure)
    }

    fn call_store(&mut self, call: &StoreCall<'_>) -> Result<CallId, StoreError> {
        let headers = vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "fairshare-store"),
        ];
        let timeout = Duration::from_millis(call.timeout.as_millis_ceil());
        hostcalls::dispatch_http_call(call.cluster, headers, Some(call.body), vec![], timeout)
            .map(CallId)
            // There is no such cluster, or no healthy host in it.
            .map_err(|_| StoreError::Unreachable)
    }

    fn resume(&mut self, stream: StreamId) {
        if abi::set_effective_context(stream.0).is_ok() {
            let _ = abi::resume_request();
        }
    }

    fn reply(&mut self, stream: StreamId, reply: &Reply) {
        if abi::set_effective_context(stream.0).is_ok() {
            send(reply);
        }
    }

    fn property(&mut self, path: &[&str]) -> Option<Vec<u8>> {
        abi::property(path).ok()
    }

    fn count(&mut self, metric: MetricId, by: u64) {
        let id = self.metrics.get(metric.0).copied().flatten();
        if let (Some(id), Ok(by @ 1..)) = (id, i64::try_from(by)) {
            let _ = abi::increment(id, by);
        }
    }
}

/// Answers the effective stream. A stream that is gone needs no answer.
pub(super) fn send(reply: &Reply) {
    let Reply { status, headers, body, details, grpc_status } = reply;
    let _ = abi::send_local_response(*status, details, headers, body, *grpc_status);
}

/// The headers of the effective stream's request. None at all where the host has none.
pub(super) fn request_headers() -> Vec<u8> {
    abi::header_map(Map::Request).unwrap_or_default()
}
