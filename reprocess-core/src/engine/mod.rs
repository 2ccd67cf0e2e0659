//! The engine: folds a plan over the ports.

mod commit;
mod control;
mod deliver;
mod determinism;
mod execute;
mod explain;
mod facts;
mod host;
mod inspect;
mod lease;
mod pins;
mod plan;
mod propagate;
mod publish;
mod record;
mod run;
mod schedule;
mod settings;
mod settle;
mod stage;
mod stop;
mod task;
mod work;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

pub use control::{Closed, Submission};
pub use deliver::Dispatched;
pub use determinism::Determinism;
pub use execute::{Execution, TaskEvent};
pub use explain::{Explanation, Reconciled, Status};
pub use host::{Host, Job};
pub use inspect::{Drift, Finding, FindingSeverity};
pub use publish::{Publication, Review, StagedOutput};
pub use run::{RunOutcome, RunRequest};
pub use schedule::UnitRun;
pub use settings::Settings;
pub use stop::Stop;

use tokio::sync::Semaphore;

use crate::ports::clock::{Clock, SystemClock};
use crate::ports::ledger::{Fence, RunLedger};

/// Plans, runs, publishes, takes back and explains, for one host and one ledger.
pub struct Engine {
    host: Host,
    ledger: Arc<dyn RunLedger>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    /// For the tasks that run in this process.
    slots: Semaphore,
    stop: Stop,
    /// The leases that this process holds, by their tokens.
    leases: Mutex<BTreeMap<u64, Fence>>,
}

impl Engine {
    /// An engine on the machine's clock.
    pub fn new(host: Host, ledger: Arc<dyn RunLedger>) -> Self {
        let settings = Settings::default();
        let slots = Semaphore::new(settings.slots());
        Self {
            host,
            ledger,
            clock: Arc::new(SystemClock),
            settings,
            slots,
            stop: Stop::new(),
            leases: Mutex::default(),
        }
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
        self.slots = Semaphore::new(settings.slots());
        self.settings = settings;
        self
    }

    /// Sets by what its work can be asked to end.
    #[must_use]
    pub fn with_stop(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    /// By what its work can be asked to end.
    pub fn stop(&self) -> &Stop {
        &self.stop
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
