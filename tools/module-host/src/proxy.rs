//! A proxy that behaves: it calls the module in the order in which Envoy does.

use crate::machine::Machine;
use crate::vm::{Program, Trap, Vm};

/// The root context that stands for the configuration.
pub const ROOT: u32 = 1;

/// How far time goes at once: timers of a busy proxy are late.
const STEP_MILLIS: u64 = 30;

/// What the module answers to a request's headers with.
const PAUSE: u32 = 1;

/// What became of a request so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes upstream.
    Passed,
    /// It was answered.
    Answered,
    /// It waits.
    Paused,
}

/// A proxy thread with one configuration.
pub struct Proxy {
    /// The module, and the machine that it runs in.
    pub vm: Vm,
    next_stream: u32,
}

impl Proxy {
    /// Starts the module and configures it. The second value is whether it took the document.
    ///
    /// # Errors
    ///
    /// [`Trap`], as everywhere here.
    pub fn start(program: &Program, machine: Machine) -> Result<(Self, bool), Trap> {
        let mut vm = program.start(machine);
        vm.call("proxy_on_context_create", &[ROOT, 0])?;
        vm.call("proxy_on_vm_start", &[ROOT, 0])?;
        let length = u32::try_from(vm.machine().document.len()).expect("a short document");
        let taken = vm.call("proxy_on_configure", &[ROOT, length])? != 0;
        Ok((Self { vm, next_stream: 10 }, taken))
    }

    /// A request comes.
    ///
    /// # Errors
    ///
    /// [`Trap`].
    pub fn request(&mut self) -> Result<(u32, Fate), Trap> {
        let stream = self.next_stream;
        self.next_stream += 1;
        self.vm.call("proxy_on_context_create", &[stream, ROOT])?;
        let action = self.vm.call("proxy_on_request_headers", &[stream, 3, 1])?;
        let streams = &self.vm.machine().streams;
        let fate = match action == PAUSE {
            true if streams.paused.contains_key(&stream) => Fate::Paused,
            true => Fate::Answered,
            false => Fate::Passed,
        };
        Ok((stream, fate))
    }

    /// The upstream's answer, or the module's own, passes.
    ///
    /// # Errors
    ///
    /// [`Trap`].
    pub fn response(&mut self, stream: u32) -> Result<(), Trap> {
        self.vm.call("proxy_on_response_headers", &[stream, 1, 1]).map(drop)
    }

    /// A request is over.
    ///
    /// # Errors
    ///
    /// [`Trap`].
    pub fn end(&mut self, stream: u32) -> Result<(), Trap> {
        self.vm.call("proxy_on_log", &[stream])?;
        self.vm.call("proxy_on_done", &[stream])?;
        self.vm.call("proxy_on_delete", &[stream]).map(drop)
    }

    /// Delivers all messages of queues.
    ///
    /// # Errors
    ///
    /// [`Trap`].
    pub fn wake(&mut self) -> Result<(), Trap> {
        // Each message may cause the next; a module that always sends one would be a loop.
        for _ in 0..1000 {
            let messages = std::mem::take(&mut self.vm.machine_mut().events.messages);
            if messages.is_empty() {
                return Ok(());
            }
            for queue in messages {
                self.vm.call("proxy_on_queue_ready", &[ROOT, queue])?;
            }
        }
        panic!("the module wakes itself for ever");
    }

    /// Ends all store calls with the status and body that `store` gives for theirs.
    ///
    /// # Errors
    ///
    /// [`Trap`].
    pub fn answer_calls(
        &mut self,
        status: &str,
        mut store: impl FnMut(&[u8]) -> Vec<u8>,
    ) -> Result<(), Trap> {
        for call in std::mem::take(&mut self.vm.machine_mut().events.calls) {
            let body = store(&call.body);
            self.answer_call(call.token, status, body)?;
        }
        Ok(())
    }

    fn answer_call(&mut self, token: u32, status: &str, body: Vec<u8>) -> Result<(), Trap> {
        let length = u32::try_from(body.len()).expect("a short body");
        let machine = self.vm.machine_mut();
        machine.call_headers = header_map(&[(b":status", status.as_bytes())]);
        machine.call_body = body;
        let headers = u32::from(!status.is_empty());
        self.vm.call("proxy_on_http_call_response", &[ROOT, token, headers, length, 0]).map(drop)
    }

    /// Lets time pass, with the timer and the timeouts of calls, and nothing else.
    ///
    /// # Errors
    ///
    /// [`Trap`].
    pub fn pass_millis(&mut self, millis: u64) -> Result<(), Trap> {
        for _ in 0..millis / STEP_MILLIS {
            self.vm.machine_mut().advance_millis(STEP_MILLIS);
            let now = self.vm.machine().now;
            if self.vm.machine().events.tick_millis > 0 {
                self.vm.call("proxy_on_tick", &[ROOT])?;
            }
            let calls = std::mem::take(&mut self.vm.machine_mut().events.calls);
            let (over, left): (Vec<_>, _) =
                calls.into_iter().partition(|call| call.deadline <= now);
            self.vm.machine_mut().events.calls = left;
            for call in over {
                self.answer_call(call.token, "504", b"upstream request timeout".to_vec())?;
            }
            self.wake()?;
        }
        Ok(())
    }
}

/// A header map in the ABI's serialized form.
#[must_use]
pub fn header_map(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_le_bytes();
    let mut map = u32::try_from(pairs.len()).expect("few").to_le_bytes().to_vec();
    for (name, value) in pairs {
        map.extend([length(name), length(value)].concat());
    }
    for (name, value) in pairs {
        map.extend([*name, &[0], *value, &[0]].concat());
    }
    map
}
