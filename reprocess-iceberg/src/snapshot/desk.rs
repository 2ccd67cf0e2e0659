//! Where a commit is worked on, over all its attempts.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use iceberg::spec::{FormatVersion, MAIN_BRANCH, ManifestFile, TableMetadata};
use reprocess_core::ports::clock::{Clock, SystemClock};
use reprocess_core::{Error, ErrorKind, Result};

use super::added::{self, Key};
use super::assemble::{Head, Snap};
use super::filter::{self, Gone};
use super::merge::{self, Merged, Settings, Small};
use super::refs::{self, Ground};
use super::sheet::Sheet;
use super::summary::Changes;
use super::{Assembled, Draft, RefChange};
use crate::error::{Doing, broken_promise};
use crate::files::Files;
use crate::manifests::Manifests;
use crate::table::IcebergTable;
use crate::view::{Named, View};

/// How many manifests are read and written at once.
const AT_ONCE: usize = 8;

/// The work on one logical commit, over all its attempts: what one has written the next one takes where it
/// can.
#[derive(Debug)]
pub(crate) struct Desk {
    /// In the names of all files that it writes, and in those of no other.
    mark: String,
    names: u64,
    /// What the remembered manifests are of.
    fits: Option<(i64, FormatVersion)>,
    added: BTreeMap<Key, ManifestFile>,
    rewritten: BTreeMap<Gone, ManifestFile>,
    merged: Vec<Merged>,
    /// Every file that it has begun to write.
    written: Vec<String>,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            mark: mark(),
            names: 0,
            fits: None,
            added: BTreeMap::new(),
            rewritten: BTreeMap::new(),
            merged: Vec::new(),
            written: Vec::new(),
        }
    }

    /// Writes what the draft needs onto a snapshot, which becomes the parent: that of `view`, whose metadata
    /// has to be the newest. For a draft of main it has to be main's head; for one of another branch it is
    /// the head of that, or where the branch begins (anew). Data files are never written or changed here.
    pub(crate) async fn assemble(
        &mut self,
        table: &IcebergTable,
        view: &View,
        draft: &Draft,
    ) -> Result<Assembled> {
        let head = Head::of(view)?;
        if draft.branch == MAIN_BRANCH && head.parent_id() != head.metadata.current_snapshot_id() {
            return Err(Error::internal("a commit to main is not made for its head"));
        }
        self.assemble_on(table.manifests(), head, draft).await
    }

    /// Main at a snapshot again that it was at before, and on it one snapshot with the same files that says
    /// so. Only the columns, the refs and the summary of the draft count.
    pub(crate) async fn roll_back(
        &mut self,
        table: &IcebergTable,
        view: &View,
        to: i64,
        draft: &Draft,
    ) -> Result<Assembled> {
        let head = Head::of(view)?;
        let snapshot = head.metadata.snapshot_by_id(to).ok_or_else(|| {
            Error::new(
                ErrorKind::State,
                "the table no longer has the snapshot that it is to be rolled back to",
            )
            .with_context("snapshot", to)
        })?;
        let manifests = table.manifests().list(head.files, head.metadata, snapshot).await?;
        self.same_files(Head { parent: Some(snapshot), manifests: &manifests, ..head }, draft).await
    }

    /// The head of a branch becomes that of main, with a snapshot of the same files on top that carries the
    /// draft's summary. `main` is the newest version of main, from which the branch was made; `branch` is the
    /// head of the branch, which a [`RefChange::Remove`] of the draft takes away.
    pub(crate) async fn forward(&mut self, main: &View, branch: &View, draft: &Draft) -> Result<Assembled> {
        self.forward_on(Head::of(main)?, Head::of(branch)?, draft).await
    }

    /// Removes what was written and `kept` does not need. Only after it is known what became of the commit:
    /// `Some` where it is in the table, `None` where nothing of it is, and never will be.
    pub(crate) async fn tidy(self, view: &View, kept: Option<&Assembled>) {
        let unneeded = self.unneeded(kept);
        let Some(there) = view.known().filter(|_| !unneeded.is_empty()) else { return };
        if let Err(e) = there.files.remove(unneeded).await {
            tracing::warn!(error = %e, "metadata files that no snapshot needs could not be removed");
        }
    }

    pub(super) fn unneeded(self, kept: Option<&Assembled>) -> Vec<String> {
        let needed = |path: &String| kept.is_some_and(|kept| kept.needs.contains(path));
        self.written.into_iter().filter(|path| !needed(path)).collect()
    }

    pub(super) async fn assemble_on(
        &mut self,
        manifests: &Manifests,
        head: Head<'_>,
        draft: &Draft,
    ) -> Result<Assembled> {
        let ground = Ground::new(head.metadata, draft)?;
        self.begin(draft.id, ground.format());
        let split = filter::split(head.manifests, &draft.removed)?;
        let mut all = self.add(head, draft, &ground).await?;
        all.extend(self.rewrite(manifests, head, split.hit).await?);
        all.extend(self.merge(manifests, head, split.kept).await?);
        let changes = Changes::of(draft, &ground.schema);
        self.finish(head, ground, draft, &changes, all).await
    }

    pub(super) async fn forward_on(
        &mut self,
        main: Head<'_>,
        branch: Head<'_>,
        draft: &Draft,
    ) -> Result<Assembled> {
        let goes = draft.refs.iter().any(|change| match change {
            RefChange::Remove { name } => refs::head(main.metadata, name) == branch.parent_id(),
            RefChange::Tag { .. } => false,
        });
        if draft.branch != MAIN_BRANCH || !goes || !descends(main.metadata, branch.parent_id()) {
            return Err(Error::internal(
                "a branch that does not begin at the head of main cannot become main",
            ));
        }
        self.same_files(Head { metadata: main.metadata, ..branch }, draft).await
    }

    /// A snapshot with the files of its parent.
    pub(super) async fn same_files(&mut self, head: Head<'_>, draft: &Draft) -> Result<Assembled> {
        let ground = Ground::new(head.metadata, draft)?;
        self.begin(draft.id, ground.format());
        let live = head.manifests.iter().filter(|manifest| filter::has_live(manifest)).cloned().collect();
        self.finish(head, ground, draft, &Changes::default(), live).await
    }

    async fn finish(
        &mut self,
        head: Head<'_>,
        ground: Ground<'_>,
        draft: &Draft,
        changes: &Changes,
        manifests: Vec<ManifestFile>,
    ) -> Result<Assembled> {
        let summary = changes.summary(draft, head.metadata, head.parent.map(|parent| parent.summary()));
        let name = |mark: &str, number| format!("reprocess-snap-{}-{mark}-{number}.avro", draft.id);
        let list = self.named(head.metadata, name);
        Snap { head, ground, summary, manifests, list }.assembled(draft).await
    }

    /// What is remembered for another snapshot, or in another format, cannot be taken.
    fn begin(&mut self, id: i64, format: FormatVersion) {
        if self.fits != Some((id, format)) {
            self.fits = Some((id, format));
            self.added.clear();
            self.rewritten.clear();
            self.merged.clear();
        }
    }

    /// The manifests of new files.
    async fn add(&mut self, head: Head<'_>, draft: &Draft, ground: &Ground<'_>) -> Result<Vec<ManifestFile>> {
        let sheets = added::sheets(&draft.added, &ground.schema, &draft.added_spec);
        let keys: Vec<Key> = sheets.iter().map(|(key, _)| key.clone()).collect();
        let (new_keys, new): (Vec<_>, Vec<_>) =
            sheets.into_iter().filter(|(key, _)| !self.added.contains_key(key)).unzip();
        let written = self.write(head, new).await?;
        self.added.extend(new_keys.into_iter().zip(written));
        Ok(keys.iter().filter_map(|key| self.added.get(key).cloned()).collect())
    }

    /// The manifests from which files go.
    async fn rewrite(
        &mut self,
        manifests: &Manifests,
        head: Head<'_>,
        hit: Vec<(&ManifestFile, Gone)>,
    ) -> Result<Vec<ManifestFile>> {
        let keys: Vec<Gone> = hit.iter().map(|(_, gone)| gone.clone()).collect();
        let new: Vec<_> = hit.into_iter().filter(|(_, gone)| !self.rewritten.contains_key(gone)).collect();
        let live = read(manifests, head.files, new.iter().map(|(manifest, _)| *manifest)).await?;
        let sheets =
            new.iter().zip(&live).map(|((manifest, gone), live)| filter::without(manifest, live, &gone.1));
        let written = self.write(head, sheets.collect::<Result<_>>()?).await?;
        self.rewritten.extend(new.into_iter().map(|(_, gone)| gone).zip(written));
        Ok(keys.iter().filter_map(|key| self.rewritten.get(key).cloned()).collect())
    }

    /// The manifests that stay, small ones of them put together where there are many.
    async fn merge(
        &mut self,
        manifests: &Manifests,
        head: Head<'_>,
        mut kept: Vec<&ManifestFile>,
    ) -> Result<Vec<ManifestFile>> {
        let mut merged = Vec::new();
        for known in &self.merged {
            merged.extend(known.replace(&mut kept).into_iter().flatten().cloned());
        }
        let settings = Settings::of(head.metadata);
        for group in settings.choose(&kept) {
            let live = read(manifests, head.files, group.iter().copied()).await?;
            let small = group.into_iter().zip(live).map(|(manifest, live)| Small { manifest, live });
            for group in merge::alike(small.collect()) {
                let written = self.write(head, settings.sheets(&group)).await?;
                let new = Merged::new(&group, written);
                merged.extend(new.replace(&mut kept).into_iter().flatten().cloned());
                self.merged.push(new);
            }
        }
        merged.extend(kept.into_iter().cloned());
        Ok(merged)
    }

    /// Writes manifests, several at once. That it writes them is remembered before it does.
    async fn write(&mut self, head: Head<'_>, sheets: Vec<Sheet<'_>>) -> Result<Vec<ManifestFile>> {
        let Some((id, format)) = self.fits.filter(|_| !sheets.is_empty()) else { return Ok(Vec::new()) };
        let name = |mark: &str, number| format!("reprocess-{id}-{mark}-{number}.avro");
        let paths: Vec<String> = sheets.iter().map(|_| self.named(head.metadata, name)).collect();
        let io = head.files.io();
        let write = async |sheet: Sheet<'_>, path: String| {
            let writer = sheet.writer(io, &path, id, format)?;
            // To encode the entries is work for a processor, of which there may be several.
            let written = tokio::spawn(writer.write_manifest_file()).await;
            written
                .map_err(|e| broken_promise("the writing of a manifest broke off", e))?
                .doing("write a manifest")
        };
        let written: Vec<_> = sheets.into_iter().zip(paths).map(|(sheet, path)| write(sheet, path)).collect();
        futures::stream::iter(written).buffered(AT_ONCE).try_collect().await
    }

    /// Where the next file of metadata is written.
    fn named(&mut self, metadata: &TableMetadata, name: impl Fn(&str, u64) -> String) -> String {
        let path = format!("{}/{}", folder(metadata), name(&self.mark, self.names));
        self.names += 1;
        self.written.push(path.clone());
        path
    }
}

