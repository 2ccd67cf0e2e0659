//! What one commit may touch.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::partition::{PartitionKey, Partitioning};
use crate::error::{Error, Result};

/// A non-empty set of keys, or explicitly the whole table. There is no scope that means everything by leaving
/// something out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Repr", into = "Repr")]
pub struct Scope(Inner);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Inner {
    WholeTable,
    Keys(BTreeSet<PartitionKey>),
}

impl Scope {
    /// The whole table, said by its name.
    pub fn whole_table() -> Self {
        Self(Inner::WholeTable)
    }

    /// The partition or partitions of one key; the key must bind a column.
    pub fn key(key: PartitionKey) -> Result<Self> {
        Self::keys([key])
    }

    /// A set of keys. Refuses the empty set, and a key that binds nothing: the whole table is
    /// [`Scope::whole_table`].
    pub fn keys(keys: impl IntoIterator<Item = PartitionKey>) -> Result<Self> {
        let keys: BTreeSet<_> = keys.into_iter().collect();
        if keys.is_empty() {
            return Err(Error::invalid("a scope without keys would touch nothing"));
        }
        if keys.iter().any(PartitionKey::is_whole) {
            return Err(Error::invalid("a key that binds no column is not a scope")
                .with_advice("say Scope::whole_table() where the whole table is meant"));
        }
        Ok(Self(Inner::Keys(keys)))
    }

    /// The scope of a table's partition: its key, or the whole table where the table has no dimension.
    pub fn of_partition(partitioning: &Partitioning, key: PartitionKey) -> Result<Self> {
        if partitioning.dimensions().is_empty() && key.is_whole() {
            return Ok(Self::whole_table());
        }
        Self::key(key)
    }

    /// Whether this is the whole table.
    pub fn is_whole_table(&self) -> bool {
        self.0 == Inner::WholeTable
    }

    /// The keys, in order; the whole table answers the one key that binds nothing.
    pub fn partitions(&self) -> Vec<PartitionKey> {
        match &self.0 {
            Inner::WholeTable => vec![PartitionKey::whole()],
            Inner::Keys(keys) => keys.iter().cloned().collect(),
        }
    }

    /// Whether a partition can belong to both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Inner::Keys(a), Inner::Keys(b)) => keys_overlap(a, b),
            _ => true,
        }
    }

    /// Whether every partition of the key belongs to the scope.
    pub fn covers(&self, key: &PartitionKey) -> bool {
        match &self.0 {
            Inner::WholeTable => true,
            Inner::Keys(keys) => keys.contains(key) || keys.iter().any(|k| k.covers(key)),
        }
    }

    /// Whether every key of the other scope belongs to this one.
    pub fn covers_all(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Inner::WholeTable, _) => true,
            (Inner::Keys(_), Inner::WholeTable) => false,
            (Inner::Keys(_), Inner::Keys(others)) => others.iter().all(|key| self.covers(key)),
        }
    }

    /// The scope that touches what either touches.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (Inner::Keys(a), Inner::Keys(b)) => Self(Inner::Keys(a | b)),
            _ => Self::whole_table(),
        }
    }

    /// The scope that touches what any of them touches; `None` where there are none. In one pass, while a chain of
    /// [`union`](Self::union) copies all that came before at every step.
    pub fn union_of<'a>(scopes: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut all = BTreeSet::new();
        for scope in scopes {
            match &scope.0 {
                Inner::WholeTable => return Some(Self::whole_table()),
                Inner::Keys(keys) => all.extend(keys.iter().cloned()),
            }
        }
        (!all.is_empty()).then_some(Self(Inner::Keys(all)))
    }

    /// A short digest of the scope, equal on every machine; part of a stamp.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for key in self.partitions() {
            hasher.update(key.to_string().as_bytes());
            hasher.update(b"\n");
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }
}

/// Keys that bind the same columns overlap only where they are equal, which is looked up instead of tried.
fn keys_overlap(a: &BTreeSet<PartitionKey>, b: &BTreeSet<PartitionKey>) -> bool {
    let (few, many) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    let columns = |key: &PartitionKey| key.bound().map(|(column, _)| column.to_owned()).collect::<Vec<_>>();
    let shapes: BTreeSet<_> = many.iter().map(columns).collect();
    few.iter().any(|key| match shapes.len() == 1 && shapes.contains(&columns(key)) {
        true => many.contains(key),
        false => many.iter().any(|other| key.overlaps(other)),
    })
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::WholeTable => f.pad("the whole table"),
            Inner::Keys(keys) => {
                f.pad(&keys.iter().map(PartitionKey::to_string).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Repr {
    WholeTable,
    Keys(Vec<PartitionKey>),
}

impl From<Scope> for Repr {
    fn from(scope: Scope) -> Self {
        match scope.0 {
            Inner::WholeTable => Self::WholeTable,
            Inner::Keys(keys) => Self::Keys(keys.into_iter().collect()),
        }
    }
}

impl TryFrom<Repr> for Scope {
    type Error = Error;

    fn try_from(repr: Repr) -> Result<Self> {
        match repr {
            Repr::WholeTable => Ok(Self::whole_table()),
            Repr::Keys(keys) => Self::keys(keys),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_means_everything_by_omission() {
        assert!(Scope::keys([]).is_err());
        assert!(Scope::key(PartitionKey::whole()).is_err());
        assert!(serde_json::from_str::<Scope>(r#"{"keys":[]}"#).is_err());
        assert!(serde_json::from_str::<Scope>(r#""whole_table""#).unwrap().is_whole_table());
    }

    #[test]
    fn scopes_overlap_where_a_partition_can_belong_to_both() {
        let day = |d: i64| PartitionKey::of("day", d);
        let first = Scope::key(day(1).and("country", "FR")).unwrap();
        assert!(first.overlaps(&Scope::key(day(1)).unwrap()));
        assert!(!first.overlaps(&Scope::keys([day(2), day(3)]).unwrap()));
        assert!(first.overlaps(&Scope::whole_table()));
        assert!(Scope::key(day(1)).unwrap().covers(&day(1).and("country", "DE")));
        assert!(!first.covers(&day(1)));
    }
}
