//! Profiles of all keys of a scope in one pass over the rows.

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::Schema;
use arrow_select::take::take_record_batch;

use super::{Profile, ProfileBuilder, ProfileSpec};
use crate::domain::partition::{PartitionKey, Partitioning};
use crate::domain::rows::{partition_runs, refuse_outside};
use crate::domain::scope::Scope;
use crate::error::{Error, Result};

/// Sends each row to the keys of the scope that cover it. A key without rows has a profile too.
#[derive(Clone, Debug)]
pub struct ScopeProfiler {
    partitioning: Partitioning,
    scope: Scope,
    profiles: Vec<(PartitionKey, ProfileBuilder)>,
    /// Places in `profiles`, by the columns that the keys bind and then by key.
    places: BTreeMap<Vec<String>, BTreeMap<PartitionKey, usize>>,
}

impl ScopeProfiler {
    /// Starts empty. Refuses keys that do not fit the partitioning, and what [`ProfileBuilder::new`] refuses.
    pub fn new(
        partitioning: &Partitioning,
        scope: &Scope,
        schema: &Schema,
        spec: &ProfileSpec,
    ) -> Result<Self> {
        let empty = ProfileBuilder::new(schema, spec)?;
        let mut places: BTreeMap<Vec<String>, BTreeMap<PartitionKey, usize>> = BTreeMap::new();
        let mut profiles = Vec::new();
        for key in scope.partitions() {
            let ordered = partitioning.check_key(&key)?;
            let columns = ordered.bound().map(|(column, _)| column.to_owned()).collect();
            places.entry(columns).or_default().insert(ordered, profiles.len());
            profiles.push((key, empty.clone()));
        }
        Ok(Self { partitioning: partitioning.clone(), scope: scope.clone(), profiles, places })
    }

    /// Adds rows. Refuses rows outside the scope, naming up to five of their partitions.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut outside = BTreeMap::new();
        let mut rows_of: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        if self.scope.is_whole_table() {
            return self.profiles.iter_mut().try_for_each(|(_, builder)| builder.push(batch));
        }
        for (key, run) in partition_runs(&self.partitioning, batch)? {
            let places = self.places_of(&key);
            if places.is_empty() {
                *outside.entry(key).or_insert(0) += run.len();
                continue;
            }
            for place in places {
                let rows = run.clone().map(|row| u64::try_from(row).unwrap_or(u64::MAX));
                rows_of.entry(place).or_default().extend(rows);
            }
        }
        refuse_outside(&self.scope, &outside)?;
        for (place, rows) in rows_of {
            let Some((_, builder)) = self.profiles.get_mut(place) else { continue };
            if rows.len() == batch.num_rows() {
                builder.push(batch)?;
            } else {
                let rows = take_record_batch(batch, &UInt64Array::from(rows))
                    .map_err(|e| Error::internal("the rows of a partition cannot be taken").with_source(e))?;
                builder.push(&rows)?;
            }
        }
        Ok(())
    }

    /// One profile per key, in the order of the scope.
    pub fn finish(self) -> Vec<Profile> {
        self.profiles.into_iter().map(|(key, builder)| builder.finish(key)).collect()
    }

    fn places_of(&self, key: &PartitionKey) -> BTreeSet<usize> {
        let find = |(columns, keys): (&Vec<String>, &BTreeMap<PartitionKey, usize>)| {
            keys.get(&key.only(columns.iter().map(String::as_str))).copied()
        };
        self.places.iter().filter_map(find).collect()
    }
}
