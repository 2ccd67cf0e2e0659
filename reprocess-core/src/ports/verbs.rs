//! The two verbs that most callers of a writer want, for use without an engine: stage and commit in one call.

use std::sync::Arc;

use async_trait::async_trait;

use super::ledger::TaskFinish;
use super::writer::{
    Change, CommitEntry, CommitOutcome, CommitRequest, Found, Intent, MergeKeys, Op, PartitionWriter, Rows,
    StageRequest, StagedId, StampId, Visibility,
};
use crate::domain::ids::{JobName, RunId};
use crate::domain::profile::ProfileSpec;
use crate::domain::request::SchemaPolicy;
use crate::domain::scope::Scope;
use crate::error::Result;

/// Whose write it is: the same run and job over the same scope is the same write, and is done once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteId {
    /// The run.
    pub run: RunId,
    /// The job.
    pub job: JobName,
}

impl WriteId {
    /// A run of a job.
    pub fn new(run: impl Into<RunId>, job: impl Into<JobName>) -> Self {
        Self { run: run.into(), job: job.into() }
    }
}

/// Replace and merge in one call, without plan, lease and ledger. What moves between the start of the call and its
/// commit answers [`CommitOutcome::Conflicted`], and nothing is written.
///
/// ```
/// # use std::sync::Arc;
/// # use arrow_array::{Int64Array, RecordBatch};
/// # use reprocess_core::domain::{job::TableSpec, partition::{PartitionKey, Partitioning}, scope::Scope, value::ValueKind};
/// # use reprocess_core::memory::MemoryTable;
/// use reprocess_core::ports::verbs::{WriteId, WriteVerbs};
/// use reprocess_core::ports::writer::CommitOutcome;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reprocess_core::Result<()> {
/// # let by_shard = Partitioning::unpartitioned().with_key("shard", ValueKind::Integer);
/// # let table = MemoryTable::new(TableSpec::new("sales", by_shard));
/// # let shards = Arc::new(Int64Array::from(vec![7, 7])) as _;
/// # let rows = RecordBatch::try_from_iter([("shard", shards)]).unwrap();
/// let scope = Scope::key(PartitionKey::of("shard", 7))?;
/// let outcome = table.replace(&WriteId::new("nightly-1", "sales"), scope, rows).await?;
/// assert!(matches!(outcome, CommitOutcome::Committed(_)));
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait WriteVerbs: PartitionWriter {
    /// Makes the scope hold exactly these rows.
    async fn replace(
        &self,
        id: &WriteId,
        scope: Scope,
        rows: impl Into<Rows> + Send,
    ) -> Result<CommitOutcome> {
        write(self, id, scope, Op::Replace, Intent::Replace, rows.into()).await
    }

    /// Updates and inserts rows of the scope by key.
    async fn merge(
        &self,
        id: &WriteId,
        scope: Scope,
        keys: MergeKeys,
        rows: impl Into<Rows> + Send,
    ) -> Result<CommitOutcome> {
        write(self, id, scope, Op::Merge, Intent::Merge(keys), rows.into()).await
    }
}

impl<W: PartitionWriter + ?Sized> WriteVerbs for W {}

async fn write<W: PartitionWriter + ?Sized>(
    writer: &W,
    id: &WriteId,
    scope: Scope,
    op: Op,
    intent: Intent,
    rows: Rows,
) -> Result<CommitOutcome> {
    if let Rows::Stream { schema, .. } = &rows
        && writer.schema().await?.is_none()
    {
        writer.create(&Arc::clone(schema)).await?;
    }
    let base = writer.head(&scope).await?;
    let stamp =
        StampId { run: id.run.clone(), job: id.job.clone(), op, scope_digest: scope.digest(), generation: 1 };
    if let Found::Yes(commit) = writer.find_commit(&stamp, &scope, &base).await? {
        return Ok(CommitOutcome::AlreadyCommitted(commit));
    }
    let request = StageRequest {
        id: StagedId { stamp: stamp.clone(), attempt: 1 },
        scope: scope.clone(),
        intent,
        visibility: Visibility::Direct,
        profile: ProfileSpec::new(),
        schema: SchemaPolicy::Refuse,
        base: base.clone(),
    };
    let staged = writer.stage(&request, rows).await?;
    let staged_id = staged.id.clone();
    let finish = TaskFinish::default();
    let entry = CommitEntry { scope, change: Change::Apply(staged), stamp, attempt: 1, finish };
    let outcome = writer
        .commit(CommitRequest {
            entries: std::slice::from_ref(&entry),
            base: &base,
            since: &base,
            fence: None,
            keep: false,
            ledger: None,
        })
        .await?;
    if !matches!(outcome, CommitOutcome::Committed(_) | CommitOutcome::AlreadyCommitted(_)) {
        writer.discard(&staged_id).await?;
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, RecordBatch};

    use super::*;
    use crate::domain::job::TableSpec;
    use crate::domain::partition::{PartitionKey, Partitioning};
    use crate::domain::value::ValueKind;
    use crate::memory::MemoryTable;

    fn batch(rows: &[(i64, i64)]) -> RecordBatch {
        let column = |of: fn(&(i64, i64)) -> i64| {
            Arc::new(rows.iter().map(|r| Some(of(r))).collect::<Int64Array>()) as _
        };
        let columns = [("shard", column(|r| r.0)), ("id", column(|r| r.1))];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
    }

    #[tokio::test]
    async fn the_same_write_again_is_done_once_and_stray_rows_are_refused() {
        let by_shard = Partitioning::unpartitioned().with_key("shard", ValueKind::Integer);
        let table = MemoryTable::new(TableSpec::new("sales", by_shard));
        let scope = || Scope::key(PartitionKey::of("shard", 7)).unwrap();
        let first = WriteId::new("nightly-1", "sales");
        let done = table.replace(&first, scope(), batch(&[(7, 1), (7, 2)])).await.unwrap();
        assert!(matches!(done, CommitOutcome::Committed(_)));
        let again = table.replace(&first, scope(), batch(&[(7, 1), (7, 2)])).await.unwrap();
        assert!(matches!(again, CommitOutcome::AlreadyCommitted(_)));
        let stray =
            table.replace(&WriteId::new("nightly-2", "sales"), scope(), batch(&[(8, 1)])).await.unwrap_err();
        assert!(stray.message().contains("shard=8"), "{stray}");
        let keys = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
        let merged =
            table.merge(&WriteId::new("late-1", "sales"), scope(), keys, batch(&[(7, 3)])).await.unwrap();
        assert!(matches!(merged, CommitOutcome::Committed(_)));
        let (_, profiles) = table.profile(&scope(), &ProfileSpec::new()).await.unwrap();
        assert_eq!(profiles[0].rows, 3);
    }
}
