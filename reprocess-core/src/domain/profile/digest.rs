//! A digest over a multiset of rows.

use arrow_buffer::i256;

use super::{DIGEST_ALGORITHM, Digest};

/// Sums the hashes of rows. A sum keeps what XOR would lose: that a row stands there twice.
#[derive(Clone, Debug)]
pub(super) struct RowDigest {
    sum: i256,
    rows: u64,
}

impl RowDigest {
    pub(super) fn new() -> Self {
        Self { sum: i256::ZERO, rows: 0 }
    }

    /// Adds a row by its canonical bytes.
    pub(super) fn add(&mut self, row: &[u8]) {
        self.add_hash(blake3::hash(row));
    }

    pub(super) fn add_hash(&mut self, hash: blake3::Hash) {
        self.sum = self.sum.wrapping_add(i256::from_le_bytes(*hash.as_bytes()));
        self.rows += 1;
    }

    pub(super) fn finish(&self) -> Digest {
        let sum: String = self.sum.to_be_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        Digest { algorithm: DIGEST_ALGORITHM.to_owned(), value: format!("{sum}{:016x}", self.rows) }
    }
}
