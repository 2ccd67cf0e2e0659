//! Planning: gathers facts, then lets the pure planner decide.

use std::collections::BTreeSet;

use crate::domain::ids::BackfillId;
use crate::domain::plan::facts::KnownBackfill;
use crate::domain::plan::{self, Plan, RollbackRequest, WrittenPartition};
use crate::domain::request::Request;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::ports::ledger::{LedgerRow, RunStatus, Trigger};

/// How far back the row before a backfill's is looked for.
const HISTORY: u32 = 1000;

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
        let position = self.ledger.position().await?;
        if self.ledger.backfill(&request.of).await?.is_none() {
            return Err(
                Error::not_found("the ledger has no such backfill").with_context("backfill", &request.of)
            );
        }
        let written = self.written(&request.of).await?;
        let known = self
            .ledger
            .backfill(&request.id)
            .await?
            .map(|b| KnownBackfill { generation: b.plan.generation, open: b.state.holds_partitions() });
        let existing = self.existing().await?;
        plan::plan_rollback(request, self.host.catalog(), &written, &existing, known, position, as_of)
    }

    /// The partitions that a backfill wrote and that were not taken back, each by its last row.
    async fn written(&self, of: &BackfillId) -> Result<Vec<WrittenPartition>> {
        let mut rows = self.ledger.changes(of).await?;
        rows.retain(|row| row.record.status == RunStatus::Committed);
        let mut seen = BTreeSet::new();
        let mut written = Vec::new();
        for row in rows.into_iter().rev() {
            let first = seen.insert((row.record.table.clone(), row.record.partition.clone()));
            if first && row.record.trigger != Trigger::Rollback {
                written.extend(self.written_partition(row).await?);
            }
        }
        written.reverse();
        Ok(written)
    }

    async fn written_partition(&self, row: LedgerRow) -> Result<Option<WrittenPartition>> {
        let record = row.record;
        let Some(logic) = record.logic else { return Ok(None) };
        let scope = plan::scope_of(self.host.catalog(), &record.job, &record.partition)?;
        let head = self.host.writer(&record.table)?.head(&scope).await?;
        let key = scope.partitions().into_iter().next().unwrap_or_default();
        let version = head.partitions.get(&key).cloned().ok_or_else(|| {
            Error::internal("a writer answered no version for a key").with_context("table", &record.table)
        })?;
        let current = self.ledger.current(&record.table, std::slice::from_ref(&record.partition)).await?;
        let history = self.ledger.history(&record.table, &record.partition, HISTORY).await?;
        let previous = history
            .into_iter()
            .find(|r| r.position < row.position && r.record.status == RunStatus::Committed)
            .map(|r| (r.record.logic, r.record.fingerprint));
        Ok(Some(WrittenPartition {
            job: record.job,
            logic,
            table: record.table,
            partition: record.partition,
            current: current
                .into_iter()
                .flatten()
                .next()
                .map_or_else(|| record.run.clone(), |r| r.record.run),
            run: record.run,
            kept: record.kept,
            output: record.output_partition,
            head: version,
            table_head: head.table,
            previous,
        }))
    }
}
