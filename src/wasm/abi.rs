//! The host's functions (proxy-wasm ABI v0.2.1, WASI preview 1), each with every status handled.
//!
//! The SDK's own wrappers panic on any status that they do not expect, read header names and values
//! as text, and cannot name the details of a local reply. A panic in a proxy worker refuses traffic,
//! so here every status is a value. Beside the names of the callbacks, this is the project's only
//! unsafe code.
#![allow(unsafe_code)]

use proxy_wasm::types::{BufferType, LogLevel, MapType, MetricType, StreamType};

use crate::filter::MetricKind;
use crate::policy::HeaderMap;

/// What a host function returned instead of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no such thing.
    NotFound,
    /// Someone else wrote in between.
    CasMismatch,
    /// Anything else, by number.
    Other(u32),
}

/// A clock of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// It never steps.
    Monotonic,
    /// The wall's.
    Wall,
}

mod host {
    use super::{BufferType, LogLevel, MapType, MetricType, StreamType};

    #[link(wasm_import_module = "env")]
    unsafe extern "C" {
        pub(super) fn proxy_log(level: LogLevel, text: *const u8, size: usize) -> u32;
        pub(super) fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
        pub(super) fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
        pub(super) fn proxy_get_buffer_bytes(
            buffer: BufferType,
            start: usize,
            length: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_get_header_map_pairs(
            map: MapType,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_get_property(
            path: *const u8,
            path_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_add_header_map_value(
            map: MapType,
            name: *const u8,
            name_size: usize,
            value: *const u8,
            value_size: usize,
        ) -> u32;
        pub(super) fn proxy_send_local_response(
            status: u32,
            details: *const u8,
            details_size: usize,
            body: *const u8,
            body_size: usize,
            headers: *const u8,
            headers_size: usize,
            grpc_status: i32,
        ) -> u32;
        pub(super) fn proxy_continue_stream(kind: StreamType) -> u32;
        pub(super) fn proxy_http_call(
            cluster: *const u8,
            cluster_size: usize,
            headers: *const u8,
            headers_size: usize,
            body: *const u8,
            body_size: usize,
            trailers: *const u8,
            trailers_size: usize,
            timeout_millis: u32,
            call: *mut u32,
        ) -> u32;
        pub(super) fn proxy_set_effective_context(context: u32) -> u32;
        pub(super) fn proxy_get_shared_data(
            key: *const u8,
            key_size: usize,
            data: *mut *mut u8,
            size: *mut usize,
            cas: *mut u32,
        ) -> u32;
        pub(super) fn proxy_set_shared_data(
            key: *const u8,
            key_size: usize,
            value: *const u8,
            value_size: usize,
            cas: u32,
        ) -> u32;
        pub(super) fn proxy_register_shared_queue(
            name: *const u8,
            name_size: usize,
            queue: *mut u32,
        ) -> u32;
        pub(super) fn proxy_enqueue_shared_queue(queue: u32, data: *const u8, size: usize) -> u32;
        pub(super) fn proxy_dequeue_shared_queue(
            queue: u32,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_define_metric(
            kind: MetricType,
            name: *const u8,
            name_size: usize,
            metric: *mut u32,
        ) -> u32;
        pub(super) fn proxy_increment_metric(metric: u32, by: i64) -> u32;
        pub(super) fn proxy_record_metric(metric: u32, value: u64) -> u32;
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub(super) fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
        pub(super) fn random_get(bytes: *mut u8, size: usize) -> u32;
    }
}

/// `proxy_set_shared_data` reads a swap from 0 as "overwrite"; versions never reach this one.
const CAS_ABSENT: u32 = u32::MAX;

fn check(status: u32) -> Result<(), Failure> {
    match status {
        0 => Ok(()),
        1 => Err(Failure::NotFound),
        8 => Err(Failure::CasMismatch),
        other => Err(Failure::Other(other)),
    }
}

/// Runs a host function that returns bytes, and takes them over.
fn returned_bytes(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Result<Vec<u8>, Failure> {
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    check(call(&mut data, &mut size))?;
    if data.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the host asked `proxy_on_memory_allocate` for `size` bytes, which the SDK allocates
    // as a boxed slice of that size and leaves to the receiver, and filled them.
    Ok(unsafe { Vec::from_raw_parts(data, size, size) })
}

// SAFETY of every call below: the pointers are to live values of the stated sizes, the host reads
// or writes them during the call alone and keeps none.

/// Writes a line to the host's log.
pub(super) fn log(level: LogLevel, text: &str) {
    // A log that cannot be written has nowhere to be reported.
    let _ = unsafe { host::proxy_log(level, text.as_ptr(), text.len()) };
}

/// Nanoseconds of a clock. A clock that stands at 0 is none.
pub(super) fn clock_nanos(clock: Clock) -> Option<u64> {
    const MONOTONIC: u32 = 1;
    let mut nanos = 0;
    let status = match clock {
        Clock::Monotonic => unsafe { host::clock_time_get(MONOTONIC, 1, &mut nanos) },
        Clock::Wall => unsafe { host::proxy_get_current_time_nanoseconds(&mut nanos) },
    };
    (status == 0 && nanos != 0).then_some(nanos)
}

/// A number that nobody can predict; none on a host without randomness.
pub(super) fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    let status = unsafe { host::random_get(bytes.as_mut_ptr(), bytes.len()) };
    (status == 0).then_some(u64::from_le_bytes(bytes))
}

pub(super) fn set_tick_period(millis: u32) -> Result<(), Failure> {
    check(unsafe { host::proxy_set_tick_period_milliseconds(millis) })
}

pub(super) fn buffer(buffer: BufferType) -> Result<Vec<u8>, Failure> {
    returned_bytes(|data, size| unsafe {
        host::proxy_get_buffer_bytes(buffer, 0, usize::MAX, data, size)
    })
}

pub(super) fn header_map(map: MapType) -> Result<Vec<u8>, Failure> {
    returned_bytes(|data, size| unsafe { host::proxy_get_header_map_pairs(map, data, size) })
}

/// An attribute of the effective stream, by its path.
pub(super) fn property(path: &[&str]) -> Result<Vec<u8>, Failure> {
    let path = path.join("\0");
    returned_bytes(|data, size| unsafe {
        host::proxy_get_property(path.as_ptr(), path.len(), data, size)
    })
}

pub(super) fn add_header(map: MapType, name: &str, value: &str) -> Result<(), Failure> {
    check(unsafe {
        host::proxy_add_header_map_value(
            map,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        )
    })
}

/// Answers the effective stream, with header fields in serialized form.
pub(super) fn send_local_response(
    status: u16,
    details: &str,
    headers: &[u8],
    body: &[u8],
    grpc_status: i32,
) -> Result<(), Failure> {
    check(unsafe {
        host::proxy_send_local_response(
            u32::from(status),
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            grpc_status,
        )
    })
}

/// Lets the effective stream's paused request go on.
pub(super) fn resume_request() -> Result<(), Failure> {
    check(unsafe { host::proxy_continue_stream(StreamType::HttpRequest) })
}

/// POSTs `body` to a cluster. A timeout of 0 means none at all.
pub(super) fn http_call(
    cluster: &str,
    headers: &[(&[u8], &[u8])],
    body: &[u8],
    timeout_millis: u32,
) -> Result<u32, Failure> {
    let (headers, trailers) = (HeaderMap::serialize(headers), HeaderMap::serialize(&[]));
    let mut call = 0;
    check(unsafe {
        host::proxy_http_call(
            cluster.as_ptr(),
            cluster.len(),
            headers.as_ptr(),
            headers.len(),
            body.as_ptr(),
            body.len(),
            trailers.as_ptr(),
            trailers.len(),
            timeout_millis,
            &mut call,
        )
    })?;
    Ok(call)
}

/// Makes `context` the one that stream functions mean, until the callback ends.
pub(super) fn set_effective_context(context: u32) -> Result<(), Failure> {
    check(unsafe { host::proxy_set_effective_context(context) })
}

/// A key's bytes and version.
pub(super) fn shared_data(key: &str) -> Result<(Vec<u8>, u32), Failure> {
    let mut cas = 0;
    let bytes = returned_bytes(|data, size| unsafe {
        host::proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &mut cas)
    })?;
    Ok((bytes, cas))
}

/// Writes a key whose version is `seen`, or that is absent where that is none.
pub(super) fn set_shared_data(key: &str, value: &[u8], seen: Option<u32>) -> Result<(), Failure> {
    let cas = seen.unwrap_or(CAS_ABSENT);
    check(unsafe {
        host::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas)
    })
}

pub(super) fn register_queue(name: &str) -> Result<u32, Failure> {
    let mut queue = 0;
    check(unsafe { host::proxy_register_shared_queue(name.as_ptr(), name.len(), &mut queue) })?;
    Ok(queue)
}

pub(super) fn enqueue(queue: u32) -> Result<(), Failure> {
    let data = [1u8];
    check(unsafe { host::proxy_enqueue_shared_queue(queue, data.as_ptr(), data.len()) })
}

/// Takes one element off the queue.
pub(super) fn dequeue(queue: u32) -> Result<(), Failure> {
    returned_bytes(|data, size| unsafe { host::proxy_dequeue_shared_queue(queue, data, size) })
        .map(drop)
}

pub(super) fn define_metric(kind: MetricKind, name: &str) -> Result<u32, Failure> {
    let kind = match kind {
        MetricKind::Counter => MetricType::Counter,
        MetricKind::Gauge => MetricType::Gauge,
        MetricKind::Histogram => MetricType::Histogram,
    };
    let mut metric = 0;
    check(unsafe { host::proxy_define_metric(kind, name.as_ptr(), name.len(), &mut metric) })?;
    Ok(metric)
}

pub(super) fn increment(metric: u32, by: i64) -> Result<(), Failure> {
    check(unsafe { host::proxy_increment_metric(metric, by) })
}

/// Sets a gauge, or adds a value to a histogram.
pub(super) fn record(metric: u32, value: u64) -> Result<(), Failure> {
    check(unsafe { host::proxy_record_metric(metric, value) })
}
