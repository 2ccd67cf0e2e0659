//! Staged sets: the note of each beside the table, which says what it is and what its backend has of it.

use object_store::path::Path;
use reprocess_core::domain::ids::{PartitionVersion, RunId};
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::slice::Base;
use reprocess_core::ports::writer::{Staged, StagedId};
use reprocess_core::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::folder::{Folder, place};

const STAGED: &str = "staged";

// A version that names a file which is removed at the same time could not be read. So whoever commits a set and whoever
// discards it first write their word beside its note, where nothing is yet: the first of them has it. The files of a set
// that a commit has claimed are never removed by us; if it is not committed after all, they are orphans.
const COMMIT: &str = "commit";
const DISCARD: &str = "discard";

/// A staged set with what its backend has of it, for example its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Noted<C> {
    /// What it is.
    pub staged: Staged,
    /// What the backend notes. Its fields stand beside `staged`.
    #[serde(flatten)]
    pub content: C,
}

/// What a merge came to, and on what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Merged<F> {
    /// Files of the rows that came, from which it can be computed again.
    pub incoming: F,
    /// Paths of the files in which a row changes.
    pub removes: Vec<String>,
    /// Version of each key of the scope that it was computed on.
    pub on: Vec<(PartitionKey, PartitionVersion)>,
}

impl<F> Merged<F> {
    /// Whether it was computed on this base.
    pub fn is_on(&self, base: &Base) -> bool {
        self.on.iter().all(|(key, version)| base.partitions.get(key) == Some(version))
    }

    /// Whether the file of this path goes.
    pub fn removes(&self, path: &str) -> bool {
        self.removes.iter().any(|removed| removed == path)
    }
}

/// Of all sets of a run.
fn folder_of_run(run: &RunId) -> String {
    blake3::hash(run.as_str().as_bytes()).to_hex()[..32].to_owned()
}

/// The folder for files of a set that no version of the table will have.
pub fn folder_of_set(id: &StagedId) -> Path {
    place([STAGED, &folder_of_run(&id.stamp.run), &id.short()])
}

fn note_of(id: &StagedId) -> Path {
    place([STAGED, &folder_of_run(&id.stamp.run), &format!("{}.json", id.short())])
}

fn claim_of(id: &StagedId) -> Path {
    place([STAGED, &folder_of_run(&id.stamp.run), &format!("{}.claimed", id.short())])
}

/// The staged set is not there any more, or another took its place.
pub fn gone(id: &StagedId) -> Error {
    Error::not_found("the staged rows are gone").with_context("staged", id).with_advice("stage them again")
}

impl<C: Serialize + DeserializeOwned + Send + Sync> Noted<C> {
    /// Notes the set, in place of one of the same id.
    pub async fn keep(&self, folder: &Folder) -> Result<()> {
        folder.write(&note_of(&self.staged.id), self).await
    }

    /// The set of an id; `None` where none is noted.
    pub async fn read(folder: &Folder, id: &StagedId) -> Result<Option<Self>> {
        let found: Option<Self> = folder.read(&note_of(id)).await?;
        Ok(found.filter(|found| found.staged.id == *id))
    }

    /// The set as it was when the caller got to know it.
    pub async fn find(folder: &Folder, staged: &Staged) -> Result<Self> {
        let found = Self::read(folder, &staged.id).await?.ok_or_else(|| gone(&staged.id))?;
        if found.staged.digest == staged.digest {
            return Ok(found);
        }
        Err(Error::new(ErrorKind::State, "other rows were staged under this id since")
            .with_context("staged", &staged.id))
    }

    /// The set for a commit, which nobody discards from now on. Whether its files are there is for the caller to see.
    pub async fn claim(folder: &Folder, staged: &Staged) -> Result<Self> {
        if folder.claim(&claim_of(&staged.id), COMMIT).await? != COMMIT {
            return Err(gone(&staged.id));
        }
        match Self::find(folder, staged).await {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                folder.remove(vec![claim_of(&staged.id)]).await?;
                Err(e)
            }
            found => found,
        }
    }

    /// Removes the note of a set that was committed, and the word that claimed it.
    pub async fn forget(folder: &Folder, id: &StagedId) -> Result<()> {
        folder.remove(vec![note_of(id), claim_of(id)]).await
    }
}

/// The ids of the sets of a run that are noted.
pub async fn of_run(folder: &Folder, run: &RunId) -> Result<Vec<StagedId>> {
    /// As much of a note as tells the id.
    #[derive(Deserialize)]
    struct Note {
        staged: Named,
    }
    #[derive(Deserialize)]
    struct Named {
        id: StagedId,
    }
    let mut ids = Vec::new();
    for path in folder.list(&place([STAGED, &folder_of_run(run)])).await? {
        if path.extension() != Some("json") {
            continue;
        }
        let found: Option<Note> = folder.read(&path).await?;
        ids.extend(found.map(|found| found.staged.id).filter(|id| id.stamp.run == *run));
    }
    Ok(ids)
}

