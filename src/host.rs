//! What the filter asks of its host: the few things that only the proxy can do.
//!
//! The adapter in `wasm` implements it over proxy-wasm, the tests over a host of their own with the
//! same semantics. Every method says what it does when the host cannot.

use crate::filter::{MetricId, Reply};
use crate::store::StoreError;
use crate::store::shared_data::SharedData;
use crate::units::Span;

/// A request's number within its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// A store call's number within its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u32);

/// The host did not take the request for a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeFailure;

/// A call to the store.
#[derive(Debug)]
pub struct StoreCall<'a> {
    /// The cluster that leads to it.
    pub cluster: &'a str,
    /// The node of a Redis Cluster that it is for, as `<address>:<port>`; none for whichever the
    /// cluster leads to.
    pub node: Option<&'a str>,
    /// The commands.
    pub body: &'a [u8],
    /// The time after which the host gives up. At least one millisecond.
    pub timeout: Span,
}

/// The proxy, from one worker's point of view.
pub trait Host: SharedData {
    /// Asks for a call of [`Worker::on_wake`](crate::filter::Worker::on_wake) soon, from where
    /// store calls can be made.
    ///
    /// # Errors
    ///
    /// [`WakeFailure`] where no such call will come.
    fn wake(&mut self) -> Result<(), WakeFailure>;

    /// Calls the store. A reply or failure comes later, exactly once for each number.
    ///
    /// # Errors
    ///
    /// The kind of failure where no call was made; then nothing comes later.
    fn call_store(&mut self, call: &StoreCall<'_>) -> Result<CallId, StoreError>;

    /// Lets a paused request go on. Does nothing where the request is gone.
    fn resume(&mut self, stream: StreamId);

    /// Answers a paused request. Does nothing where the request is gone.
    fn reply(&mut self, stream: StreamId, reply: &Reply);

    /// An attribute of the request at hand by its path; none where the host has no such thing.
    fn property(&mut self, path: &[&str]) -> Option<Vec<u8>>;

    /// Adds to a counter. `by` is at least one, because hosts refuse to add nothing.
    fn count(&mut self, metric: MetricId, by: u64);

    /// Sets a gauge, or adds a value to a histogram.
    fn record(&mut self, metric: MetricId, value: u64);
}