/// The live entries of manifests, in their order.
async fn read<'a>(
    manifests: &Manifests,
    files: &Files,
    which: impl IntoIterator<Item = &'a ManifestFile>,
) -> Result<Vec<Arc<Vec<Arc<Named>>>>> {
    // As a list, and not one by one as they are asked for: with a closure in it the future would not be known
    // to be `Send`.
    let read: Vec<_> = which.into_iter().map(|manifest| manifests.live(files, manifest)).collect();
    futures::stream::iter(read).buffered(AT_ONCE).try_collect().await
}

/// The folder that the table's metadata is in.
fn folder(metadata: &TableMetadata) -> String {
    match metadata.properties().get("write.metadata.path") {
        Some(path) => path.trim_end_matches('/').to_owned(),
        None => format!("{}/metadata", metadata.location()),
    }
}

/// Whether the head of main is the snapshot, or one of its ancestors.
fn descends(metadata: &TableMetadata, mut snapshot: Option<i64>) -> bool {
    let main = metadata.current_snapshot_id();
    while snapshot != main {
        let Some(found) = snapshot.and_then(|id| metadata.snapshot_by_id(id)) else { return false };
        snapshot = found.parent_snapshot_id();
    }
    true
}

/// What no other desk has, in this process or in another one, not even one that works on the same commit: a
/// desk removes what it wrote, and must never remove what another one has committed under the same name.
/// Nobody looks for these names, so that they need not be found again.
fn mark() -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&RandomState::new().hash_one(std::process::id()).to_le_bytes());
    hasher.update(&SystemClock.now().timestamp_nanos_opt().unwrap_or_default().to_le_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}
