//! The host functions that the module imports. One that is not here traps when it is called.

use wasmi::{Caller, Error, ExternType, Linker, Module};

use crate::Status;
use crate::machine::{Machine, StoreCall};
use crate::vm::Host;

/// How far the wall's clock is ahead of the monotonic one, in nanoseconds.
const SINCE_1970: u64 = 1_700_000_000_000_000_000;

/// A call of a host function.
struct Call<'a>(Caller<'a, Host>);

/// Defines a function that returns a status. The test's script is asked first; the block runs only
/// where that says [`Status::Ok`].
macro_rules! function {
    ($linker:ident, $module:literal, $name:literal, $call:ident ($($argument:ident: $type:ty),*) $body:block) => {
        $linker
            .func_wrap($module, $name, |caller: Caller<'_, Host>, $($argument: $type),*| -> u32 {
                #[allow(unused_mut, reason = "some need it")]
                let mut $call = Call(caller);
                let chosen = $call.machine().status($name);
                let status = if chosen == Status::Ok { $body } else { chosen };
                status.number()
            })
            .expect("a name that is free")
    };
}

/// Defines all of them.
pub(crate) fn link(linker: &mut Linker<Host>, module: &Module) {
    link_surroundings(linker);
    link_data(linker);
    link_streams(linker);
    link_shared_data(linker);
    link_queues(linker);
    link_metrics(linker);
    link_wasi(linker);
    link_strangers(linker, module);
}

fn link_surroundings(linker: &mut Linker<Host>) {
    function!(linker, "env", "proxy_log", call(_level: u32, text: u32, size: u32) {
        let line = String::from_utf8_lossy(&call.bytes(text, size)).into_owned();
        call.machine().log.push(line);
        Status::Ok
    });
    function!(linker, "env", "proxy_get_current_time_nanoseconds", call(time: u32) {
        let now = call.machine().now + SINCE_1970;
        call.write(time, &now.to_le_bytes())
    });
    function!(linker, "env", "proxy_set_tick_period_milliseconds", call(period: u32) {
        call.machine().events.tick_millis = period;
        Status::Ok
    });
    function!(linker, "env", "proxy_http_call", call(
        _upstream: u32, _upstream_size: u32, _headers: u32, _headers_size: u32, body: u32,
        body_size: u32, _trailers: u32, _trailers_size: u32, timeout: u32, token: u32
    ) {
        assert!(timeout > 0, "the host would wait for ever");
        let body = call.bytes(body, body_size);
        let machine = call.machine();
        machine.events.next_token += 1;
        let number = machine.events.next_token;
        let deadline = machine.now + u64::from(timeout) * 1_000_000;
        machine.events.calls.push(StoreCall { token: number, deadline, body });
        call.write(token, &number.to_le_bytes())
    });
}

fn link_data(linker: &mut Linker<Host>) {
    function!(linker, "env", "proxy_get_buffer_bytes", call(buffer: u32, _start: u32, _length: u32, data: u32, size: u32) {
        let bytes = match buffer {
            4 => call.machine().call_body.clone(),
            7 => call.machine().document.clone(),
            _ => return Status::BadArgument.number(),
        };
        call.give(&bytes, data, size)
    });
    function!(linker, "env", "proxy_get_header_map_pairs", call(map: u32, data: u32, size: u32) {
        let machine = call.machine();
        let bytes = match map {
            0 => machine.request_headers.clone(),
            2 => machine.response_headers.clone(),
            6 => machine.call_headers.clone(),
            _ => return Status::BadArgument.number(),
        };
        call.give(&bytes, data, size)
    });
    function!(linker, "env", "proxy_get_property", call(path: u32, path_size: u32, data: u32, size: u32) {
        let path = call.bytes(path, path_size);
        match call.machine().properties.get(&path).cloned() {
            Some(value) => call.give(&value, data, size),
            None => Status::NotFound,
        }
    });
    function!(linker, "env", "proxy_add_header_map_value", call(_map: u32, name: u32, name_size: u32, value: u32, value_size: u32) {
        call.bytes(name, name_size);
        call.bytes(value, value_size);
        Status::Ok
    });
}

