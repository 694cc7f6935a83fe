//! A request's life as one state machine: inputs in, effects out.
//!
//! [`Worker`] is one proxy worker's filter. Its `on_*` methods are called for what the host
//! reports, each with the time; what is to be done comes back as a [`Step`] or goes through the
//! [`Host`](crate::host::Host). No method blocks, and every request that is paused has a deadline.

mod auth_failures;
mod breaker;
mod charging;
mod charging_in_store;
mod decide;
mod deliver;
mod ended;
mod fields;
mod finish;
mod group_commit;
mod job;
mod judgement;
mod key_groups;
mod leasing;
mod metrics;
mod mode;
mod node_refusals;
mod pace;
mod probing;
mod refusal;
mod standing;
mod state_loss;
mod worker;

pub use fields::RateLimitFields;
pub use metrics::{Code, MetricId, MetricKind, Metrics, Outcome};
pub use refusal::{Refusal, Reply};
pub use worker::{Step, Worker};
