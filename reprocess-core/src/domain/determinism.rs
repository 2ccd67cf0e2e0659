//! Aids that keep transforms deterministic.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::ids::{JobName, LogicVersion};
use super::partition::PartitionKey;

/// Placeholder until the helper lands.
pub fn rng(job: &JobName, units: &[PartitionKey], logic: &LogicVersion) -> ChaCha8Rng {
    let seed = blake3::hash(format!("{job}{units:?}{logic}").as_bytes());
    ChaCha8Rng::from_seed(*seed.as_bytes())
}
