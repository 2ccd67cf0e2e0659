//! Files of ours that nothing needs: what attempts left that ended before they could clean up.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use iceberg::spec::TableMetadata;
use reprocess_core::Result;
use reprocess_core::ports::clock::{Clock, SystemClock};
use reprocess_lake::place;

use crate::files::{Files, Listed};
use crate::shadow::Set;
use crate::table::IcebergTable;
use crate::view::There;

/// How many manifests and notes are read at once.
const REQUESTS: usize = 16;

impl IcebergTable {
    /// Removes data files and manifests that reprocess wrote, that are older than `older_than`, and that no snapshot, branch
    /// or tag of the table and no staged set names; answers their locations. With `dry_run` only the locations.
    ///
    /// A process that ends in the middle of staging or of a commit leaves such files. What is being written right now is not
    /// named either, so `older_than` has to be longer than the longest staging and the longest commit together. Files of
    /// other writers are never touched: expire snapshots and remove orphans of those with the tool that wrote them. Such a
    /// tool knows nothing of staged sets: exclude folders that are named `reprocess-…` from it.
    pub async fn remove_orphans(&self, older_than: chrono::Duration, dry_run: bool) -> Result<Vec<String>> {
        self.orphans(older_than, dry_run).await.map_err(|e| self.in_table(e))
    }

    async fn orphans(&self, older_than: chrono::Duration, dry_run: bool) -> Result<Vec<String>> {
        let view = self.latest().await?;
        let Some(there) = view.known() else { return Ok(Vec::new()) };
        let before = SystemClock.now() - older_than;
        // First what there is, then what is staged, and at last what the table names: what is staged and then committed
        // meanwhile is seen at one of the two.
        let mut found = written(there).await?;
        found.retain(|file| file.modified < before);
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let mut needed = staged(&there.files).await?;
        let newest = self.latest().await?;
        let now = newest.there()?;
        needed.extend(named(self, now).await?);
        let needed: BTreeSet<_> =
            needed.iter().map(|location| now.files.path_of(location)).collect::<Result<_>>()?;
        found.retain(|file| !needed.contains(&file.path));
        let mut orphans: Vec<String> = found.into_iter().map(|file| file.location).collect();
        orphans.sort();
        if !dry_run {
            now.files.remove(orphans.clone()).await?;
        }
        Ok(orphans)
    }
}

/// The files that have names of ours.
async fn written(there: &There) -> Result<Vec<Listed>> {
    let metadata = &there.loaded.metadata;
    let mut data = there.files.list(&folder(metadata, "write.data.path", "data")).await?;
    data.retain(|file| is_data(&file.location));
    let mut manifests = there.files.list(&folder(metadata, "write.metadata.path", "metadata")).await?;
    manifests.retain(|file| file.location.rsplit('/').next().is_some_and(is_manifest));
    // Rows that came for merges.
    let mut beside = there.files.list(&format!("{}/_reprocess/staged", there.files.root())).await?;
    beside.retain(|file| file.location.ends_with(".parquet"));
    Ok(data.into_iter().chain(manifests).chain(beside).collect())
}

/// A folder of the table, where its properties do not name another one.
fn folder(metadata: &TableMetadata, property: &str, name: &str) -> String {
    match metadata.properties().get(property) {
        Some(elsewhere) => elsewhere.trim_end_matches('/').to_owned(),
        None => format!("{}/{name}", metadata.location().trim_end_matches('/')),
    }
}

/// Whether a file is in a folder of a staged set.
fn is_data(location: &str) -> bool {
    let mut folders = location.rsplit('/').skip(1);
    folders.next().and_then(|folder| folder.strip_prefix("reprocess-")).is_some_and(|set| is_hex(set, 32))
}

/// Whether a file has the name of a manifest or of a list of manifests that we wrote.
fn is_manifest(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(name) = name.strip_suffix(".avro") else { return false };
    match name.split('-').collect::<Vec<_>>()[..] {
        ["snap", id, number, mark] => is_number(id) && is_number(number) && is_hex(mark, 16),
        [id, mark, number] => {
            is_number(id) && is_hex(mark, 16) && number.strip_prefix('m').is_some_and(is_number)
        }
        _ => false,
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == digits && text.bytes().all(is_digit)
}

/// The files of all sets that are noted.
async fn staged(files: &Files) -> Result<Vec<String>> {
    let folder = files.folder();
    let notes = folder.list(&place(["staged"])).await?;
    let notes = notes.into_iter().filter(|path| path.extension() == Some("json"));
    let read: Vec<_> = notes.map(|path| async move { folder.read::<Set>(&path).await }).collect();
    let sets: Vec<Option<Set>> = futures::stream::iter(read).buffered(REQUESTS).try_collect().await?;
    Ok(sets.iter().flatten().flat_map(|set| set.content.places()).map(|(location, _)| location).collect())
}

/// The files that any snapshot of the table names.
async fn named(table: &IcebergTable, there: &There) -> Result<BTreeSet<String>> {
    let (metadata, files) = (&there.loaded.metadata, &there.files);
    let (mut named, mut manifests) = (BTreeSet::new(), Vec::new());
    for snapshot in metadata.snapshots() {
        named.insert(snapshot.manifest_list().to_owned());
        for manifest in table.manifests().list(files, metadata, snapshot).await?.iter() {
            if named.insert(manifest.manifest_path.clone()) {
                manifests.push(manifest.clone());
            }
        }
    }
    let live: Vec<_> = manifests.iter().map(|manifest| table.manifests().live(files, manifest)).collect();
    let live: Vec<_> = futures::stream::iter(live).buffered(REQUESTS).try_collect().await?;
    named.extend(live.iter().flat_map(|live| live.iter()).map(|entry| entry.file.file_path().to_owned()));
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_looked_at() {
        let (set, mark) = ("0123456789abcdef0123456789abcdef", "0123456789abcdef");
        assert!(is_data(&format!("/t/data/day=2026-10-05/reprocess-{set}/00000.parquet")));
        assert!(!is_data(&format!("/t/data/reprocess-{set}/more/00000.parquet")));
        assert!(!is_data("/t/data/reprocess-by-hand/00000.parquet"));
        assert!(!is_data("/t/data/00000-0-5e2a.parquet"));
        assert!(is_manifest(&format!("snap-77-12-{mark}.avro")));
        assert!(is_manifest(&format!("77-{mark}-m3.avro")));
        for other in [
            "snap-77-1-3f0c6a2e-89f5-4a53-b1b4-2a4a0e3fb9a1.avro",
            "3f0c6a2e-89f5-4a53-b1b4-2a4a0e3fb9a1-m0.avro",
            "00001-3f0c6a2e-89f5-4a53-b1b4-2a4a0e3fb9a1.metadata.json",
            "77-0123456789abcdef-m3.avro.crc",
        ] {
            assert!(!is_manifest(other), "{other}");
        }
    }
}