/// What lets a stream go or answers it. Whether a host that fails has done so is for the host to
/// know; the module has done its part.
fn link_streams(linker: &mut Linker<Host>) {
    let module = "env";
    let local_response = |caller: Caller<'_, Host>,
                          status: u32,
                          details: u32,
                          details_size: u32,
                          body: u32,
                          body_size: u32,
                          headers: u32,
                          headers_size: u32,
                          _grpc: i32|
     -> u32 {
        let mut call = Call(caller);
        assert!((100..600).contains(&status), "{status} is no status of HTTP");
        for (bytes, size) in [(details, details_size), (body, body_size), (headers, headers_size)] {
            call.bytes(bytes, size);
        }
        let machine = call.machine();
        machine.settle_effective();
        machine.status("proxy_send_local_response").number()
    };
    let continue_stream = |caller: Caller<'_, Host>, _kind: u32| -> u32 {
        let mut call = Call(caller);
        let machine = call.machine();
        machine.settle_effective();
        machine.status("proxy_continue_stream").number()
    };
    let set_effective_context = |caller: Caller<'_, Host>, context: u32| -> u32 {
        let mut call = Call(caller);
        let machine = call.machine();
        let chosen = machine.status("proxy_set_effective_context");
        if !machine.streams.alive.contains(&context) {
            return Status::BadArgument.number();
        }
        let before = std::mem::replace(&mut machine.streams.effective, context);
        if chosen != Status::Ok {
            // Whoever cannot reach a stream cannot let it go.
            machine.settle_effective();
            machine.streams.effective = before;
        }
        chosen.number()
    };
    linker.func_wrap(module, "proxy_send_local_response", local_response).expect("a free name");
    linker.func_wrap(module, "proxy_continue_stream", continue_stream).expect("a free name");
    linker
        .func_wrap(module, "proxy_set_effective_context", set_effective_context)
        .expect("a free name");
}

fn link_shared_data(linker: &mut Linker<Host>) {
    function!(linker, "env", "proxy_get_shared_data", call(key: u32, key_size: u32, data: u32, size: u32, cas: u32) {
        let key = call.bytes(key, key_size);
        match call.machine().shared.get(&key).cloned() {
            None => Status::NotFound,
            Some((value, version)) => {
                call.write(cas, &version.to_le_bytes());
                call.give(&value, data, size)
            }
        }
    });
    function!(linker, "env", "proxy_set_shared_data", call(key: u32, key_size: u32, value: u32, value_size: u32, cas: u32) {
        let (key, value) = (call.bytes(key, key_size), call.bytes(value, value_size));
        let machine = call.machine();
        match machine.shared.get(&key) {
            Some((_, version)) if cas != 0 && cas != *version => Status::CasMismatch,
            _ => {
                machine.last_cas += 1;
                machine.shared.insert(key, (value, machine.last_cas));
                Status::Ok
            }
        }
    });
}

fn link_queues(linker: &mut Linker<Host>) {
    function!(linker, "env", "proxy_register_shared_queue", call(name: u32, size: u32, queue: u32) {
        let name = call.bytes(name, size);
        let queues = &mut call.machine().queues;
        queues.push(String::from_utf8_lossy(&name).into_owned());
        let number = u32::try_from(queues.len()).expect("few queues");
        call.write(queue, &number.to_le_bytes())
    });
    function!(linker, "env", "proxy_enqueue_shared_queue", call(queue: u32, data: u32, size: u32) {
        call.bytes(data, size);
        call.machine().events.messages.push(queue);
        Status::Ok
    });
    function!(linker, "env", "proxy_dequeue_shared_queue", call(_queue: u32, data: u32, size: u32) {
        call.give(&[1], data, size)
    });
}

fn link_metrics(linker: &mut Linker<Host>) {
    function!(linker, "env", "proxy_define_metric", call(_kind: u32, name: u32, size: u32, metric: u32) {
        let name = call.bytes(name, size);
        let names = &mut call.machine().metric_names;
        names.push(String::from_utf8_lossy(&name).into_owned());
        let number = u32::try_from(names.len()).expect("few metrics");
        call.write(metric, &number.to_le_bytes())
    });
    function!(linker, "env", "proxy_increment_metric", call(metric: u32, by: i64) {
        match u64::try_from(by) {
            Ok(by @ 1..) => call.machine().change_metric(metric, |value| value + by),
            _ => Status::BadArgument,
        }
    });
    function!(linker, "env", "proxy_record_metric", call(metric: u32, value: u64) {
        call.machine().change_metric(metric, |_| value)
    });
}

