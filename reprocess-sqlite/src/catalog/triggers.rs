//! Triggers that notice rows written by others, so that the versions of the partitions they touch move.

use arrow_schema::{DataType, TimeUnit};
use reprocess_core::Result;
use reprocess_core::domain::partition::Dimension;

use super::Managed;
use crate::layout::Layout;
use crate::sql::ident;

/// Instants are logged by quarters of an hour: every boundary of a partition is at one in today's zones.
pub(crate) const QUARTER_SECONDS: i64 = 900;

/// The statements that create the triggers.
pub(super) fn statements(table: &Managed) -> Result<Vec<String>> {
    let events = [("INSERT", &["NEW"][..]), ("DELETE", &["OLD"]), ("UPDATE", &["OLD", "NEW"])];
    events.into_iter().map(|(event, rows)| statement(table, event, rows)).collect()
}

fn statement(table: &Managed, event: &str, rows: &[&str]) -> Result<String> {
    let t = table.t;
    let mut body = String::new();
    for row in rows {
        let mut key = Vec::new();
        for dimension in table.partitioning.dimensions() {
            key.push(logged(&table.layout, dimension, row)?);
        }
        body.push_str(&format!(
            "INSERT INTO reprocess_foreign (t, key, seq)
             SELECT {t}, json_array({}), seq FROM reprocess_seq WHERE t = {t}
             ON CONFLICT (t, key) DO UPDATE SET seq = excluded.seq;\n",
            key.join(", ")
        ));
    }
    Ok(format!(
        "CREATE TRIGGER main.reprocess_foreign_{t}_{} AFTER {event} ON {}
         WHEN (SELECT writing FROM reprocess_guard WHERE one = 1) <> {t}
         BEGIN
         UPDATE reprocess_seq SET seq = seq + 1 WHERE t = {t};
         {body}END",
        event.to_ascii_lowercase(),
        table.name
    ))
}

/// The value of a dimension as a literal, which tells every type apart; `?` for what is no value of it.
fn logged(layout: &Layout, dimension: &Dimension, row: &str) -> Result<String> {
    let column = format!("{row}.{}", ident(dimension.column()));
    Ok(match (dimension, layout.field(dimension.column())?.data_type()) {
        (dimension, DataType::Timestamp(unit, _)) => {
            let nanoseconds = *unit == TimeUnit::Nanosecond;
            let ticks = match dimension {
                Dimension::Time { .. } if nanoseconds => QUARTER_SECONDS * 1_000_000_000,
                Dimension::Time { .. } => QUARTER_SECONDS * 1_000_000,
                Dimension::Key { .. } if nanoseconds => 1_000,
                Dimension::Key { .. } => 1,
            };
            format!(
                "CASE typeof({column}) WHEN 'integer' THEN quote({column} / {ticks}) \
                 WHEN 'null' THEN 'NULL' ELSE '?' END"
            )
        }
        _ => format!("quote({column})"),
    })
}
