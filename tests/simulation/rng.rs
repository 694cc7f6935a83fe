use std::cell::Cell;

/// Numbers that one seed decides (SplitMix64).
pub struct Rng(Cell<u64>);

impl Rng {
    pub const fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `low..high`.
    pub fn within(&self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    /// A place in a list of `length`.
    pub fn place(&self, length: usize) -> usize {
        usize::try_from(self.within(0, u64::try_from(length).unwrap())).unwrap()
    }

    pub fn pick<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.place(choices.len())]
    }

    /// Whether something happens that happens so many times in a thousand.
    pub fn in_thousand(&self, times: u64) -> bool {
        self.within(0, 1000) < times
    }
}