/// WASI has error numbers of its own; to the module, all but 0 are one.
fn link_wasi(linker: &mut Linker<Host>) {
    function!(linker, "wasi_snapshot_preview1", "clock_time_get", call(_clock: u32, _precision: u64, time: u32) {
        let now = call.machine().now;
        call.write(time, &now.to_le_bytes())
    });
    function!(linker, "wasi_snapshot_preview1", "random_get", call(bytes: u32, size: u32) {
        call.write(bytes, &vec![7; usize::try_from(size).expect("a size")])
    });
    function!(linker, "wasi_snapshot_preview1", "fd_write", call(_file: u32, vectors: u32, count: u32, written: u32) {
        let mut sum = 0;
        for place in 0..count {
            let vector = call.bytes(vectors + place * 8, 8);
            let part = |at: usize| u32::from_le_bytes([vector[at], vector[at + 1], vector[at + 2], vector[at + 3]]);
            let line = String::from_utf8_lossy(&call.bytes(part(0), part(4))).into_owned();
            call.machine().log.push(line);
            sum += part(4);
        }
        call.write(written, &sum.to_le_bytes())
    });
    function!(linker, "wasi_snapshot_preview1", "environ_sizes_get", call(count: u32, size: u32) {
        call.write(count, &[0; 4]);
        call.write(size, &[0; 4])
    });
    function!(linker, "wasi_snapshot_preview1", "environ_get", _call(_variables: u32, _bytes: u32) {
        Status::Ok
    });
    let exit = |_: Caller<'_, Host>, code: i32| -> Result<(), Error> { Err(Error::i32_exit(code)) };
    linker.func_wrap("wasi_snapshot_preview1", "proc_exit", exit).expect("a free name");
}

/// What the module imports, but never has a reason to call.
fn link_strangers(linker: &mut Linker<Host>, module: &Module) {
    for import in module.imports() {
        let ExternType::Func(kind) = import.ty() else { continue };
        let message = format!("{} is not for this module", import.name());
        // A name that has been taken is one that is known.
        let _ = linker.func_new(import.module(), import.name(), kind.clone(), move |_, _, _| {
            Err(Error::new(message.clone()))
        });
    }
}

impl Machine {
    fn change_metric(&mut self, metric: u32, change: impl FnOnce(u64) -> u64) -> Status {
        let place = usize::try_from(metric).ok().and_then(|number| number.checked_sub(1));
        let Some(name) = place.and_then(|place| self.metric_names.get(place)) else {
            return Status::BadArgument;
        };
        let value = self.metrics.entry(name.clone()).or_default();
        *value = change(*value);
        Status::Ok
    }
}

impl Call<'_> {
    fn machine(&mut self) -> &mut Machine {
        &mut self.0.data_mut().machine
    }

    /// Bytes of the module's memory. The module never names bytes outside of it.
    fn bytes(&self, at: u32, size: u32) -> Vec<u8> {
        let memory = self.0.data().memory.expect("the module has memory").data(&self.0);
        let (at, size) = (at as usize, size as usize);
        memory.get(at..at + size).expect("bytes within the memory").to_vec()
    }

    fn write(&mut self, at: u32, bytes: &[u8]) -> Status {
        let memory = self.0.data().memory.expect("the module has memory");
        memory.write(&mut self.0, at as usize, bytes).expect("bytes within the memory");
        Status::Ok
    }

    /// Hands bytes over, in memory that the module allocates for them.
    fn give(&mut self, bytes: &[u8], data: u32, size: u32) -> Status {
        let length = u32::try_from(bytes.len()).expect("few bytes");
        let allocate = self.0.data().allocate.expect("the module can allocate");
        let Ok(at) = allocate.call(&mut self.0, length) else {
            return Status::InternalFailure;
        };
        self.write(at, bytes);
        self.write(data, &at.to_le_bytes());
        self.write(size, &length.to_le_bytes())
    }
}
