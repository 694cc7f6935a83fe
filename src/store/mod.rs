//! Usage that outlives a decision.
//!
//! The fleet's usage lives in Redis. The protocol is data: [`encode`] turns decisions into the
//! bytes of a pipeline, a script in Redis decides each of them as a whole, and [`decode`] turns the
//! bytes that come back into answers or named errors. Nothing here sends or waits.
//!
//! `docs/store.md` describes what stands in Redis and how to read it.

mod cell;
pub mod cluster;
mod decision;
mod demand;
mod drawn;
pub mod epoch;
mod error;
pub mod health;
mod holdings;
mod keys;
pub mod lease;
mod lease_terms;
pub mod leases;
pub mod ledger;
pub mod mode;
pub mod mode_board;
pub mod node;
pub mod numbers;
mod overflow;
pub mod parcel;
mod pipeline;
mod record;
mod resp;
mod rows;
mod script;
pub mod shared_data;
pub mod slab;
mod slot;
mod spent;
pub(crate) mod sweep;
pub mod top_refused;

pub use decision::{Answer, CHARGES_MAX, Decision, Operation, PARTS_MAX, Part, StoreCharge, Want};
pub use error::StoreError;
pub use keys::{key, record_key, tag};
pub use lease_terms::LeaseTerms;
pub use pipeline::{
    DECISIONS_MAX, PIPELINE_CHARGES_MAX, Redirections, ScriptCall, decode, encode, pipeline_len,
};
pub use script::{SCRIPT, SCRIPT_SHA1, is_exact};
pub use slot::slot;
