//! Telling people.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::domain::ids::BackfillId;
use crate::error::Result;
use crate::ports::ledger::BackfillState;

/// Something that people asked to be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The backfill.
    pub backfill: BackfillId,
    /// The state it reached.
    pub state: BackfillState,
    /// Owners of the jobs and exposures that it concerns.
    pub owners: Vec<String>,
    /// What happened, in a sentence.
    pub text: String,
}

/// Carries notices to people. A notice that cannot be carried never fails the work it tells of.
#[async_trait]
pub trait Notifier: Send + Sync + fmt::Debug {
    /// Carries one notice.
    async fn notify(&self, notice: &Notice) -> Result<()>;
}
