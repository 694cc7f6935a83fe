//! Everything that can be wrong with the store, by name.

use std::fmt;

/// Why a decision has no answer. Each has a fixed name, so that the set of metric series is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreError {
    /// No connection: the cluster is unknown, has no healthy host, or refuses.
    Unreachable,
    /// No answer within `store.timeout`.
    Timeout,
    /// The connection broke before the reply began.
    Reset,
    /// The script is not in the store's cache: send it again with [`ScriptCall::Load`].
    ///
    /// [`ScriptCall::Load`]: super::ScriptCall::Load
    NoScript,
    /// The store is a replica.
    ReadOnly,
    /// The store asks for a password and none is configured.
    NoAuth,
    /// User or password is wrong.
    WrongPass,
    /// The user may not run the script, or may not touch its keys.
    NoPermission,
    /// The store is reading its data from disk.
    Loading,
    /// The store is at its memory limit.
    OutOfMemory,
    /// The Redis Cluster does not serve the keys.
    ClusterDown,
    /// Another node of the Redis Cluster holds the keys.
    Moved,
    /// The keys are on their way to another node of the Redis Cluster.
    Ask,
    /// A key holds something other than a string.
    WrongType,
    /// Another script has been running for too long.
    Busy,
    /// The keys are being moved between nodes of the Redis Cluster.
    TryAgain,
    /// What came back is no answer of the script, or not Redis' protocol.
    Malformed,
    /// The reply ended early.
    Truncated,
    /// More decisions wait in this worker than it takes on.
    Overloaded,
    /// The store was given up after failures, and has not answered a probe since.
    GivenUp,
    /// Any other error of the store.
    Other,
}

/// How the store's error replies begin.
const REPLIES: [(&[u8], StoreError); 18] = [
    (b"NOSCRIPT", StoreError::NoScript),
    (b"READONLY", StoreError::ReadOnly),
    (b"NOAUTH", StoreError::NoAuth),
    (b"WRONGPASS", StoreError::WrongPass),
    (b"NOPERM", StoreError::NoPermission),
    // The user may not run what the script runs: as Redis 7.0 words it, and as it and Valkey do later.
    (b"ERR The user executing the script", StoreError::NoPermission),
    (b"ERR ACL failure in script:", StoreError::NoPermission),
    (b"LOADING", StoreError::Loading),
    (b"OOM", StoreError::OutOfMemory),
    (b"CLUSTERDOWN", StoreError::ClusterDown),
    (b"MOVED", StoreError::Moved),
    (b"ASK", StoreError::Ask),
    (b"WRONGTYPE", StoreError::WrongType),
    (b"FAIRSHARE wrong type", StoreError::WrongType),
    (b"BUSY", StoreError::Busy),
    (b"TRYAGAIN", StoreError::TryAgain),
    (b"ERR invalid password", StoreError::WrongPass),
    // Before a password, long commands are not even read.
    (b"ERR Protocol error: unauthenticated", StoreError::NoAuth),
];

impl StoreError {
    /// All errors, in the order in which their metric series are defined.
    pub const ALL: [Self; 21] = [
        Self::Unreachable,
        Self::Timeout,
        Self::Reset,
        Self::NoScript,
        Self::ReadOnly,
        Self::NoAuth,
        Self::WrongPass,
        Self::NoPermission,
        Self::Loading,
        Self::OutOfMemory,
        Self::ClusterDown,
        Self::Moved,
        Self::Ask,
        Self::WrongType,
        Self::Busy,
        Self::TryAgain,
        Self::Malformed,
        Self::Truncated,
        Self::Overloaded,
        Self::GivenUp,
        Self::Other,
    ];

