//! Triggers that notice rows written by others, so that the versions of the partitions they touch move.
//!
//! They fire once for a statement and add a row for each key that it touched, without waiting for any other
//! transaction. What this library writes itself they leave out: its commits say the relation that they write.

use arrow_schema::DataType;
use reprocess_core::Result;
use reprocess_core::domain::partition::Dimension;

use super::Managed;
use crate::layout::{Layout, quoted};

/// Instants are logged by quarters of an hour: every boundary of a partition is at one in today's zones.
pub(crate) const QUARTER_SECONDS: i64 = 900;

/// Set to the number of the relation that a transaction of ours writes.
pub(crate) const WRITING: &str = "reprocess_table.writing";

/// An event, and where it finds the rows that it touched.
const EVENTS: [(&str, &str, &[&str]); 3] = [
    ("insert", "REFERENCING NEW TABLE AS new_rows", &["new_rows"]),
    ("update", "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows", &["old_rows", "new_rows"]),
    ("delete", "REFERENCING OLD TABLE AS old_rows", &["old_rows"]),
];

/// The statements that create the triggers, in place of those that are there.
pub(super) fn statements(table: &Managed) -> Result<Vec<String>> {
    let mut statements = Vec::new();
    let mut key = Vec::new();
    for dimension in table.partitioning.dimensions() {
        key.push(logged(&table.layout, dimension)?);
    }
    let key = format!("jsonb_build_array({})", key.join(", "));
    for (event, referencing, rows) in EVENTS {
        let touched: Vec<_> =
            rows.iter().map(|rows| format!("SELECT {key} AS key FROM {rows} AS r")).collect();
        let touched = touched.join(" UNION ");
        let body = format!("SELECT DISTINCT t.key FROM ({touched}) AS t");
        statements.extend(trigger(table, event, referencing, &body));
    }
    // Of no dimension: any partition may be another.
    statements.extend(trigger(table, "truncate", "", "SELECT '[]'::jsonb AS key"));
    Ok(statements)
}

/// The statements that create the triggers of a partition of the table. They fire where a statement names the partition,
/// and those of the table where it names the table, so that nothing is counted twice.
pub(super) fn of_child(table: &Managed, child: &str) -> Vec<String> {
    let events =
        EVENTS.iter().map(|(event, referencing, _)| (*event, *referencing)).chain([("truncate", "")]);
    events.flat_map(|(event, referencing)| on(table, child, event, referencing)).collect()
}

fn trigger(table: &Managed, event: &str, referencing: &str, touched: &str) -> Vec<String> {
    let (t, relation) = (table.t, table.relation);
    let function = function(table, event);
    let log = table.schema.text("reprocess.table_foreign");
    let mut quote = "$reprocess$".to_owned();
    while touched.contains(&quote) {
        quote.insert(1, '_');
    }
    let mut statements = vec![format!(
        "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
             SET search_path = pg_catalog, pg_temp AS {quote}
             BEGIN
                 IF current_setting('{WRITING}', true) IS DISTINCT FROM '{relation}' THEN
                     INSERT INTO {log} (t, key, first_xid, last_xid, weight)
                     SELECT {t}, touched.key, pg_current_xact_id(), pg_current_xact_id(), 1
                     FROM ({touched}) AS touched;
                 END IF;
                 RETURN NULL;
             END
             {quote}"
    )];
    statements.extend(on(table, table.name.quoted(), event, referencing));
    statements
}

fn function(table: &Managed, event: &str) -> String {
    table.schema.text(&format!("reprocess.foreign_{}_{event}", table.t))
}

/// The trigger of an event on a relation.
fn on(table: &Managed, relation: &str, event: &str, referencing: &str) -> [String; 2] {
    let (t, function) = (table.t, function(table, event));
    [
        format!(
            "CREATE OR REPLACE TRIGGER reprocess_foreign_{t}_{event} AFTER {event} ON {relation} {referencing}
             FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
        ),
        // Also for sessions that replay the changes of another server.
        format!("ALTER TABLE ONLY {relation} ENABLE ALWAYS TRIGGER reprocess_foreign_{t}_{event}"),
    ]
}

/// The value of a dimension of the row `r` as JSON, the days of a date as a text; `{}` for what no partition can have.
fn logged(layout: &Layout, dimension: &Dimension) -> Result<String> {
    let column = format!("r.{}", quoted(dimension.column()));
    let data_type = layout.field(dimension.column())?.data_type();
    let finite = |value: &str| {
        format!(
            "CASE WHEN {column} IS NULL THEN 'null'::jsonb WHEN isfinite({column}) THEN to_jsonb({value}) \
             ELSE '{{}}'::jsonb END"
        )
    };
    Ok(match (dimension, data_type) {
        (_, DataType::Date32) => finite(&format!("({column} - '1970-01-01'::date)::text")),
        (Dimension::Time { .. }, _) => {
            finite(&format!("floor(extract(epoch FROM {column}) / {QUARTER_SECONDS})::bigint"))
        }
        (_, DataType::Timestamp(..)) => finite(&format!("(extract(epoch FROM {column}) * 1000000)::bigint")),
        (_, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) => format!("to_jsonb({column}::text)"),
        _ => format!("to_jsonb({column})"),
    })
}
