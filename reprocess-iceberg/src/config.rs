//! Settings of a table.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Settings; the defaults fit a machine with a few gigabytes of memory.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct IcebergConfig {
    /// Settings of stores, under the names that Iceberg has for them, for example `s3.endpoint`. Never shown. What the
    /// catalog says of a table comes on top.
    pub storage_options: BTreeMap<String, String>,
    /// How much memory merges and queries of one table take; beyond it they write temporary files.
    pub memory_bytes: usize,
    /// A data file of this size is closed and another one begun, where the table's `write.target-file-size-bytes` says
    /// nothing.
    pub target_file_bytes: u64,
    /// Files of how many partitions are written at once. Each takes up to 20 MB of memory; where rows of more partitions
    /// come mixed, the one that waited longest is closed, and its later rows go to another file.
    pub open_partitions: usize,
}

impl Default for IcebergConfig {
    fn default() -> Self {
        Self {
            storage_options: BTreeMap::new(),
            memory_bytes: 256 << 20,
            target_file_bytes: 512 << 20,
            open_partitions: 4,
        }
    }
}

impl IcebergConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one of the settings of stores.
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

    /// Sets the size of data files of tables that do not say it themselves.
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

impl fmt::Debug for IcebergConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IcebergConfig")
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
        let config = IcebergConfig::new().with_storage_option("s3.secret-access-key", "hunter2");
        let shown = format!("{config:?}");
        assert!(shown.contains("s3.secret-access-key") && !shown.contains("hunter2"), "{shown}");
    }
}