    /// The error of an HTTP answer that cannot hold replies, or none where it may. `status` is the
    /// answer's status, or none where the answer has no headers at all.
    ///
    /// The tunnel's own failures come as ordinary answers: 503 where the store cannot be reached
    /// and 504 where `store.timeout` ran out.
    #[must_use]
    pub fn of_status(status: Option<&[u8]>) -> Option<Self> {
        match status {
            Some(b"200") => None,
            Some(b"504") => Some(Self::Timeout),
            Some(_) => Some(Self::Unreachable),
            None => Some(Self::Reset),
        }
    }

    /// The error that the store reports by `line`, an error reply without its leading `-`.
    pub(super) fn of_reply(line: &[u8]) -> Self {
        let known = REPLIES.iter().find(|(code, _)| {
            line.strip_prefix(*code).is_some_and(|rest| rest.is_empty() || rest.starts_with(b" "))
        });
        known.map_or(Self::Other, |(_, error)| *error)
    }

    /// Whether the next question will hardly fare better: the store as a whole is at fault, not one
    /// key, not this node.
    #[must_use]
    pub const fn is_about_the_store(self) -> bool {
        !matches!(self, Self::NoScript | Self::WrongType | Self::Overloaded | Self::GivenUp)
    }

    /// The name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::NoScript => "no_script",
            Self::ReadOnly => "read_only",
            Self::NoAuth => "no_auth",
            Self::WrongPass => "wrong_pass",
            Self::NoPermission => "no_permission",
            Self::Loading => "loading",
            Self::OutOfMemory => "out_of_memory",
            Self::ClusterDown => "cluster_down",
            Self::Moved => "moved",
            Self::Ask => "ask",
            Self::WrongType => "wrong_type",
            Self::Busy => "busy",
            Self::TryAgain => "try_again",
            Self::Malformed => "malformed",
            Self::Truncated => "truncated",
            Self::Overloaded => "overloaded",
            Self::GivenUp => "given_up",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_error_has_a_name_of_its_own_that_fits_a_label() {
        let names: BTreeSet<_> = StoreError::ALL.iter().map(|error| error.name()).collect();
        assert_eq!(names.len(), StoreError::ALL.len());
        assert!(names.iter().all(|name| name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase())));
        let reported = REPLIES.iter().map(|(_, error)| error);
        assert!(reported.chain([&StoreError::Other]).all(|error| StoreError::ALL.contains(error)));
    }

    #[test]
    fn error_replies_are_told_apart_by_their_code() {
        let cases: [(&[u8], StoreError); 11] = [
            (b"NOSCRIPT No matching script. Please use EVAL.", StoreError::NoScript),
            (b"MOVED 1 h:1", StoreError::Moved),
            (b"ASK 1 h:1", StoreError::Ask),
            (b"ASKED", StoreError::Other),
            (b"BUSY Redis is busy running a script.", StoreError::Busy),
            (b"BUSYKEY Target key name already exists.", StoreError::Other),
            (
                b"ERR The user executing the script can't run this command or subcommand",
                StoreError::NoPermission,
            ),
            (
                b"ERR ACL failure in script: User u has no permissions to run the 'time' command",
                StoreError::NoPermission,
            ),
            (b"FAIRSHARE wrong type", StoreError::WrongType),
            (b"FAIRSHARE bad argument", StoreError::Other),
            (b"", StoreError::Other),
        ];
        for (line, error) in cases {
            assert_eq!(StoreError::of_reply(line), error, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn failures_of_the_tunnel_are_told_apart_by_status() {
        assert_eq!(StoreError::of_status(Some(b"200")), None);
        assert_eq!(StoreError::of_status(Some(b"503")), Some(StoreError::Unreachable));
        assert_eq!(StoreError::of_status(Some(b"504")), Some(StoreError::Timeout));
        assert_eq!(StoreError::of_status(Some(b"404")), Some(StoreError::Unreachable));
        assert_eq!(StoreError::of_status(Some(b"\xff")), Some(StoreError::Unreachable));
        assert_eq!(StoreError::of_status(None), Some(StoreError::Reset));
    }
}
