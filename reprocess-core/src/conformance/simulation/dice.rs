//! Every choice of a history comes from here.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

#[derive(Debug)]
pub(super) struct Dice(ChaCha8Rng);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number from 0 that is below `n`; 0 where `n` is 0.
    pub(super) fn below(&mut self, n: u32) -> u32 {
        u32::try_from(self.0.next_u64() % u64::from(n.max(1))).unwrap_or(0)
    }

    /// A number between two, both included.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    /// True in so many of a hundred cases.
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T], otherwise: T) -> T {
        let place = self.below(u32::try_from(of.len()).unwrap_or(u32::MAX));
        usize::try_from(place).ok().and_then(|place| of.get(place)).copied().unwrap_or(otherwise)
    }
}
