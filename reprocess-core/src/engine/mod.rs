//! The engine: folds a plan over the ports.

mod commit;
mod control;
mod deliver;
mod determinism;
mod execute;
mod explain;
mod facts;
mod host;
mod lease;
mod pins;
mod plan;
mod publish;
mod record;
mod run;
mod schedule;
mod settings;
mod settle;
mod stage;
mod task;

use std::fmt;
use std::sync::Arc;

pub use control::{Closed, Submission};
pub use deliver::Dispatched;
pub use determinism::Determinism;
pub use execute::{Execution, TaskEvent};
pub use explain::{Explanation, Reconciled, Status};
pub use host::{Host, Job};
pub use publish::{Publication, Review, StagedOutput};
pub use run::{RunOutcome, RunRequest};
pub use schedule::UnitRun;
pub use settings::Settings;

use crate::ports::clock::{Clock, SystemClock};
use crate::ports::ledger::RunLedger;

/// Plans, runs, publishes, takes back and explains, for one host and one ledger.
pub struct Engine {
    host: Host,
    ledger: Arc<dyn RunLedger>,
    clock: Arc<dyn Clock>,
    settings: Settings,
}

impl Engine {
    /// An engine on the machine's clock.
    pub fn new(host: Host, ledger: Arc<dyn RunLedger>) -> Self {
        Self { host, ledger, clock: Arc::new(SystemClock), settings: Settings::default() }
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how it works.
    #[must_use]
    pub fn with_settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The ledger.
    pub fn ledger(&self) -> &Arc<dyn RunLedger> {
        &self.ledger
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("host", &self.host)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
