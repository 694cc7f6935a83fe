//! The host's shared data: one map for all workers of a process.

/// What a value's writer must have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// There was no such key.
    Absent,
    /// The key had this version.
    At(u32),
}

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub bytes: Vec<u8>,
    /// Its version.
    pub version: Version,
}

/// What a conditional write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The value is written.
    Done,
    /// Someone else wrote since; nothing is written.
    Lost,
}

/// The host could not read or write its shared data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedDataFailure;

/// The host's shared data: one map for all workers of the process, with compare-and-swap.
pub trait SharedData {
    /// Reads a key. An absent key reads as no bytes of version [`Version::Absent`].
    ///
    /// # Errors
    ///
    /// [`SharedDataFailure`] where the host reports anything but a value or its absence.
    fn get(&mut self, key: &str) -> Result<Versioned, SharedDataFailure>;

    /// Writes a key if it still has the version that was seen.
    ///
    /// # Errors
    ///
    /// [`SharedDataFailure`] where the host reports anything but success or a lost swap.
    fn swap(&mut self, key: &str, bytes: &[u8], seen: Version) -> Result<Swap, SharedDataFailure>;
}
