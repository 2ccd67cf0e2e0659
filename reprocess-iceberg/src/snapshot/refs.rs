//! What the metadata of a table has to be, and becomes, for a snapshot: columns, branches and tags.

use std::sync::Arc;

use iceberg::spec::{
    FormatVersion, MAIN_BRANCH, Schema, SchemaRef, Snapshot, SnapshotReference, SnapshotRetention,
    TableMetadata, TableMetadataBuilder, TableMetadataRef,
};
use iceberg::{TableRequirement, TableUpdate};
use reprocess_core::{Error, ErrorKind, Result};

use super::{Draft, RefChange};
use crate::error::Doing;

/// The metadata that a snapshot is added to, and the columns that it has.
#[derive(Debug)]
pub(super) struct Ground<'a> {
    metadata: &'a TableMetadataRef,
    pub(super) schema: SchemaRef,
    /// Whether they are others than those that the table has now.
    new_columns: bool,
}

impl<'a> Ground<'a> {
    pub(super) fn new(metadata: &'a TableMetadataRef, draft: &Draft) -> Result<Self> {
        let now = metadata.current_schema();
        match &draft.columns {
            Some(columns) if !same(columns, now) => {
                if draft.branch == MAIN_BRANCH {
                    check_partitioned(metadata, columns)?;
                }
                Ok(Self { metadata, schema: numbered(metadata, columns)?, new_columns: true })
            }
            _ => Ok(Self { metadata, schema: now.clone(), new_columns: false }),
        }
    }

    pub(super) fn format(&self) -> FormatVersion {
        self.metadata.format_version()
    }

    /// What the catalog is asked to make sure of, and to change, for the snapshot to be the head of the
    /// draft's branch.
    ///
    /// What the branch says of retention stays. New columns become those of the table with a snapshot on
    /// main; with one on another branch they only become known: production does not change before the branch
    /// is published.
    pub(super) fn ask(
        &self,
        snapshot: &Snapshot,
        draft: &Draft,
    ) -> Result<(Vec<TableRequirement>, Vec<TableUpdate>)> {
        let what = "add a snapshot to the table";
        let mut builder = self.metadata.as_ref().clone().into_builder(None);
        if self.new_columns {
            builder = builder.add_schema(self.schema.as_ref().clone()).doing(what)?;
            if draft.branch == MAIN_BRANCH {
                builder = builder.set_current_schema(TableMetadataBuilder::LAST_ADDED).doing(what)?;
            }
        }
        builder = builder.set_branch_snapshot(snapshot.clone(), &draft.branch).doing(what)?;
        for change in &draft.refs {
            builder = match change {
                RefChange::Tag { name, snapshot } => builder.set_ref(name, tag(*snapshot)).doing(what)?,
                RefChange::Remove { name } => builder.remove_ref(name),
            };
        }
        Ok((self.requirements(draft), builder.build().doing(what)?.changes))
    }

    fn requirements(&self, draft: &Draft) -> Vec<TableRequirement> {
        let mut requirements = vec![
            TableRequirement::UuidMatch { uuid: self.metadata.uuid() },
            at(&draft.branch, head(self.metadata, &draft.branch)),
            // With another spec the files that a commit replaces may be others.
            TableRequirement::DefaultSpecIdMatch {
                default_spec_id: self.metadata.default_partition_spec_id(),
            },
        ];
        if self.new_columns {
            let (schema, field) = (self.metadata.current_schema_id(), self.metadata.last_column_id());
            requirements.extend([
                TableRequirement::CurrentSchemaIdMatch { current_schema_id: schema },
                TableRequirement::LastAssignedFieldIdMatch { last_assigned_field_id: field },
            ]);
        }
        let others = draft.refs.iter().filter(|change| change.name() != draft.branch);
        requirements.extend(others.filter_map(|change| unmoved(self.metadata, change)));
        requirements
    }
}

/// A change of refs alone: what the catalog is asked to make sure of and to change. Nothing to change where
/// all of it is so already.
pub(crate) fn change_refs(
    metadata: &TableMetadata,
    refs: &[RefChange],
) -> Result<(Vec<TableRequirement>, Vec<TableUpdate>)> {
    let mut requirements = vec![TableRequirement::UuidMatch { uuid: metadata.uuid() }];
    let mut updates = Vec::new();
    for change in refs {
        let there = head(metadata, change.name());
        match change {
            RefChange::Tag { name, snapshot } if there != Some(*snapshot) => {
                if metadata.snapshot_by_id(*snapshot).is_none() {
                    return Err(Error::new(ErrorKind::State, "the table no longer has the snapshot")
                        .with_context("snapshot", snapshot));
                }
                updates
                    .push(TableUpdate::SetSnapshotRef { ref_name: name.clone(), reference: tag(*snapshot) });
            }
            RefChange::Remove { name } if there.is_some() => {
                updates.push(TableUpdate::RemoveSnapshotRef { ref_name: name.clone() });
            }
            RefChange::Tag { .. } | RefChange::Remove { .. } => {}
        }
        requirements.extend(unmoved(metadata, change));
    }
    Ok((requirements, updates))
}

impl RefChange {
    fn name(&self) -> &str {
        match self {
            Self::Tag { name, .. } | Self::Remove { name } => name,
        }
    }
}

/// The snapshot that a branch or tag is at; `None` where it is not there.
pub(super) fn head(metadata: &TableMetadata, name: &str) -> Option<i64> {
    metadata.snapshot_for_ref(name).map(|snapshot| snapshot.snapshot_id())
}

fn at(name: &str, snapshot_id: Option<i64>) -> TableRequirement {
    TableRequirement::RefSnapshotIdMatch { r#ref: name.to_owned(), snapshot_id }
}

/// A ref that goes must not have moved: what came to it meanwhile would be lost.
fn unmoved(metadata: &TableMetadata, change: &RefChange) -> Option<TableRequirement> {
    match change {
        RefChange::Remove { name } => head(metadata, name).map(|snapshot| at(name, Some(snapshot))),
        RefChange::Tag { .. } => None,
    }
}

fn tag(snapshot: i64) -> SnapshotReference {
    // Whatever the table says of the age of tags: ours stay until they are removed.
    SnapshotReference::new(snapshot, SnapshotRetention::Tag { max_ref_age_ms: Some(i64::MAX) })
}

/// After a roll back to columns of before the table may be partitioned by one that came later.
fn check_partitioned(metadata: &TableMetadata, columns: &Schema) -> Result<()> {
    let mut fields = metadata.default_partition_spec().fields().iter();
    match fields.find(|field| columns.field_by_id(field.source_id).is_none()) {
        None => Ok(()),
        Some(field) => Err(Error::new(
            ErrorKind::Unsupported,
            "the table is partitioned by a column that it would not have any more",
        )
        .with_context("partition field", &field.name)
        .with_advice("change what the table is partitioned by first")),
    }
}

/// Columns with the id that every catalog gives them: that of the same columns, where the table had them
/// before, else the one after the highest.
fn numbered(metadata: &TableMetadata, columns: &Schema) -> Result<SchemaRef> {
    if let Some(known) = metadata.schemas_iter().find(|known| same(columns, known)) {
        return Ok(known.clone());
    }
    let highest = metadata.schemas_iter().map(|known| known.schema_id()).max().unwrap_or(-1);
    let numbered = columns.clone().into_builder().with_schema_id(highest.saturating_add(1)).build();
    numbered.map(Arc::new).doing("change the columns of the table")
}

fn same(a: &Schema, b: &Schema) -> bool {
    a.as_struct() == b.as_struct() && a.identifier_field_ids().eq(b.identifier_field_ids())
}
