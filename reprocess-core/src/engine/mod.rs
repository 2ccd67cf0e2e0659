//! The engine: folds a plan over the ports.

mod commit;
mod control;
mod corrections;
mod deliver;
mod determinism;
mod execute;
mod explain;
mod facts;
mod host;
mod inspect;
mod lease;
mod measure;
mod pins;
mod plan;
mod pool;
mod propagate;
mod publish;
mod readiness;
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
pub use corrections::Correction;
pub use deliver::Dispatched;
pub use determinism::Determinism;
pub use execute::{Execution, TaskEvent};
pub use explain::{Explanation, Reconciled, Reconciliation, Status};
pub use host::{Host, Job};
pub use inspect::{Drift, Finding, FindingSeverity};
pub use publish::{Publication, Review, StagedOutput};
pub use readiness::{Lateness, Readiness, Unready};
pub use run::{RunOutcome, RunRequest};
pub use schedule::UnitRun;
pub use settings::Settings;
pub use stop::Stop;

use tokio::sync::Semaphore;

use crate::domain::ids::{TableId, WorkerId};
use crate::ports::clock::{Clock, SystemClock};
use crate::ports::ledger::{Fence, RunLedger, SlotAsk};
use crate::ports::throttle::Throttle;

/// Plans, runs, publishes, takes back and explains, for one host and one ledger.
pub struct Engine {
    host: Host,
    ledger: Arc<dyn RunLedger>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    /// For the tasks that run in this process.
    slots: Semaphore,
    /// In MiB, for what they need.
    memory: Semaphore,
    throttles: Arc<BTreeMap<TableId, Throttle>>,
    stop: Stop,
    /// The leases that this process holds, by their tokens.
    leases: Mutex<BTreeMap<u64, Fence>>,
    /// The slots of pools that it has, or waits for.
    asks: Mutex<BTreeMap<WorkerId, SlotAsk>>,
}

impl Engine {
    /// An engine on the machine's clock.
    pub fn new(host: Host, ledger: Arc<dyn RunLedger>) -> Self {
        let settings = Settings::default();
        let (slots, memory) = (Semaphore::new(settings.slots()), Semaphore::new(settings.memory()));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let throttles = throttles(&host, &clock);
        Self {
            host,
            ledger,
            clock,
            settings,
            slots,
            memory,
            throttles,
            stop: Stop::new(),
            leases: Mutex::default(),
            asks: Mutex::default(),
        }
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.throttles = throttles(&self.host, &clock);
        self.clock = clock;
        self
    }

    /// Sets how it works.
    #[must_use]
    pub fn with_settings(mut self, settings: Settings) -> Self {
        self.slots = Semaphore::new(settings.slots());
        self.memory = Semaphore::new(settings.memory());
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

fn throttles(host: &Host, clock: &Arc<dyn Clock>) -> Arc<BTreeMap<TableId, Throttle>> {
    let limits = host.read_limits().iter();
    Arc::new(limits.map(|(table, limit)| (table.clone(), Throttle::new(limit, clock))).collect())
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
