//! The part of an input that one task reads, and the pin that fixes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};

use super::ids::{PartitionVersion, TableId, TableVersion};
use super::interval::Interval;
use super::partition::{PartitionKey, Partitioning};
use super::value::Value;
use crate::error::Result;

/// The part of an input that one task reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slice {
    /// Whole periods of the input's time dimension.
    Time(TimeSlice),
    /// Named partitions: the one whose time is NULL, or those of entity keys.
    Partitions(BTreeSet<PartitionKey>),
    /// Reference rows effective at a date.
    AsOf(AsOfSlice),
    /// The whole table.
    All,
}

/// Whole periods of the input's time dimension, oldest and newest included.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TimeSlice {
    /// Time column of the input.
    pub column: String,
    /// Key of the oldest period.
    pub first: Value,
    /// Key of the newest period.
    pub last: Value,
    /// From the start of the oldest period to the end of the newest. A column of instants is bound by this; a
    /// column of local dates by the first date of `first` and the first date after `last`.
    pub interval: Interval,
    /// Further columns and the values they must have; mostly empty.
    #[serde(default, skip_serializing_if = "PartitionKey::is_whole")]
    pub only: PartitionKey,
}

/// Rows of a reference table effective at a date: `from <= date`, and `date < to` or `to` NULL. Where the table has
/// no `to` column, the row with the greatest `from` of each entity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AsOfSlice {
    /// Column with the first date or instant at which a row holds; rows where it is NULL never do.
    pub from: String,
    /// Column with the first date or instant at which it no longer holds.
    pub to: Option<String>,
    /// Columns that name the entity; used where there is no `to`.
    pub entity: Vec<String>,
    /// The date, for columns of dates: the first date of the partition.
    pub date: NaiveDate,
    /// The instant, for columns of instants: the start of the partition.
    pub instant: DateTime<Utc>,
}

impl Slice {
    /// Whether a change of the partition can change the slice. Errs on the side of `true`.
    pub fn may_hold(&self, partitioning: &Partitioning, partition: &PartitionKey) -> bool {
        match self {
            Self::Time(slice) => {
                let in_time = match (partition.get(&slice.column), partitioning.interval(partition)) {
                    (Some(_), Some(interval)) => slice.interval.overlaps(&interval),
                    (Some(_), None) => false,
                    (None, _) => true,
                };
                in_time && slice.only.overlaps(partition)
            }
            Self::Partitions(keys) => keys.iter().any(|k| k.overlaps(partition)),
            Self::AsOf(_) | Self::All => true,
        }
    }
}

impl Slice {
    /// Whether the rows of a partition lie in the slice, whose key binds every dimension; of [`AsOf`](Self::AsOf) whether
    /// some may.
    ///
    /// Time keys are compared rather than rows: a row lies in the interval exactly where its period does, and a local
    /// date that the zone left out belongs to no other period.
    pub fn holds(&self, partition: &PartitionKey) -> bool {
        match self {
            Self::Time(slice) => {
                let time = partition.get(&slice.column);
                time.is_some_and(|time| slice.first <= *time && *time <= slice.last)
                    && slice.only.overlaps(partition)
            }
            Self::Partitions(keys) => keys.iter().any(|wanted| wanted.covers(partition)),
            Self::AsOf(_) | Self::All => true,
        }
    }

    /// Refuses columns that are no dimensions: without them a slice would silently be another.
    pub fn check(&self, partitioning: &Partitioning) -> Result<()> {
        let check = |key: &PartitionKey| partitioning.check_key(key).map(drop);
        match self {
            Self::Time(slice) => check(&slice.only.clone().and(&slice.column, slice.first.clone())),
            Self::Partitions(keys) => keys.iter().try_for_each(check),
            Self::AsOf(_) | Self::All => Ok(()),
        }
    }

    /// Keys that cover all that the slice holds; `whole` where it names no partitions.
    pub fn keys(&self, partitioning: &Partitioning) -> BTreeSet<PartitionKey> {
        match (self, partitioning.time()) {
            (Self::Time(slice), Some((column, calendar))) if column == slice.column => {
                let further = |key: PartitionKey| {
                    let others = slice.only.bound().filter(|(name, _)| *name != column);
                    others.fold(key, |key, (name, value)| key.and(name, value.clone()))
                };
                let periods = calendar.keys_in(&slice.interval);
                periods.map(|period| further(PartitionKey::of(column, period))).collect()
            }
            (Self::Partitions(keys), _) => keys.clone(),
            (Self::Time(_) | Self::AsOf(_) | Self::All, _) => BTreeSet::from([PartitionKey::whole()]),
        }
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(s) => {
                write!(f, "{}={}", s.column, s.first)?;
                if s.first != s.last {
                    write!(f, "..{}", s.last)?;
                }
                if !s.only.is_whole() {
                    write!(f, "/{}", s.only)?;
                }
                Ok(())
            }
            Self::Partitions(keys) => {
                f.write_str(&keys.iter().map(PartitionKey::to_string).collect::<Vec<_>>().join(", "))
            }
            Self::AsOf(s) => write!(f, "effective on {}", s.date),
            Self::All => f.write_str("everything"),
        }
    }
}

/// The recorded version of an input slice that a task reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pin {
    /// The table.
    pub table: TableId,
    /// Its version when the pin was taken.
    pub version: TableVersion,
    /// The part that is read.
    pub slice: Slice,
    /// Version of that part's content; a reader refuses to read a slice whose content is another.
    pub content: PartitionVersion,
}

/// The version of each partition of a scope that a commit expects to replace, the empty ones included. One entry for
/// each key of the scope: a key that binds only some dimensions has one version for all partitions below it, which
/// changes when any of them does, also when a new one appears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Version of the table at which the base was taken.
    pub table: TableVersion,
    /// Version of each key.
    #[serde(with = "entries")]
    pub partitions: BTreeMap<PartitionKey, PartitionVersion>,
}

impl Base {
    /// A base of versions.
    pub fn new(table: TableVersion, partitions: BTreeMap<PartitionKey, PartitionVersion>) -> Self {
        Self { table, partitions }
    }

    /// The keys whose version differs from the other base, or is not there.
    pub fn moved_since(&self, earlier: &Self) -> Vec<PartitionKey> {
        let same = |key: &&PartitionKey| self.partitions.get(key) == earlier.partitions.get(key);
        earlier.partitions.keys().filter(|key| !same(key)).cloned().collect()
    }
}

/// What a commit replaced, kept so that it can be restored; opaque to the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Kept(pub serde_json::Value);

/// JSON keys are text, so the map is written as a list of pairs.
pub(crate) mod entries {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::PartitionKey;

    pub(crate) fn serialize<V: Serialize, S: Serializer>(
        map: &BTreeMap<PartitionKey, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(crate) fn deserialize<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<PartitionKey, V>, D::Error> {
        Ok(Vec::<(PartitionKey, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}
