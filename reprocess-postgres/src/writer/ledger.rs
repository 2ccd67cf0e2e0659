//! The ledger that a commit tells.

use std::any::Any;

use reprocess_core::Result;
use reprocess_core::ports::ledger::{Fence, RunLedger};
use reprocess_core::ports::writer::{Commit, CommitEntry};
use sqlx::PgConnection;

use crate::config::PostgresDatabase;
use crate::ledger::PostgresLedger;

/// Where the ledger is.
#[derive(Clone, Copy)]
pub(super) enum Ledger<'a> {
    /// Nobody is told.
    Nowhere,
    /// In this database: it takes part in the transaction.
    Here(&'a PostgresLedger),
    /// Elsewhere: the engine tells it after the commit.
    Elsewhere(&'a dyn RunLedger),
}

impl<'a> Ledger<'a> {
    pub(super) fn of(database: &PostgresDatabase, ledger: Option<&'a dyn RunLedger>) -> Self {
        let Some(ledger) = ledger else { return Self::Nowhere };
        let any: &dyn Any = ledger;
        match any.downcast_ref::<PostgresLedger>() {
            Some(here) if here.database().is_same_database(database) => Self::Here(here),
            _ => Self::Elsewhere(ledger),
        }
    }

    /// Whether the fence is no longer the current one, where the ledger cannot be asked inside the transaction; the base
    /// guards what happens meanwhile.
    pub(super) async fn refuses_before(&self, fence: Option<&Fence>) -> Result<bool> {
        match (self, fence) {
            (Self::Elsewhere(ledger), Some(fence)) => Ok(!ledger.is_current(fence).await?),
            _ => Ok(false),
        }
    }

    /// The same inside the transaction, where the ledger is in this database.
    pub(super) async fn refuses(&self, tx: &mut PgConnection, fence: Option<&Fence>) -> Result<bool> {
        match (self, fence) {
            (Self::Here(ledger), Some(fence)) => Ok(!ledger.fence_is_current_on(tx, fence).await?),
            _ => Ok(false),
        }
    }

    /// Whether [`finish`](Self::finish) writes the ledger's rows.
    pub(super) fn records(&self) -> bool {
        matches!(self, Self::Here(_))
    }

    /// Writes the ledger's rows in the transaction, where the ledger is in this database. Comes last, since the ledger
    /// lets one transaction after the other do so.
    pub(super) async fn finish(
        &self,
        tx: &mut PgConnection,
        commit: &Commit,
        open: &[CommitEntry],
    ) -> Result<()> {
        match self {
            Self::Here(ledger) => ledger.finish_on(tx, commit, open).await,
            Self::Nowhere | Self::Elsewhere(_) => Ok(()),
        }
    }
}
