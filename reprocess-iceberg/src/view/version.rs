//! Versions of a table as text.

use iceberg::spec::{SchemaId, Snapshot};
use reprocess_core::domain::ids::TableVersion;
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::versions::ABSENT;
pub(crate) use reprocess_lake::versions::version_of;

/// Version of a table without a snapshot.
const NEW: &str = "new";

/// The version with a snapshot and columns; `None` is a table that is not there. The columns are only told where they are
/// others than those of the snapshot: they can change without one.
pub(super) fn version(of: Option<(Option<&Snapshot>, SchemaId)>) -> TableVersion {
    let Some((snapshot, columns)) = of else { return ABSENT.into() };
    let Some(snapshot) = snapshot else { return NEW.into() };
    let id = snapshot.snapshot_id();
    match snapshot.schema_id() {
        Some(known) if known != columns => TableVersion::new(format!("{id}.{columns}")),
        _ => TableVersion::new(id.to_string()),
    }
}

/// The snapshot that a version names: `Ok(None)` where the table was not there or had none. Refuses a text that is no
/// version with `PinBroken`.
pub(crate) fn snapshot_of(version: &TableVersion) -> Result<Option<i64>> {
    let text = version.as_str();
    if text == ABSENT || text == NEW {
        return Ok(None);
    }
    match parsed(text) {
        Some((snapshot, _)) => Ok(Some(snapshot)),
        None => Err(Error::new(ErrorKind::PinBroken, format!("`{version}` is no version of the table"))
            .with_advice("plan again with current inputs")),
    }
}

/// The columns that a version names, where they are others than those of its snapshot.
pub(crate) fn schema_of(version: &TableVersion) -> Option<SchemaId> {
    parsed(version.as_str())?.1
}

fn parsed(text: &str) -> Option<(i64, Option<SchemaId>)> {
    match text.split_once('.') {
        None => Some((text.parse().ok()?, None)),
        Some((snapshot, columns)) => Some((snapshot.parse().ok()?, Some(columns.parse().ok()?))),
    }
}

#[cfg(test)]
mod tests {
    use iceberg::spec::{Operation, Summary};

    use super::*;

    #[test]
    #[allow(clippy::disallowed_types, reason = "the library takes it")]
    fn versions_name_snapshots_and_columns_that_changed_without_one() {
        let of = |schema: Option<SchemaId>| {
            let summary = Summary { operation: Operation::Append, additional_properties: Default::default() };
            let builder = Snapshot::builder()
                .with_snapshot_id(7)
                .with_sequence_number(1)
                .with_timestamp_ms(0)
                .with_manifest_list("m.avro")
                .with_summary(summary);
            match schema {
                Some(schema) => builder.with_schema_id(schema).build(),
                None => builder.build(),
            }
        };
        for (version, text, snapshot, columns) in [
            (version(None), "none", None, None),
            (version(Some((None, 3))), "new", None, None),
            (version(Some((Some(&of(Some(3))), 3))), "7", Some(7), None),
            (version(Some((Some(&of(Some(3))), 4))), "7.4", Some(7), Some(4)),
            (version(Some((Some(&of(None)), 4))), "7", Some(7), None),
        ] {
            assert_eq!(version.as_str(), text);
            assert_eq!((snapshot_of(&version).unwrap(), schema_of(&version)), (snapshot, columns));
        }
    }

    #[test]
    fn a_text_that_is_no_version_is_a_broken_pin() {
        for text in ["", "empty", "7.", "7.x", ".4", "7.4.1", "9223372036854775808"] {
            assert_eq!(snapshot_of(&text.into()).unwrap_err().kind(), ErrorKind::PinBroken, "{text}");
        }
    }
}
