//! Changes by others, as the triggers log them.

use chrono::DateTime;
use reprocess_core::Result;
use reprocess_core::domain::interval::Interval;
use reprocess_core::domain::partition::{Dimension, PartitionKey};
use reprocess_core::domain::value::{Value, ValueKind};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::{Changes, READ, WRITE};
use crate::catalog::{QUARTER_SECONDS, from_json};
use crate::error::Doing;
use crate::sql::Sql;

impl Changes<'_> {
    /// The keys that others touched and that are not yet in the log, each with its number.
    pub(super) async fn foreign(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<Vec<(PartitionKey, i64)>> {
        let rows = Sql::new("SELECT key, seq FROM main.reprocess_foreign WHERE t = ")
            .bind(self.t)
            .rows(connection, READ)
            .await?;
        let mut touched = Vec::new();
        for row in rows {
            let literals: Vec<String> = from_json(&row.try_get::<String, _>(0).doing(READ)?)?;
            let seq = row.try_get(1).doing(READ)?;
            // What is no value of a dimension may belong anywhere.
            let keys = self.touched(&literals).unwrap_or_else(|| vec![PartitionKey::whole()]);
            touched.extend(keys.into_iter().map(|key| (key, seq)));
        }
        Ok(touched)
    }

    /// Moves what the triggers logged into the log.
    pub(crate) async fn fold(&self, connection: &mut SqliteConnection) -> Result<()> {
        let foreign = self.foreign(connection).await?;
        let Some(last) = foreign.iter().map(|(_, seq)| *seq).max() else { return Ok(()) };
        for (key, seq) in foreign {
            self.log_as(connection, &[key], seq).await?;
        }
        Sql::new("UPDATE main.reprocess_seq SET blurred = ")
            .bind(last)
            .text(" WHERE t = ")
            .bind(self.t)
            .execute(connection, WRITE)
            .await?;
        Sql::new("DELETE FROM main.reprocess_foreign WHERE t = ")
            .bind(self.t)
            .execute(connection, WRITE)
            .await?;
        Ok(())
    }

    /// Mostly one key; two where a boundary lies within a quarter of an hour.
    fn touched(&self, literals: &[String]) -> Option<Vec<PartitionKey>> {
        let dimensions = self.partitioning.dimensions();
        if literals.len() != dimensions.len() {
            return None;
        }
        let mut keys = vec![PartitionKey::whole()];
        for (dimension, literal) in dimensions.iter().zip(literals) {
            let values = values(dimension, literal)?;
            let column = dimension.column();
            keys = keys
                .iter()
                .flat_map(|key| values.iter().map(|value| key.clone().and(column, value.clone())))
                .collect();
        }
        Some(keys)
    }
}

fn values(dimension: &Dimension, literal: &str) -> Option<Vec<Value>> {
    if literal == "NULL" {
        return Some(vec![Value::Null]);
    }
    let text = unquoted(literal);
    match (dimension, text) {
        (Dimension::Time { calendar, .. }, Some(date)) => {
            Some(vec![calendar.key_of_date(date.parse().ok()?)?])
        }
        (Dimension::Time { calendar, .. }, None) => {
            let quarter: i64 = literal.parse().ok()?;
            let instant = |quarter: i64| DateTime::from_timestamp(quarter.checked_mul(QUARTER_SECONDS)?, 0);
            // SQLite rounds towards zero, so up to 1970 a quarter also stands for the one before.
            let first = if quarter > 0 { quarter } else { quarter.checked_sub(1)? };
            let interval = Interval::new(instant(first)?, instant(quarter.checked_add(1)?)?)?;
            Some(calendar.keys_in(&interval).collect()).filter(|keys: &Vec<_>| !keys.is_empty())
        }
        (Dimension::Key { kind, .. }, text) => Some(vec![match (kind, text) {
            (ValueKind::Text, Some(text)) => Value::Text(text),
            (ValueKind::Date, Some(text)) => Value::Date(text.parse().ok()?),
            (ValueKind::Integer, None) => Value::Integer(literal.parse().ok()?),
            (ValueKind::Boolean, None) => Value::Boolean(match literal {
                "0" => false,
                "1" => true,
                _ => return None,
            }),
            (ValueKind::Timestamp, None) => {
                Value::Timestamp(DateTime::from_timestamp_micros(literal.parse().ok()?)?)
            }
            _ => return None,
        }]),
    }
}

/// The text of a literal of SQLite; `None` where it is no text.
fn unquoted(literal: &str) -> Option<String> {
    Some(literal.strip_prefix('\'')?.strip_suffix('\'')?.replace("''", "'"))
}
