use fairshare::host::CallId;
use fairshare::store::StoreError;
use fairshare::units::{Instant, Span};

/// The store's reply to a call's body.
pub type StoreReply = Result<Vec<u8>, StoreError>;

/// A call that the worker has made.
pub struct FakeCall {
    pub id: CallId,
    /// The node of the store that it is for; none for whichever answers.
    pub node: Option<String>,
    pub body: Vec<u8>,
    pub made_at: Instant,
    /// The time after which the host gives up.
    pub timeout: Span,
}
