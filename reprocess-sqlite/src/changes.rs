//! The log of what changed when: where the versions of tables, partitions and slices come from.
//!
//! Every commit takes the next number of its table and logs it for each key it touched. The version of a partition is
//! the greatest number logged for a key that overlaps it, and `0` where there is none. Of several changes by others only
//! the last is logged, so that what a partition was before it cannot be told from the log.

mod foreign;

use std::collections::BTreeMap;

use reprocess_core::domain::ids::{PartitionVersion, TableVersion};
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::slice::Slice;
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use crate::catalog::{from_json, to_json};
use crate::error::Doing;
use crate::sql::Sql;

const READ: &str = "read the log of changes";
const WRITE: &str = "write the log of changes";

/// Later than everything.
pub(crate) const NOW: i64 = i64::MAX;

/// The log of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changes<'a> {
    pub(crate) t: i64,
    pub(crate) partitioning: &'a Partitioning,
}

/// How logged keys of one shape are compared with a key.
enum Lookup {
    /// The key decides: one text.
    Exact(String),
    /// The key leaves the last columns open: texts that begin so.
    Begins(String),
    /// Every logged key of the shape overlaps.
    Every,
    /// One by one.
    Each,
}

pub(crate) fn table_version(seq: i64) -> TableVersion {
    TableVersion::new(seq.to_string())
}

pub(crate) fn partition_version(seq: i64) -> PartitionVersion {
    PartitionVersion::new(seq.to_string())
}

/// The number of a version of a table; `None` for what this backend never gave.
pub(crate) fn seq_of(version: &TableVersion) -> Option<i64> {
    version.as_str().parse().ok().filter(|seq| *seq >= 0)
}

