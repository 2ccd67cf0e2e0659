//! What a branch of ours shows.

use std::collections::BTreeSet;

use iceberg::spec::{Snapshot, SnapshotRef, TableMetadata};
use reprocess_core::domain::ids::BackfillId;
use reprocess_core::ports::writer::StagedId;
use reprocess_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::super::Set;
use crate::commits::ancestors;

/// Key of a snapshot's summary: the sets that it shows beside those of its parent.
const STAGED: &str = "reprocess.staged";
/// By this key Java knows what is written, audited and then published.
const WAP: &str = "wap.id";

/// A set that is shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) id: StagedId,
    /// Of its rows.
    digest: String,
    /// Of its files: a merge that is computed again has the same rows in others.
    files: String,
}

pub(crate) fn mark(set: &Set) -> Mark {
    let mut hasher = blake3::Hasher::new();
    for (path, _) in set.content.places() {
        hasher.update(path.as_bytes()).update(b"\n");
    }
    for path in set.content.merged.iter().flat_map(|merged| &merged.removes) {
        hasher.update(b"-").update(path.as_bytes()).update(b"\n");
    }
    Mark {
        id: set.staged.id.clone(),
        digest: set.staged.digest.clone(),
        files: hasher.finalize().to_hex()[..16].to_owned(),
    }
}

/// A branch of ours.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) backfill: BackfillId,
    pub(crate) branch: String,
    pub(crate) head: SnapshotRef,
    /// Main's head as the branch was made, which had none where the inner one is `None`; the outer one is where the
    /// table no longer has the snapshots that tell it.
    pub(crate) fork: Option<Option<i64>>,
    /// In the order in which they were shown; none where somebody else has changed the branch since.
    pub(crate) marks: Vec<Mark>,
}

impl Shown {
    /// Whether it shows these sets, all of them and nothing else.
    pub(crate) fn shows_just(&self, marks: &[Mark]) -> bool {
        let sorted = |marks: &[Mark]| marks.iter().cloned().collect::<BTreeSet<_>>();
        sorted(&self.marks) == sorted(marks)
    }
}

/// Name of the branch of a backfill. What other tools could read as something else is hashed.
pub(crate) fn name(backfill: &BackfillId) -> String {
    let text = backfill.as_str();
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    // Tags of ours begin like that.
    let tag = ["kept-", "held-"].iter().any(|tag| text.starts_with(tag));
    if plain && !tag && !text.is_empty() && text.len() <= 64 {
        return format!("reprocess-{text}");
    }
    format!("reprocess-{}", &blake3::hash(text.as_bytes()).to_hex()[..32])
}

/// What the branch of a backfill shows; `None` where there is none.
pub(crate) fn shown(metadata: &TableMetadata, backfill: &BackfillId) -> Option<Shown> {
    let branch = name(backfill);
    let head = metadata.snapshot_for_ref(&branch)?.clone();
    let (mut marks, mut fork) = (Vec::new(), None);
    for snapshot in ancestors(metadata, Some(head.snapshot_id())) {
        match marks_of(snapshot, backfill) {
            Some(of_this) => marks.extend(of_this.into_iter().rev()),
            None => {
                fork = Some(Some(snapshot.snapshot_id()));
                break;
            }
        }
        if snapshot.parent_snapshot_id().is_none() {
            fork = Some(None);
        }
    }
    marks.reverse();
    Some(Shown { backfill: backfill.clone(), branch, head, fork, marks })
}

/// What a snapshot shows; `None` for one that is not of the branch of the backfill, or cannot be understood.
fn marks_of(snapshot: &Snapshot, backfill: &BackfillId) -> Option<Vec<Mark>> {
    let says = &snapshot.summary().additional_properties;
    if says.get(WAP).map(String::as_str) != Some(backfill.as_str()) {
        return None;
    }
    serde_json::from_str(says.get(STAGED)?).ok()
}

/// What a snapshot says of the sets that it shows.
pub(super) fn says(backfill: &BackfillId, marks: &[Mark]) -> Result<[(String, String); 2]> {
    let marks = serde_json::to_string(marks)
        .map_err(|e| Error::internal("the names of staged sets do not serialise").with_source(e))?;
    Ok([(STAGED.to_owned(), marks), (WAP.to_owned(), backfill.to_string())])
}

/// The snapshots of a branch that nothing reaches any more once it is elsewhere. They are taken out of the table: who
/// expires them later could remove the files that they added, which are main's by then.
pub(crate) fn abandoned(metadata: &TableMetadata, shown: &Shown) -> Result<Vec<i64>> {
    let own = ancestors(metadata, Some(shown.head.snapshot_id()));
    let own = own.take_while(|snapshot| marks_of(snapshot, &shown.backfill).is_some());
    let own: Vec<_> = own.map(|snapshot| snapshot.snapshot_id()).collect();
    let mut reached = BTreeSet::new();
    for (name, id) in refs(metadata)? {
        if name != shown.branch {
            reached.extend(ancestors(metadata, Some(id)).map(|snapshot| snapshot.snapshot_id()));
        }
    }
    Ok(own.into_iter().filter(|id| !reached.contains(id)).collect())
}

/// All branches and tags with their snapshots, which the library only tells one by one.
pub(crate) fn refs(metadata: &TableMetadata) -> Result<Vec<(String, i64)>> {
    let json = serde_json::to_value(metadata)
        .map_err(|e| Error::internal("the metadata of the table does not serialise").with_source(e))?;
    let refs = json.get("refs").and_then(serde_json::Value::as_object);
    let of =
        |(name, at): (&String, &serde_json::Value)| Some((name.clone(), at.get("snapshot-id")?.as_i64()?));
    Ok(refs.into_iter().flatten().filter_map(of).collect())
}

#[cfg(test)]
mod tests;
