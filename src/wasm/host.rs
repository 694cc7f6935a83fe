//! The proxy as the filter's host.

use proxy_wasm::types::{BufferType, MapType};

use super::abi::{self, Failure};
use super::clock;
use super::counters::Counters;
use crate::filter::{MetricId, Metrics, Reply};
use crate::host::{CallId, Host, StoreCall, StreamId, WakeFailure};
use crate::policy::HeaderMap;
use crate::store::StoreError;
use crate::store::numbers::next_number;
use crate::store::shared_data::{SharedData, SharedDataFailure, Swap, Version, Versioned};

/// The key that numbers the wake-up queues of all workers.
const QUEUE_NUMBERS: &str = "fairshare/1/queues";

/// By this header an `ORIGINAL_DST` cluster of Envoy chooses where it connects to.
const NODE_HEADER: &[u8] = b"x-envoy-original-dst-host";

/// The proxy, from one root context's point of view.
#[derive(Debug, Default)]
pub(super) struct WasmHost {
    /// The queue to which this worker sends itself a message to be called back.
    queue: Option<u32>,
    counters: Counters,
}

impl WasmHost {
    /// Defines the metrics. Done once for a configuration, because the host keeps each definition.
    pub(super) fn define(&mut self, metrics: &Metrics) {
        let numbered = metrics.names().iter().enumerate();
        let define = |(number, name): (usize, &String)| {
            abi::define_metric(metrics.kind(MetricId(number)), name).ok()
        };
        self.counters = Counters::new(numbered.map(define));
    }

    /// Tells the proxy of all counts that it was not told of yet.
    pub(super) fn tell_counts(&mut self) {
        self.counters.tell(clock::last());
    }

    /// Whether `queue` is the one that wakes this worker.
    pub(super) fn is_own_queue(&self, queue: u32) -> bool {
        self.queue == Some(queue)
    }

    fn wake_queue(&mut self) -> Result<u32, WakeFailure> {
        if let Some(queue) = self.queue {
            return Ok(queue);
        }
        let number = next_number(self, QUEUE_NUMBERS).map_err(|_| WakeFailure)?;
        let queue = abi::register_queue(&format!("fairshare/wake/{number}"));
        let queue = queue.map_err(|_| WakeFailure)?;
        self.queue = Some(queue);
        Ok(queue)
    }
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
        let queue = self.wake_queue()?;
        abi::enqueue(queue).map_err(|_| WakeFailure)
    }

    fn call_store(&mut self, call: &StoreCall<'_>) -> Result<CallId, StoreError> {
        // Without a node, the fifth one is left out.
        let headers: [(&[u8], &[u8]); 5] = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/"),
            (b":authority", b"fairshare-store"),
            (NODE_HEADER, call.node.unwrap_or_default().as_bytes()),
        ];
        let headers = headers.get(..if call.node.is_some() { 5 } else { 4 }).unwrap_or_default();
        let millis = u32::try_from(call.timeout.as_millis_ceil()).unwrap_or(u32::MAX);
        abi::http_call(call.cluster, headers, call.body, millis)
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
        self.counters.add(metric.0, by, clock::last());
    }

    fn record(&mut self, metric: MetricId, value: u64) {
        if let Some(id) = self.counters.number(metric.0) {
            let _ = abi::record(id, value);
        }
    }
}

/// Answers the effective stream. A stream that is gone needs no answer.
pub(super) fn send(reply: &Reply) {
    let Reply { status, body, details, grpc_status, .. } = reply;
    let headers = reply.header_map();
    let _ = abi::send_local_response(*status, details, headers, body, *grpc_status);
}

/// Headers of the effective stream. None at all where the host has none.
pub(super) fn headers(map: MapType) -> Vec<u8> {
    abi::header_map(map).unwrap_or_default()
}

/// The body of a store call that went well. No headers at all mean that the connection broke.
pub(super) fn call_response(headers: usize) -> Result<Vec<u8>, StoreError> {
    let headers = match headers {
        0 => Vec::new(),
        _ => self::headers(MapType::HttpCallResponseHeaders),
    };
    let status = HeaderMap::new(&headers).pairs().find(|(name, _)| *name == b":status");
    match StoreError::of_status(status.map(|(_, value)| value)) {
        Some(error) => Err(error),
        None => Ok(abi::buffer(BufferType::HttpCallResponseBody).unwrap_or_default()),
    }
}
