//! Settings of a table.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Settings; the defaults fit a machine with a few gigabytes of memory.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DeltaConfig {
    /// Options of the object store, under the names that `deltalake` knows, for example `AWS_ENDPOINT_URL`. Never shown.
    pub storage_options: BTreeMap<String, String>,
    /// How much memory merges and queries of one table take; beyond it they write temporary files.
    pub memory_bytes: usize,
    /// A data file of this size is closed and another one begun.
    pub target_file_bytes: u64,
    /// Files of how many partitions are written at once. Each takes up to 20 MB of memory; where rows of more partitions
    /// come mixed, the one that waited longest is closed, and its later rows go to another file.
    pub open_partitions: usize,
}

impl Default for DeltaConfig {
    fn default() -> Self {
        Self {
            storage_options: BTreeMap::new(),
            memory_bytes: 256 << 20,
            target_file_bytes: 128 << 20,
            open_partitions: 4,
        }
    }
}

impl DeltaConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an option of the object store.
    #[must_use]
    pub fn with_storage_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.storage_options.insert(name.into(), value.into());
        self
    }

    /// Sets how much memory merges and queries take.
    #[must_use]
    pub fn with_memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Sets the size of data files.
    #[must_use]
    pub fn with_target_file_bytes(mut self, bytes: u64) -> Self {
        self.target_file_bytes = bytes;
        self
    }

    /// Sets how many partitions are written at once.
    #[must_use]
    pub fn with_open_partitions(mut self, partitions: usize) -> Self {
        self.open_partitions = partitions.max(1);
        self
    }
}

impl fmt::Debug for DeltaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeltaConfig")
            .field("storage_options", &self.storage_options.keys().collect::<Vec<_>>())
            .field("memory_bytes", &self.memory_bytes)
            .field("target_file_bytes", &self.target_file_bytes)
            .field("open_partitions", &self.open_partitions)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let config = DeltaConfig::new().with_storage_option("AWS_SECRET_ACCESS_KEY", "hunter2");
        let shown = format!("{config:?}");
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hunter2"), "{shown}");
    }
}