/// Takes a set away, of which the caller knows that it is not committed. Whether its files may be removed: not where a
/// commit has claimed them. [`finish_discard`] follows when they are.
pub async fn discard(folder: &Folder, id: &StagedId) -> Result<bool> {
    let claimed = folder.claim(&claim_of(id), DISCARD).await?;
    // The note goes first: a set without its note is no set, one without its files would be a broken one.
    folder.remove(vec![note_of(id)]).await?;
    Ok(claimed == DISCARD)
}

/// Lets the id be staged and claimed again, after [`discard`].
pub async fn finish_discard(folder: &Folder, id: &StagedId) -> Result<()> {
    folder.remove(vec![claim_of(id)]).await
}

#[cfg(test)]
mod tests {
    use reprocess_core::domain::scope::Scope;
    use reprocess_core::ports::writer::Intent;

    use super::*;
    use crate::testing::{MON, columns, day, folder, id, request};

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Content {
        files: Vec<(String, u64)>,
        since: Option<u64>,
    }

    fn set(run: &str, attempt: u32, digest: &str) -> Noted<Content> {
        let mut staged = request(run, Scope::whole_table(), Intent::Replace)
            .staged(&columns(), [day(MON)], vec![])
            .unwrap();
        staged.id = id(run, attempt);
        staged.digest = digest.to_owned();
        Noted { staged, content: Content { files: vec![("a".to_owned(), 1)], since: Some(3) } }
    }

    type Set = Noted<Content>;

    #[tokio::test]
    async fn a_set_is_found_as_it_was_noted() {
        let (folder, set) = (folder(), set("r1", 1, "d"));
        assert!(Set::read(&folder, &set.staged.id).await.unwrap().is_none());
        set.keep(&folder).await.unwrap();
        let found = Set::find(&folder, &set.staged).await.unwrap();
        assert_eq!((found.staged, found.content), (set.staged.clone(), set.content.clone()));

        let text = serde_json::to_value(&set).unwrap();
        assert_eq!(text.get("since"), Some(&serde_json::json!(3)), "fields stand beside the set: {text}");
        Set::forget(&folder, &set.staged.id).await.unwrap();
        assert_eq!(Set::find(&folder, &set.staged).await.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn other_rows_under_the_same_id_are_not_taken_for_the_set() {
        let (folder, known) = (folder(), set("r1", 1, "old"));
        set("r1", 1, "new").keep(&folder).await.unwrap();
        assert_eq!(Set::find(&folder, &known.staged).await.unwrap_err().kind(), ErrorKind::State);
        assert_eq!(Set::claim(&folder, &known.staged).await.unwrap_err().kind(), ErrorKind::State);
    }

    #[tokio::test]
    async fn of_a_commit_and_a_discard_the_first_has_the_files() {
        let (folder, set) = (folder(), set("r1", 1, "d"));
        let id = &set.staged.id;
        set.keep(&folder).await.unwrap();
        Set::claim(&folder, &set.staged).await.unwrap();
        Set::claim(&folder, &set.staged).await.unwrap();
        assert!(!discard(&folder, id).await.unwrap(), "a commit may have the files in a version");
        finish_discard(&folder, id).await.unwrap();

        set.keep(&folder).await.unwrap();
        assert!(discard(&folder, id).await.unwrap());
        assert!(Set::read(&folder, id).await.unwrap().is_none(), "the note goes first");
        let late = Set::claim(&folder, &set.staged).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::NotFound, "{late}");
        finish_discard(&folder, id).await.unwrap();

        set.keep(&folder).await.unwrap();
        Set::claim(&folder, &set.staged).await.unwrap();
    }

    #[tokio::test]
    async fn a_claim_of_what_is_gone_leaves_no_word_behind() {
        let (folder, set) = (folder(), set("r1", 1, "d"));
        Set::claim(&folder, &set.staged).await.unwrap_err();
        set.keep(&folder).await.unwrap();
        assert!(discard(&folder, &set.staged.id).await.unwrap());
    }

    #[tokio::test]
    async fn sets_are_listed_by_run() {
        let folder = folder();
        for set in [set("r1", 1, "d"), set("r1", 2, "d"), set("r2", 1, "d")] {
            set.keep(&folder).await.unwrap();
            Set::claim(&folder, &set.staged).await.unwrap();
        }
        let mut ids = of_run(&folder, &"r1".into()).await.unwrap();
        ids.sort();
        assert_eq!(ids, [id("r1", 1), id("r1", 2)]);
        assert!(of_run(&folder, &"r3".into()).await.unwrap().is_empty());
        assert!(folder_of_set(&id("r1", 1)) != folder_of_set(&id("r1", 2)));
    }

    #[test]
    fn a_merge_is_on_a_base_that_has_the_same_versions() {
        let merged =
            Merged { incoming: (), removes: vec!["a".to_owned()], on: vec![(day(MON), "v1".into())] };
        let base = |version: &str| Base::new("1".into(), [(day(MON), version.into())].into());
        assert!(merged.is_on(&base("v1")) && !merged.is_on(&base("v2")));
        assert!(!merged.is_on(&Base::new("1".into(), [].into())));
        assert!(merged.removes("a") && !merged.removes("b"));
    }
}
