//! The ledger that a commit tells.

use reprocess_core::Result;
use reprocess_core::ports::ledger::{Fence, RunLedger};
use reprocess_core::ports::writer::{Commit, CommitEntry};
use sqlx::PgConnection;

use crate::config::PostgresDatabase;

/// Whether a ledger in the same database takes part in the transaction of the commit.
pub(super) const IN_COMMIT: bool = false;

/// Where the ledger is.
#[derive(Clone, Copy)]
pub(super) struct Ledger<'a> {
    elsewhere: Option<&'a dyn RunLedger>,
}

impl<'a> Ledger<'a> {
    pub(super) fn of(_database: &PostgresDatabase, ledger: Option<&'a dyn RunLedger>) -> Self {
        Self { elsewhere: ledger }
    }

    /// Whether the fence is no longer the current one, where the ledger cannot be asked inside the transaction; the base
    /// guards what happens meanwhile.
    pub(super) async fn refuses_before(&self, fence: Option<&Fence>) -> Result<bool> {
        match (self.elsewhere, fence) {
            (Some(ledger), Some(fence)) => Ok(!ledger.is_current(fence).await?),
            _ => Ok(false),
        }
    }

    /// The same inside the transaction, where the ledger is in this database.
    pub(super) async fn refuses(&self, _tx: &mut PgConnection, _fence: Option<&Fence>) -> Result<bool> {
        Ok(false)
    }

    /// Whether [`finish`](Self::finish) writes the ledger's rows.
    pub(super) fn records(&self) -> bool {
        false
    }

    /// Writes the ledger's rows in the transaction, where the ledger is in this database. Comes last, since the ledger
    /// lets one transaction after the other do so.
    pub(super) async fn finish(
        &self,
        _tx: &mut PgConnection,
        _commit: &Commit,
        _open: &[CommitEntry],
    ) -> Result<()> {
        Ok(())
    }
}
