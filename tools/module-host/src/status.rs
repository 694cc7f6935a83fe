//! What a host function can return.

/// A status of the proxy-wasm ABI, v0.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// There is no such thing.
    NotFound,
    /// An argument is not one that the host takes now.
    BadArgument,
    /// Could not be written as bytes.
    SerializationFailure,
    /// Could not be read from bytes.
    ParseFailure,
    /// Bytes outside of the memory.
    InvalidMemoryAccess,
    /// Nothing there.
    Empty,
    /// Someone else wrote in between.
    CasMismatch,
    /// Another kind of result than was expected.
    ResultMismatch,
    /// The host failed.
    InternalFailure,
    /// A connection broke.
    BrokenConnection,
    /// The host does not have it.
    Unimplemented,
    /// A number that the ABI does not know.
    Unknown,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Ok,
        Self::NotFound,
        Self::BadArgument,
        Self::SerializationFailure,
        Self::ParseFailure,
        Self::InvalidMemoryAccess,
        Self::Empty,
        Self::CasMismatch,
        Self::ResultMismatch,
        Self::InternalFailure,
        Self::BrokenConnection,
        Self::Unimplemented,
        Self::Unknown,
    ];

    /// Its number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Ok => 0,
            Self::NotFound => 1,
            Self::BadArgument => 2,
            Self::SerializationFailure => 3,
            Self::ParseFailure => 4,
            Self::InvalidMemoryAccess => 6,
            Self::Empty => 7,
            Self::CasMismatch => 8,
            Self::ResultMismatch => 9,
            Self::InternalFailure => 10,
            Self::BrokenConnection => 11,
            Self::Unimplemented => 12,
            Self::Unknown => 4_000_000_000,
        }
    }
}
