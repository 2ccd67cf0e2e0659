//! Changes by commits of ours.

use std::collections::BTreeMap;

use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::{Changes, READ, WRITE};
use crate::catalog::{from_json, to_json};

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

impl Changes<'_> {
    /// The last number that was taken.
    pub(crate) async fn seq(&self, connection: &mut PgConnection) -> Result<i64> {
        let statement = self.schema.sql("SELECT seq FROM reprocess.table_seq WHERE t = $1").bind(self.t);
        let row: Option<(i64,)> = statement.first(connection, READ).await?;
        Ok(row.map_or(0, |(seq,)| seq))
    }

    /// The greatest numbers of keys up to one, in order.
    pub(super) async fn own(
        &self,
        connection: &mut PgConnection,
        keys: &[PartitionKey],
        at: i64,
    ) -> Result<Vec<i64>> {
        let mut versions = vec![0; keys.len()];
        for shape in self.shapes(connection).await? {
            let columns: Vec<String> = from_json(&shape)?;
            let (mut exact, mut begins, mut each) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
            let mut every = Vec::new();
            for (place, key) in keys.iter().enumerate() {
                match lookup(&columns, key) {
                    Lookup::Exact(text) => drop(exact.insert(place, text)),
                    Lookup::Begins(text) => drop(begins.insert(place, text)),
                    Lookup::Every => every.push(place),
                    Lookup::Each => each.push(place),
                }
            }
            let mut raise = |place: usize, seq: i64| {
                if let Some(version) = versions.get_mut(place) {
                    *version = seq.max(*version);
                }
            };
            self.find(connection, &shape, exact, "c.partition = k.value", at, &mut raise).await?;
            let range = "c.partition >= k.value || '/' AND c.partition < k.value || '0'";
            self.find(connection, &shape, begins, range, at, &mut raise).await?;
            if !every.is_empty() {
                let all = BTreeMap::from([(0, String::new())]);
                self.find(connection, &shape, all, "true", at, &mut |_, seq| {
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
        Ok(versions)
    }

    /// The keys that changed after a number.
    pub(super) async fn own_since(
        &self,
        connection: &mut PgConnection,
        after: i64,
    ) -> Result<Vec<PartitionKey>> {
        let rows: Vec<(String,)> = self
            .schema
            .sql("SELECT DISTINCT partition FROM reprocess.table_change WHERE t = $1 AND seq > $2")
            .bind(self.t)
            .bind(after)
            .all(connection, READ)
            .await?;
        rows.iter().map(|(text,)| self.parse(text)).collect()
    }

    /// Takes the next number and logs it for each key. From here to its end the transaction is alone with the number.
    pub(crate) async fn log(&self, connection: &mut PgConnection, keys: &[PartitionKey]) -> Result<i64> {
        let (mut shapes, mut texts) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
        for key in keys {
            let key = self.partitioning.check_key(key)?;
            let shape: Vec<_> = key.bound().map(|(column, _)| column).collect();
            shapes.push(to_json(&shape)?);
            texts.push(key.to_string());
        }
        let (seq,): (i64,) = self
            .schema
            .sql("UPDATE reprocess.table_seq SET seq = seq + 1 WHERE t = $1 RETURNING seq")
            .bind(self.t)
            .one(connection, WRITE)
            .await?;
        self.schema
            .sql(
                "INSERT INTO reprocess.table_change (t, shape, partition, seq)
                 SELECT $1, k.shape, k.partition, $2 FROM unnest($3::text[], $4::text[]) AS k (shape, partition)
                 ON CONFLICT DO NOTHING",
            )
            .bind(self.t)
            .bind(seq)
            .bind(shapes)
            .bind(texts)
            .execute(connection, WRITE)
            .await?;
        Ok(seq)
    }

    /// The sets of columns that logged keys bind, as JSON: few, each found by one look into the index.
    async fn shapes(&self, connection: &mut PgConnection) -> Result<Vec<String>> {
        let rows: Vec<(String,)> = self
            .schema
            .sql(
                "WITH RECURSIVE s (shape) AS (
                     (SELECT shape FROM reprocess.table_change WHERE t = $1 ORDER BY shape LIMIT 1)
                     UNION ALL
                     SELECT (SELECT c.shape FROM reprocess.table_change AS c WHERE c.t = $1 AND c.shape > s.shape
                             ORDER BY c.shape LIMIT 1)
                     FROM s WHERE s.shape IS NOT NULL)
                 SELECT shape FROM s WHERE shape IS NOT NULL",
            )
            .bind(self.t)
            .all(connection, READ)
            .await?;
        Ok(rows.into_iter().map(|(shape,)| shape).collect())
    }

    async fn find(
        &self,
        connection: &mut PgConnection,
        shape: &str,
        texts: BTreeMap<usize, String>,
        condition: &str,
        at: i64,
        found: &mut impl FnMut(usize, i64),
    ) -> Result<()> {
        if texts.is_empty() {
            return Ok(());
        }
        let (places, texts): (Vec<usize>, Vec<String>) = texts.into_iter().unzip();
        let rows: Vec<(i64, Option<i64>)> = self
            .schema
            .sql(&format!(
                "SELECT k.place - 1, (SELECT max(c.seq) FROM reprocess.table_change AS c
                                      WHERE c.t = $1 AND c.shape = $2 AND {condition} AND c.seq <= $3)
                 FROM unnest($4::text[]) WITH ORDINALITY AS k (value, place)"
            ))
            .bind(self.t)
            .bind(shape)
            .bind(at)
            .bind(texts)
            .all(connection, READ)
            .await?;
        for (index, seq) in rows {
            let place = usize::try_from(index).ok().and_then(|index| places.get(index));
            if let (Some(place), Some(seq)) = (place, seq) {
                found(*place, seq);
            }
        }
        Ok(())
    }

    async fn logged(
        &self,
        connection: &mut PgConnection,
        shape: &str,
        at: i64,
    ) -> Result<Vec<(PartitionKey, i64)>> {
        let rows: Vec<(String, i64)> = self
            .schema
            .sql(
                "SELECT partition, max(seq) FROM reprocess.table_change WHERE t = $1 AND shape = $2 AND seq <= $3
                 GROUP BY partition",
            )
            .bind(self.t)
            .bind(shape)
            .bind(at)
            .all(connection, READ)
            .await?;
        rows.into_iter().map(|(text, seq)| Ok((self.parse(&text)?, seq))).collect()
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