impl Changes<'_> {
    /// The last number that was taken.
    pub(crate) async fn seq(&self, connection: &mut SqliteConnection) -> Result<i64> {
        let row = Sql::new("SELECT seq FROM main.reprocess_seq WHERE t = ")
            .bind(self.t)
            .first(connection, READ)
            .await?;
        row.map_or(Ok(0), |row| row.try_get(0)).doing(READ)
    }

    /// Versions of keys up to a number, in order.
    pub(crate) async fn versions(
        &self,
        connection: &mut SqliteConnection,
        keys: &[PartitionKey],
        at: i64,
    ) -> Result<Vec<i64>> {
        let keys = keys.iter().map(|key| self.partitioning.check_key(key)).collect::<Result<Vec<_>>>()?;
        let mut versions = vec![0; keys.len()];
        for shape in self.shapes(connection).await? {
            let columns: Vec<String> = from_json(&shape)?;
            let (mut exact, mut begins, mut each) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
            let mut every = Vec::new();
            for (place, key) in keys.iter().enumerate() {
                match lookup(&columns, key) {
                    Lookup::Exact(text) => exact.insert(place, text),
                    Lookup::Begins(text) => begins.insert(place, text),
                    Lookup::Every => {
                        every.push(place);
                        None
                    }
                    Lookup::Each => {
                        each.push(place);
                        None
                    }
                };
            }
            let mut raise = |place: usize, seq: i64| {
                if let Some(version) = versions.get_mut(place) {
                    *version = seq.max(*version);
                }
            };
            self.find(connection, &shape, &exact, "c.partition = k.value", at, &mut raise).await?;
            let range = "c.partition >= k.value || '/' AND c.partition < k.value || '0'";
            self.find(connection, &shape, &begins, range, at, &mut raise).await?;
            if !every.is_empty() {
                let all = BTreeMap::from([(0, String::new())]);
                self.find(connection, &shape, &all, "1", at, &mut |_, seq| {
                    every.iter().for_each(|place| raise(*place, seq));
                })
                .await?;
            }
            if !each.is_empty() {
                for (logged, seq) in self.logged(connection, &shape, at).await? {
                    let overlapping =
                        each.iter().filter(|place| keys.get(**place).is_some_and(|k| k.overlaps(&logged)));
                    overlapping.for_each(|place| raise(*place, seq));
                }
            }
        }
        for (touched, seq) in self.foreign(connection).await?.into_iter().filter(|(_, seq)| *seq <= at) {
            for (key, version) in keys.iter().zip(&mut versions) {
                if key.overlaps(&touched) {
                    *version = seq.max(*version);
                }
            }
        }
        Ok(versions)
    }

    /// Version of a slice as of a number, which may itself be the version: where others have changed the slice since, how
    /// often they had until then is not known.
    pub(crate) async fn slice(
        &self,
        connection: &mut SqliteConnection,
        slice: &Slice,
        at: i64,
    ) -> Result<i64> {
        let keys = match (slice, self.partitioning.time()) {
            (Slice::Time(slice), Some((column, calendar))) if slice.column == column => calendar
                .keys_in(&slice.interval)
                .filter_map(|value| self.partitioning.time_key(value))
                .map(|key| {
                    slice.only.bound().fold(key, |key, (column, value)| key.and(column, value.clone()))
                })
                .collect(),
            (Slice::Partitions(keys), _) => keys.iter().cloned().collect(),
            _ => vec![PartitionKey::whole()],
        };
        let last = |versions: Vec<i64>| versions.into_iter().max().unwrap_or(0);
        if at < self.blurred(connection).await? && last(self.versions(connection, &keys, NOW).await?) > at {
            return Ok(at);
        }
        Ok(last(self.versions(connection, &keys, at).await?))
    }

    /// The last number of a change by others.
    async fn blurred(&self, connection: &mut SqliteConnection) -> Result<i64> {
        let row = Sql::new(
            "SELECT max(blurred, coalesce((SELECT max(seq) FROM main.reprocess_foreign AS f WHERE f.t = s.t), 0))
             FROM main.reprocess_seq AS s WHERE s.t = ",
        )
        .bind(self.t)
        .first(connection, READ)
        .await?;
        row.map_or(Ok(0), |row| row.try_get(0)).doing(READ)
    }

    /// The keys that changed after a number.
    pub(crate) async fn since(
        &self,
        connection: &mut SqliteConnection,
        after: i64,
    ) -> Result<Vec<PartitionKey>> {
        let rows = Sql::new("SELECT partition FROM main.reprocess_change WHERE t = ")
            .bind(self.t)
            .text(" AND seq > ")
            .bind(after)
            .rows(connection, READ)
            .await?;
        let mut keys = Vec::with_capacity(rows.len());
        for row in rows {
            keys.push(self.parse(&row.try_get::<String, _>(0).doing(READ)?)?);
        }
        let foreign = self.foreign(connection).await?;
        keys.extend(foreign.into_iter().filter(|(_, seq)| *seq > after).map(|(key, _)| key));
        Ok(keys)
    }

    /// Takes the next number and logs it for each key.
    pub(crate) async fn log(&self, connection: &mut SqliteConnection, keys: &[PartitionKey]) -> Result<i64> {
        let row = Sql::new("UPDATE main.reprocess_seq SET seq = seq + 1 WHERE t = ")
            .bind(self.t)
            .text(" RETURNING seq")
            .first(connection, WRITE)
            .await?
            .ok_or_else(|| Error::internal("a table has no number"))?;
        let seq: i64 = row.try_get(0).doing(WRITE)?;
        self.log_as(connection, keys, seq).await?;
        Ok(seq)
    }

    pub(crate) async fn log_whole(&self, connection: &mut SqliteConnection) -> Result<i64> {
        self.log(connection, &[PartitionKey::whole()]).await
    }

    async fn log_as(&self, connection: &mut SqliteConnection, keys: &[PartitionKey], seq: i64) -> Result<()> {
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            let key = self.partitioning.check_key(key)?;
            let shape: Vec<_> = key.bound().map(|(column, _)| column).collect();
            rows.push((to_json(&shape)?, key.to_string()));
        }
        Sql::new("INSERT INTO main.reprocess_change (t, shape, partition, seq) SELECT ")
            .bind(self.t)
            .text(", value ->> 0, value ->> 1, ")
            .bind(seq)
            .text(" FROM json_each(")
            .bind(to_json(&rows)?)
            .text(") WHERE true ON CONFLICT DO NOTHING")
            .execute(connection, WRITE)
            .await?;
        Ok(())
    }

    /// The sets of columns that logged keys bind, as JSON.
    async fn shapes(&self, connection: &mut SqliteConnection) -> Result<Vec<String>> {
        let first = "SELECT min(shape) FROM main.reprocess_change WHERE t = ";
        let rows = Sql::new("WITH RECURSIVE s(shape) AS (")
            .text(first)
            .bind(self.t)
            .text(" UNION ALL SELECT (")
            .text(first)
            .bind(self.t)
            .text(" AND shape > s.shape) FROM s WHERE s.shape IS NOT NULL) SELECT shape FROM s WHERE shape IS NOT NULL")
            .rows(connection, READ)
            .await?;
        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().doing(READ)
    }

    async fn find(
        &self,
        connection: &mut SqliteConnection,
        shape: &str,
        texts: &BTreeMap<usize, String>,
        condition: &str,
        at: i64,
        found: &mut impl FnMut(usize, i64),
    ) -> Result<()> {
        if texts.is_empty() {
            return Ok(());
        }
        let places: Vec<_> = texts.keys().copied().collect();
        let texts: Vec<_> = texts.values().collect();
        let rows = Sql::new("SELECT k.key, (SELECT max(c.seq) FROM main.reprocess_change AS c WHERE c.t = ")
            .bind(self.t)
            .text(" AND c.shape = ")
            .bind(shape)
            .text(format!(" AND {condition} AND c.seq <= "))
            .bind(at)
            .text(") FROM json_each(")
            .bind(to_json(&texts)?)
            .text(") AS k")
            .rows(connection, READ)
            .await?;
        for row in rows {
            let index: i64 = row.try_get(0).doing(READ)?;
            let seq: Option<i64> = row.try_get(1).doing(READ)?;
            let place = usize::try_from(index).ok().and_then(|index| places.get(index));
            if let (Some(place), Some(seq)) = (place, seq) {
                found(*place, seq);
            }
        }
        Ok(())
    }

    async fn logged(
        &self,
        connection: &mut SqliteConnection,
        shape: &str,
        at: i64,
    ) -> Result<Vec<(PartitionKey, i64)>> {
        let rows = Sql::new("SELECT partition, max(seq) FROM main.reprocess_change WHERE t = ")
            .bind(self.t)
            .text(" AND shape = ")
            .bind(shape)
            .text(" AND seq <= ")
            .bind(at)
            .text(" GROUP BY partition")
            .rows(connection, READ)
            .await?;
        let mut logged = Vec::with_capacity(rows.len());
        for row in rows {
            let text: String = row.try_get(0).doing(READ)?;
            logged.push((self.parse(&text)?, row.try_get(1).doing(READ)?));
        }
        Ok(logged)
    }

    fn parse(&self, text: &str) -> Result<PartitionKey> {
        self.partitioning.parse_key(text).map_err(|e| {
            Error::new(
                ErrorKind::Corrupt,
                format!("the log names a partition `{text}` that the table cannot have"),
            )
            .with_source(e)
        })
    }
}

/// How keys that bind `columns` are found that overlap `key`.
fn lookup(columns: &[String], key: &PartitionKey) -> Lookup {
    let bound = columns.iter().take_while(|column| key.get(column).is_some()).count();
    let shared = columns.iter().filter(|column| key.get(column).is_some()).count();
    let text = || key.only(columns.iter().map(String::as_str)).to_string();
    if shared == columns.len() {
        Lookup::Exact(text())
    } else if shared == 0 {
        Lookup::Every
    } else if bound == shared {
        Lookup::Begins(text())
    } else {
        Lookup::Each
    }
}
