//! Writing through the port of a backend, as the engine does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{StreamExt, stream};
use reprocess::arrow::array::RecordBatch;
use reprocess::arrow::schema::SchemaRef;
use reprocess::domain::profile::ProfileSpec;
use reprocess::domain::request::SchemaPolicy;
use reprocess::domain::scope::Scope;
use reprocess::domain::slice::{Base, Kept};
use reprocess::ports::ledger::TaskFinish;
use reprocess::ports::writer::{
    Change, CommitEntry, CommitOutcome, CommitRequest, Intent, Op, PartitionWriter, Rows, StageRequest,
    Staged, StagedId, StampId, Visibility,
};

/// How many runs there were in this process.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Each write is a run of its own.
#[derive(Debug)]
pub(crate) struct Through<W> {
    pub(crate) table: W,
}

impl<W: PartitionWriter> Through<W> {
    pub(crate) fn new(table: W) -> Self {
        Self { table }
    }

    /// Stages, with the profile, and commits.
    pub(crate) async fn write(
        &self,
        scope: &Scope,
        intent: Intent,
        schema: SchemaRef,
        rows: impl Iterator<Item = RecordBatch> + Send + 'static,
        keep: bool,
    ) -> Option<Kept> {
        let base = self.table.head(scope).await.unwrap();
        let staged = self.stage(scope, intent, schema, rows).await;
        self.commit(&[staged], &base, keep).await
    }

    pub(crate) async fn stage(
        &self,
        scope: &Scope,
        intent: Intent,
        schema: SchemaRef,
        rows: impl Iterator<Item = RecordBatch> + Send + 'static,
    ) -> Staged {
        let run = format!("run.{}.{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let op = if matches!(intent, Intent::Merge(_)) { Op::Merge } else { Op::Replace };
        let stamp =
            StampId { run: run.into(), job: "bench".into(), op, scope_digest: scope.digest(), generation: 1 };
        let request = StageRequest {
            id: StagedId { stamp, attempt: 1 },
            scope: scope.clone(),
            intent,
            visibility: Visibility::Direct,
            profile: ProfileSpec::new(),
            schema: SchemaPolicy::Refuse,
            base: Base::new("0".into(), BTreeMap::new()),
        };
        let stream = stream::iter(rows.map(Ok)).boxed();
        self.table.stage(&request, Rows::Stream { schema, stream }).await.unwrap()
    }

    /// Commits staged sets at once: one is a write, many are a publication.
    pub(crate) async fn commit(&self, staged: &[Staged], base: &Base, keep: bool) -> Option<Kept> {
        let finish = || TaskFinish::default();
        let entries: Vec<_> = staged
            .iter()
            .map(|staged| CommitEntry {
                scope: staged.scope.clone(),
                change: Change::Apply(staged.clone()),
                stamp: staged.id.stamp.clone(),
                attempt: staged.id.attempt,
                finish: finish(),
            })
            .collect();
        let request = CommitRequest { entries: &entries, base, since: base, fence: None, keep, ledger: None };
        match self.table.commit(request).await.unwrap() {
            CommitOutcome::Committed(commit) => commit.kept,
            other => panic!("not committed: {other:?}"),
        }
    }

    pub(crate) async fn forget(&self, kept: &Kept) {
        self.table.forget(kept).await.unwrap();
    }
}
