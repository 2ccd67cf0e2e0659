//! Planning: gathers facts, then lets the pure planner decide.

use std::collections::BTreeMap;

use crate::domain::fingerprint::Fingerprint;
use crate::domain::ids::{BackfillId, LogicVersion, RunId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{self, Plan, RollbackRequest, WrittenPartition};
use crate::domain::profile::Profile;
use crate::domain::request::Request;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::ports::ledger::{LedgerRow, RunRecord, RunStatus, Trigger};

/// How far back the row before a backfill's is looked for.
const HISTORY: u32 = 1000;

/// Among how many last rows that of the last commit is looked for: runs that failed have rows too.
const LAST: u32 = 100;

impl Engine {
    /// Makes a plan of a request. Nothing is written anywhere.
    pub async fn plan(&self, request: &Request) -> Result<Plan> {
        let as_of = self.clock.now();
        let existing = self.existing().await?;
        let needs = plan::expand(request, self.host.catalog(), &existing)?;
        let facts = self.facts(request, &needs, existing).await?;
        plan::plan(request, self.host.catalog(), &facts, as_of)
    }

    /// Makes a plan that takes back what a backfill wrote. Nothing is written anywhere.
    pub async fn plan_rollback(&self, request: &RollbackRequest) -> Result<Plan> {
        let as_of = self.clock.now();
        let mut facts = self.ledger_facts(&request.id).await?;
        if self.ledger.backfill(&request.of).await?.is_none() {
            return Err(
                Error::not_found("the ledger has no such backfill").with_context("backfill", &request.of)
            );
        }
        let written = self.written(&request.of).await?;
        facts.existing = self.existing().await?;
        facts.outputs = self.outputs(written.iter().map(|w| &w.job)).await?;
        plan::plan_rollback(request, self.host.catalog(), &written, &facts, as_of)
    }

    /// The partitions that a backfill wrote and that were not taken back. What was computed downstream of them is computed
    /// anew rather than brought back, since others may have computed it since.
    async fn written(&self, of: &BackfillId) -> Result<Vec<WrittenPartition>> {
        let mut rows = self.ledger.changes(of).await?;
        rows.retain(|row| {
            row.record.status == RunStatus::Committed && row.record.trigger != Trigger::Propagated
        });
        let mut by_partition = BTreeMap::<_, Vec<LedgerRow>>::new();
        for row in rows {
            let place = (row.record.table.clone(), row.record.partition.clone());
            by_partition.entry(place).or_default().push(row);
        }
        let mut spans: Vec<_> = by_partition.into_values().flat_map(not_taken_back).collect();
        spans.sort_by_key(|(_, last)| last.position);
        let mut written = Vec::with_capacity(spans.len());
        for (first, last) in spans {
            written.extend(self.written_partition(first, last).await?);
        }
        Ok(written)
    }

    async fn written_partition(&self, first: LedgerRow, last: LedgerRow) -> Result<Option<WrittenPartition>> {
        let previous = self.previous(&first).await?;
        let current = self.writer_of(&last.record).await?;
        let record = last.record;
        let Some(logic) = record.logic else { return Ok(None) };
        let scope = plan::scope_of(self.host.catalog(), &record.job, &record.partition)?;
        let head = self.host.writer(&record.table)?.head(&scope).await?;
        let key = scope.partitions().into_iter().next().unwrap_or_default();
        let version = head.partitions.get(&key).cloned().ok_or_else(|| {
            Error::internal("a writer answered no version for a key").with_context("table", &record.table)
        })?;
        Ok(Some(WrittenPartition {
            job: record.job,
            logic,
            table: record.table,
            partition: record.partition,
            current: current.unwrap_or_else(|| record.run.clone()),
            run: record.run,
            first: first.record.run,
            kept: first.record.kept,
            base: first.record.base,
            output: record.output_partition,
            head: version,
            table_head: head.table,
            previous,
        }))
    }

    /// The run that wrote the rows of a record last.
    async fn writer_of(&self, record: &RunRecord) -> Result<Option<RunId>> {
        let (table, partition) = (&record.table, &record.partition);
        let row = match record.shares_scope() {
            false => self
                .ledger
                .current(table, std::slice::from_ref(partition))
                .await?
                .into_iter()
                .flatten()
                .next(),
            true => {
                let rows = self.ledger.history(table, &PartitionKey::whole(), LAST).await?;
                rows.into_iter().find(|row| row.record.status == RunStatus::Committed)
            }
        };
        Ok(row.map(|row| row.record.run))
    }

    /// What the rows that a run replaced were: those of the run before, unless somebody had changed them since.
    async fn previous(&self, row: &LedgerRow) -> Result<Option<(Option<LogicVersion>, Option<Fingerprint>)>> {
        let replaced = &row.record;
        let history = self.ledger.history(&replaced.table, &replaced.partition, HISTORY).await?;
        let before = |r: &LedgerRow| r.position < row.position && r.record.status == RunStatus::Committed;
        let Some(earlier) = history.into_iter().find(before).map(|r| r.record) else { return Ok(None) };
        let content = |profile: &Option<Profile>| profile.as_ref().map(|p| p.content.clone());
        let same_rows =
            content(&earlier.after).is_some() && content(&earlier.after) == content(&replaced.before);
        // A merge leaves the rows of others in its scope, so it has no version of its own to compare.
        let as_left = replaced.shares_scope() || earlier.output_partition == replaced.base || same_rows;
        Ok(as_left.then_some((earlier.logic, earlier.fingerprint)))
    }
}

/// The first and the last row that would be taken back, of the rows of one partition: the backfill may have run again
/// over what it had written itself. Of what shares its scope with others, each row by itself.
fn not_taken_back(mut rows: Vec<LedgerRow>) -> Vec<(LedgerRow, LedgerRow)> {
    let is_own = |row: &LedgerRow| row.record.trigger != Trigger::Rollback;
    if rows.iter().any(|row| row.record.shares_scope()) {
        let own = rows.into_iter().rev().take_while(is_own);
        return own.map(|row| (row.clone(), row)).collect();
    }
    let Some(last) = rows.pop().filter(is_own) else { return Vec::new() };
    let mut first = last.clone();
    while let Some(earlier) = rows.pop() {
        let own = is_own(&earlier) && earlier.record.output_partition.is_some();
        if !own || earlier.record.output_partition != first.record.base {
            break;
        }
        first = earlier;
    }
    vec![(first, last)]
}
