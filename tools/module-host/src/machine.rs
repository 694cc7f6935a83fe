//! What the host knows and does, as far as a test can choose and see it.

use std::collections::{BTreeMap, BTreeSet};

use crate::Status;

/// One proxy thread: the state behind the host functions.
#[derive(Default)]
pub struct Machine {
    /// The monotonic clock, in nanoseconds.
    pub now: u64,
    /// The plugin's configuration.
    pub document: Vec<u8>,
    /// The header map that requests have, in the ABI's serialized form.
    pub request_headers: Vec<u8>,
    /// The header map that upstreams answer with.
    pub response_headers: Vec<u8>,
    /// The header map of the store call's answer that is being delivered.
    pub call_headers: Vec<u8>,
    /// Its body.
    pub call_body: Vec<u8>,
    /// Attributes by their path with zero bytes.
    pub properties: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Shared data: values and their versions.
    pub shared: BTreeMap<Vec<u8>, (Vec<u8>, u32)>,
    /// Metrics by name.
    pub metrics: BTreeMap<String, u64>,
    /// The log's lines.
    pub log: Vec<String>,
    /// How often each host function was called.
    pub called: BTreeMap<&'static str, usize>,
    /// What is under way.
    pub events: Events,
    /// Streams and what became of them.
    pub streams: Streams,
    /// Chooses a status by the function's name; without one, everything works.
    pub script: Option<Script>,
    pub(crate) last_cas: u32,
    pub(crate) metric_names: Vec<String>,
    pub(crate) queues: Vec<String>,
}

/// Chooses the status of a host function by its name.
pub type Script = Box<dyn FnMut(&'static str) -> Status>;

/// What the module has asked for and is to hear of.
#[derive(Debug, Default)]
pub struct Events {
    /// The timer's period in milliseconds; 0 without one.
    pub tick_millis: u32,
    /// Queues with a message that nobody was told of.
    pub messages: Vec<u32>,
    /// Store calls that have not ended.
    pub calls: Vec<StoreCall>,
    pub(crate) next_token: u32,
}

/// A call of the store.
#[derive(Clone, Debug)]
pub struct StoreCall {
    /// Its number.
    pub token: u32,
    /// When the host gives it up.
    pub deadline: u64,
    /// What is sent.
    pub body: Vec<u8>,
}

/// Streams by their numbers.
#[derive(Debug, Default)]
pub struct Streams {
    /// The one that stream functions mean.
    pub effective: u32,
    /// Those that the host has.
    pub alive: BTreeSet<u32>,
    /// Those that are paused, and since when.
    pub paused: BTreeMap<u32, u64>,
    /// How often each was let go or answered.
    pub outcomes: BTreeMap<u32, usize>,
    /// Whether one was in this callback.
    settled: bool,
}

impl Machine {
    /// A host at a time that is neither 0 nor the wall's.
    #[must_use]
    pub fn new(document: &str) -> Self {
        Self { now: 1_000_000_000_000, document: document.as_bytes().to_vec(), ..Self::default() }
    }

    /// What `function` is to return; counted.
    pub(crate) fn status(&mut self, function: &'static str) -> Status {
        *self.called.entry(function).or_default() += 1;
        match &mut self.script {
            Some(script) => script(function),
            None => Status::Ok,
        }
    }

    /// Lets time pass.
    pub const fn advance_millis(&mut self, millis: u64) {
        self.now += millis * 1_000_000;
    }

    /// Host calls since the last time, by name.
    pub fn take_called(&mut self) -> BTreeMap<&'static str, usize> {
        std::mem::take(&mut self.called)
    }

    /// What a host notes before a callback.
    pub(crate) fn before(&mut self, callback: &str, numbers: &[u32]) {
        let Some(context) = numbers.first() else { return };
        let streams = &mut self.streams;
        streams.effective = *context;
        streams.settled = false;
        match callback {
            "proxy_on_context_create" => drop(streams.alive.insert(*context)),
            // The host has let go of it already.
            "proxy_on_delete" => {
                streams.alive.remove(context);
                streams.paused.remove(context);
            }
            _ => {}
        }
    }

    /// What a host notes after a callback.
    pub(crate) fn after(&mut self, callback: &str, numbers: &[u32], result: u32) {
        let now = self.now;
        if let ("proxy_on_request_headers", 1, Some(context)) = (callback, result, numbers.first())
            && !self.streams.settled
        {
            self.streams.paused.insert(*context, now);
        }
    }

    /// The effective stream is let go or answered.
    pub(crate) fn settle_effective(&mut self) {
        let stream = self.streams.effective;
        *self.streams.outcomes.entry(stream).or_default() += 1;
        self.streams.paused.remove(&stream);
        self.streams.settled = true;
    }
}
