//! The limiter: pure functions from `(quota, usage, cost, now)` to a verdict and new usage.
//!
//! - Nothing here reads a clock or keeps a state of its own, so whoever owns the usage may run a
//!   decision again, for instance after a lost compare-and-swap.
//! - [`Usage::peek`] decides and changes nothing. [`Usage::charge`] is called only once every level
//!   of a request has said yes.
//! - Time never runs backwards for one usage: an earlier `now` is read as the latest one seen.
//!
//! Invariants, each tested against a slow reference limiter:
//! - a window never admits more than its limit in any interval `[t, t + window)`;
//! - GCRA never admits more than `burst + rate·t/per` in any interval of length `t`;
//! - whoever comes back after `retry_after`, and nobody else came, is admitted;
//! - a refund gives back at most what its charge still holds;
//! - a cap on requests in flight is never exceeded while the shares of all holders are valid.

mod gcra;
mod in_flight;
mod quota;
#[cfg(test)]
mod reference;
mod usage;
mod window;

pub use gcra::GcraUsage;
pub use in_flight::{InFlightUsage, SHARE_LEASE, SHARES_MAX, Share};
pub use quota::{GcraQuota, InFlightQuota, Quota, WindowQuota, greatest_common_divisor};
pub use usage::{Usage, Verdict};
pub use window::WindowUsage;
