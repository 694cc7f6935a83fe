/// A clock that runs at a rate of its own, steps and goes back. Nanoseconds.
#[derive(Clone, Debug)]
pub struct Clock {
    true_at: u64,
    shows: u64,
    /// Nanoseconds that it gains in each million.
    gain: i64,
    /// How far it has gone back in all.
    pub back: u64,
    /// How often it has jumped ahead.
    pub jumps: u64,
}

impl Clock {
    pub const fn new(shows: u64) -> Self {
        Self { true_at: 0, shows, gain: 0, back: 0, jumps: 0 }
    }

    /// What it shows at `now`, the simulation's own time.
    pub fn read(&self, now: u64) -> u64 {
        let passed = i128::from(now - self.true_at);
        let gained = passed * i128::from(self.gain) / 1_000_000;
        u64::try_from(i128::from(self.shows) + passed + gained).unwrap()
    }

    pub fn set_gain(&mut self, gain: i64, now: u64) {
        (self.shows, self.true_at) = (self.read(now), now);
        self.gain = gain;
    }

    /// Steps ahead, or back where `by` is negative.
    pub fn step(&mut self, by: i64, now: u64) {
        let shows = self.read(now);
        self.true_at = now;
        self.shows = match by {
            0.. => {
                self.jumps += 1;
                shows + by.unsigned_abs()
            }
            _ => {
                self.back += by.unsigned_abs();
                shows - by.unsigned_abs()
            }
        };
    }
}
