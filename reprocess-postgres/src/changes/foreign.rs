//! Changes by others, as the triggers log them.

use std::collections::BTreeMap;

use chrono::{DateTime, Days, NaiveDate};
use reprocess_core::Result;
use reprocess_core::domain::interval::Interval;
use reprocess_core::domain::partition::{Dimension, PartitionKey};
use reprocess_core::domain::value::{Value, ValueKind};
use serde_json::Value as Json;
use sqlx::PgConnection;

use super::{Changes, Others, READ, WRITE};
use crate::catalog::{QUARTER_SECONDS, from_json};

/// How many rows of the log are left apart.
const MOST_ROWS: i64 = 512;

/// What others did to a key.
#[derive(Clone, Debug)]
pub(super) struct Touched {
    pub(super) key: PartitionKey,
    /// How many changes count.
    pub(super) weight: i64,
    /// Whether some of what was put together counts and some not.
    pub(super) unsure: bool,
}

/// What others did, and the snapshot of which that is all.
#[derive(Clone, Debug, Default)]
pub(super) struct Foreign {
    pub(super) touched: Vec<Touched>,
    pub(super) snapshot: String,
}

impl Changes<'_> {
    /// The keys that others touched. One that a trigger could not tell apart comes as the several that it may be.
    pub(super) async fn foreign(&self, connection: &mut PgConnection, others: &Others) -> Result<Foreign> {
        let (seen, unsure, snapshot) = match others {
            Others::None => return Ok(Foreign::default()),
            Others::All => ("true", "false", None),
            Others::Ended(snapshot) => (
                "last_xid < pg_snapshot_xmin($2::pg_snapshot)
                 OR (first_xid = last_xid AND pg_visible_in_snapshot(last_xid, $2::pg_snapshot))",
                "first_xid <> last_xid AND last_xid >= pg_snapshot_xmin($2::pg_snapshot)
                 AND first_xid < pg_snapshot_xmax($2::pg_snapshot)",
                Some(snapshot.as_str()),
            ),
        };
        let statement = self.schema.sql(&format!(
            "SELECT key::text, coalesce(sum(weight) FILTER (WHERE {seen}), 0)::bigint, bool_or({unsure}),
                    pg_current_snapshot()::text
             FROM reprocess.table_foreign WHERE t = $1 GROUP BY key"
        ));
        let statement = statement.bind(self.t);
        let statement = snapshot.into_iter().fold(statement, |statement, snapshot| statement.bind(snapshot));
        let rows: Vec<(String, i64, bool, String)> = statement.all(connection, READ).await?;
        let (mut touched, mut as_of) = (BTreeMap::<PartitionKey, (i64, bool)>::new(), String::new());
        for (key, weight, unsure, snapshot) in rows {
            as_of = snapshot;
            if weight == 0 && !unsure {
                continue;
            }
            // What is no value of a dimension may belong anywhere.
            let keys = self.touched(&from_json::<Vec<Json>>(&key)?);
            for key in keys.unwrap_or_else(|| vec![PartitionKey::whole()]) {
                let sum = touched.entry(key).or_default();
                *sum = (sum.0 + weight, sum.1 || unsure);
            }
        }
        let touched = touched.into_iter().map(|(key, (weight, unsure))| Touched { key, weight, unsure });
        Ok(Foreign { touched: touched.collect(), snapshot: as_of })
    }

    /// Puts together what others did before every transaction that is open, where that is much.
    pub(crate) async fn fold(&self, connection: &mut PgConnection) -> Result<()> {
        let (rows,): (i64,) = self
            .schema
            .sql("SELECT count(*) FROM reprocess.table_foreign WHERE t = $1")
            .bind(self.t)
            .one(connection, READ)
            .await?;
        if rows <= MOST_ROWS {
            return Ok(());
        }
        // What a commit to other partitions puts together at the same time is left to it.
        self.schema
            .sql(
                "WITH old AS MATERIALIZED (
                     SELECT ctid AS place FROM reprocess.table_foreign
                     WHERE t = $1 AND last_xid < pg_snapshot_xmin(pg_current_snapshot())
                     FOR UPDATE SKIP LOCKED),
                 gone AS (
                     DELETE FROM reprocess.table_foreign WHERE ctid = ANY (ARRAY(SELECT place FROM old))
                     RETURNING key, first_xid, last_xid, weight)
                 INSERT INTO reprocess.table_foreign (t, key, first_xid, last_xid, weight)
                 SELECT $1, key, min(first_xid), max(last_xid), sum(weight)::bigint FROM gone GROUP BY key",
            )
            .bind(self.t)
            .execute(connection, WRITE)
            .await?;
        Ok(())
    }

    /// Mostly one key; two where a boundary lies within a quarter of an hour.
    fn touched(&self, logged: &[Json]) -> Option<Vec<PartitionKey>> {
        let dimensions = self.partitioning.dimensions();
        if logged.len() != dimensions.len() {
            return None;
        }
        let mut keys = vec![PartitionKey::whole()];
        for (dimension, logged) in dimensions.iter().zip(logged) {
            let values = values(dimension, logged)?;
            let column = dimension.column();
            keys = keys
                .iter()
                .flat_map(|key| values.iter().map(|value| key.clone().and(column, value.clone())))
                .collect();
        }
        Some(keys)
    }
}

fn values(dimension: &Dimension, logged: &Json) -> Option<Vec<Value>> {
    if logged.is_null() {
        return Some(vec![Value::Null]);
    }
    match dimension {
        Dimension::Time { calendar, .. } if logged.is_string() => {
            Some(vec![calendar.key_of_date(day(logged)?)?])
        }
        Dimension::Time { calendar, .. } => {
            let number = logged.as_i64()?;
            let instant = |quarter: i64| DateTime::from_timestamp(quarter.checked_mul(QUARTER_SECONDS)?, 0);
            let interval = Interval::new(instant(number)?, instant(number.checked_add(1)?)?)?;
            Some(calendar.keys_in(&interval).collect()).filter(|keys: &Vec<_>| !keys.is_empty())
        }
        Dimension::Key { kind, .. } => Some(vec![match kind {
            ValueKind::Text => Value::Text(logged.as_str()?.to_owned()),
            ValueKind::Date => Value::Date(day(logged)?),
            ValueKind::Integer => Value::Integer(logged.as_i64()?),
            ValueKind::Boolean => Value::Boolean(logged.as_bool()?),
            ValueKind::Timestamp => Value::Timestamp(DateTime::from_timestamp_micros(logged.as_i64()?)?),
        }]),
    }
}

fn day(logged: &Json) -> Option<NaiveDate> {
    let days: i64 = logged.as_str()?.parse().ok()?;
    let distance = Days::new(days.unsigned_abs());
    match days {
        0.. => NaiveDate::default().checked_add_days(distance),
        _ => NaiveDate::default().checked_sub_days(distance),
    }
}
