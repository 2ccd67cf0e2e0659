//! The list of a snapshot's manifests, and the snapshot.

use std::collections::BTreeSet;

use iceberg::spec::{
    FormatVersion, ManifestFile, ManifestListWriter, SchemaRef, Snapshot, SnapshotRef, Summary,
    TableMetadataRef,
};
use reprocess_core::Result;
use reprocess_core::ports::clock::{Clock, SystemClock};

use super::refs::Ground;
use super::{Assembled, Draft};
use crate::error::Doing;
use crate::files::Files;
use crate::view::View;

/// What a snapshot is made for: the newest metadata of a table, and the snapshot of it that becomes the
/// parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    pub(super) metadata: &'a TableMetadataRef,
    pub(super) files: &'a Files,
    pub(super) parent: Option<&'a SnapshotRef>,
    pub(super) manifests: &'a [ManifestFile],
}

impl<'a> Head<'a> {
    pub(super) fn of(view: &'a View) -> Result<Self> {
        let there = view.there()?;
        Ok(Self {
            metadata: &there.loaded.metadata,
            files: &there.files,
            parent: there.snapshot.as_ref(),
            manifests: &there.manifests,
        })
    }

    pub(super) fn parent_id(&self) -> Option<i64> {
        self.parent.map(|parent| parent.snapshot_id())
    }
}

/// A snapshot to be: everything about it but its list.
#[derive(Debug)]
pub(super) struct Snap<'a> {
    pub(super) head: Head<'a>,
    pub(super) ground: Ground<'a>,
    pub(super) summary: Summary,
    /// All that it has, in the order of the list.
    pub(super) manifests: Vec<ManifestFile>,
    /// Where the list is written.
    pub(super) list: String,
}

impl Snap<'_> {
    /// Writes the list, and says what the catalog is asked for.
    pub(super) async fn assembled(self, draft: &Draft) -> Result<Assembled> {
        let rows = self.write_list(draft.id).await?;
        let timestamp = timestamp(self.head, &draft.branch);
        let snapshot = self.snapshot(draft.id, rows, &self.ground.schema, timestamp);
        let (requirements, updates) = self.ground.ask(&snapshot, draft)?;
        let manifests = self.manifests.into_iter().map(|manifest| manifest.manifest_path);
        let needs: BTreeSet<String> = manifests.chain([self.list]).collect();
        Ok(Assembled { snapshot, requirements, updates, needs })
    }

    /// Answers how many row ids the list gives away, from the next one of the table on; `None` in formats
    /// without them.
    async fn write_list(&self, id: i64) -> Result<Option<u64>> {
        let what = "write a list of manifests";
        let metadata = self.head.metadata;
        let output = self.head.files.io().new_output(&self.list).doing(what)?;
        let (file, parent) = (output.writer().await.doing(what)?, self.head.parent_id());
        let (number, first_row) = (metadata.next_sequence_number(), metadata.next_row_id());
        let mut writer = match metadata.format_version() {
            FormatVersion::V1 => ManifestListWriter::v1(file, id, parent),
            FormatVersion::V2 => ManifestListWriter::v2(file, id, parent, number),
            FormatVersion::V3 => ManifestListWriter::v3(file, id, parent, number, Some(first_row)),
        };
        writer.add_manifests(self.manifests.iter().cloned()).doing(what)?;
        let next_row = writer.next_row_id();
        writer.close().await.doing(what)?;
        Ok(next_row.map(|next| next.saturating_sub(first_row)))
    }

    fn snapshot(&self, id: i64, rows: Option<u64>, schema: &SchemaRef, timestamp_ms: i64) -> Snapshot {
        let metadata = self.head.metadata;
        let builder = Snapshot::builder()
            .with_snapshot_id(id)
            .with_parent_snapshot_id(self.head.parent_id())
            .with_sequence_number(metadata.next_sequence_number())
            .with_timestamp_ms(timestamp_ms)
            .with_manifest_list(self.list.clone())
            .with_summary(self.summary.clone())
            .with_schema_id(schema.schema_id());
        match rows {
            Some(rows) => builder.with_row_range(metadata.next_row_id(), rows).build(),
            None => builder.build(),
        }
    }
}

/// Now by the clock, but after the last change of the table, and after what the branch and the parent are:
/// where clocks differ the order of snapshots is still that of their times. In format version 1 nothing else
/// tells it.
fn timestamp(head: Head<'_>, branch: &str) -> i64 {
    let replaced = head.metadata.snapshot_for_ref(branch);
    let before = [replaced, head.parent].into_iter().flatten().map(|snapshot| snapshot.timestamp_ms());
    let before = before.fold(head.metadata.last_updated_ms(), i64::max);
    SystemClock.now().timestamp_millis().max(before.saturating_add(1))
}
