//! A worker: works on every backfill there is.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::domain::ids::{Actor, BackfillId, WorkerId};
use crate::domain::plan::Action;
use crate::engine::lease::retried;
use crate::engine::{Engine, TaskEvent};
use crate::error::Result;
use crate::ports::ledger::{Adjustment, BackfillRecord, BackfillState};

/// States of backfills that a worker takes up by itself. A person decides about those that failed or are stale.
const TAKEN_UP: [BackfillState; 4] =
    [BackfillState::Approved, BackfillState::Running, BackfillState::Published, BackfillState::Propagating];

impl Engine {
    /// Works on every backfill that is approved, runs or propagates, as far as this host has the code, and sends the
    /// deliveries that are due. Any number of processes may do so on one ledger.
    ///
    /// It goes on until its [`Stop`](crate::engine::Stop) is asked, or, with `until_idle`, until there is nothing left to do.
    /// What happens to one backfill holds up no other: an error is logged, and the backfill is taken up again once it has
    /// changed.
    ///
    /// # Errors
    /// What the ledger answers to the question for backfills, where a retry cannot get past it; with `until_idle` also the
    /// first error that a backfill was left with.
    pub async fn work(
        &self,
        worker: &WorkerId,
        until_idle: bool,
        watch: impl Fn(&BackfillId, TaskEvent) + Send + Sync,
    ) -> Result<()> {
        let watch = &watch;
        let mut at_work = FuturesUnordered::new();
        let mut taken = BTreeSet::new();
        // Not taken up again before they have changed.
        let mut left = BTreeMap::new();
        let mut first_error = None;
        let mut asked = self.stop.is_asked();
        let mut look = Box::pin(self.look(false));
        // Beside the search for work, since a receiver may take long.
        let mut sending = Some(Box::pin(self.send_due(worker)));
        let mut pause = Box::pin(self.pause_before_look());
        while !(asked && at_work.is_empty() && sending.is_none()) {
            // Without `biased` the order would be drawn, and a seeded replay would differ.
            tokio::select! {
                biased;
                () = self.stop.asked(), if !asked => asked = true,
                () = self.stop.released(), if sending.is_some() => sending = None,
                Some((record, ended)) = at_work.next(), if !at_work.is_empty() => {
                    let record: BackfillRecord = record;
                    let id = record.plan.request.id;
                    if let Err(error) = ended {
                        tracing::warn!(backfill = %id, %error, "a backfill is left");
                        left.insert(id.clone(), record.changed_at);
                        first_error.get_or_insert(error);
                    }
                    taken.remove(&id);
                    look = Box::pin(self.look(false));
                }
                () = sent(&mut sending), if sending.is_some() => {
                    sending = None;
                    pause = Box::pin(self.pause_before_look());
                }
                () = &mut pause, if !asked && sending.is_none() => {
                    sending = Some(Box::pin(self.send_due(worker)));
                }
                found = &mut look, if !asked => {
                    for record in found? {
                        let id = record.plan.request.id.clone();
                        if left.get(&id) == Some(&record.changed_at) || !taken.insert(id.clone()) {
                            continue;
                        }
                        at_work.push(async move {
                            let ended = self.execute(&id, worker, |event| watch(&id, event)).await;
                            (record, ended)
                        });
                    }
                    if until_idle && at_work.is_empty() {
                        self.send_rest(sending, worker).await;
                        return first_error.map_or(Ok(()), Err);
                    }
                    look = Box::pin(self.look(true));
                }
            }
        }
        Ok(())
    }

    /// Sends to the end what is on its way, and then what is due since.
    async fn send_rest(&self, sending: Option<impl Future<Output = ()>>, worker: &WorkerId) {
        let rest = async {
            if let Some(sending) = sending {
                sending.await;
            }
            self.send_due(worker).await;
        };
        tokio::select! {
            biased;
            () = rest => {}
            () = self.stop.released() => {}
        }
    }

    async fn send_due(&self, worker: &WorkerId) {
        if let Err(error) = self.dispatch(worker).await {
            tracing::warn!(%error, "deliveries wait to be sent");
        }
    }

    async fn pause_before_look(&self) {
        self.clock.sleep(10 * self.settings.poll()).await;
    }

    /// Stops the claims of a backfill's tasks; those that are claimed go on.
    pub async fn pause(&self, id: &BackfillId, by: &Actor) -> Result<()> {
        self.ledger.adjust(id, Adjustment::Pause, by).await
    }

    /// Lets tasks of a paused backfill be claimed again.
    pub async fn resume(&self, id: &BackfillId, by: &Actor) -> Result<()> {
        self.ledger.adjust(id, Adjustment::Resume, by).await
    }

    /// Sets how many tasks of a backfill run at a time, over all processes. Tasks that run above it are not stopped.
    pub async fn set_concurrency(&self, id: &BackfillId, tasks: NonZeroU32, by: &Actor) -> Result<()> {
        self.ledger.adjust(id, Adjustment::Concurrency(tasks), by).await
    }

    /// The time by the engine's clock.
    #[cfg(feature = "cli")]
    pub(crate) fn now(&self) -> chrono::DateTime<chrono::Utc> {
        self.clock.now()
    }

    /// Waits until it is worth looking again at what others do.
    #[cfg(feature = "cli")]
    pub(crate) async fn look_again(&self) {
        self.pause_before_look().await;
    }

    /// Waits for something, but no longer than tasks are given to come to their end.
    #[cfg(feature = "cli")]
    pub(crate) async fn grace_or(&self, what: impl Future<Output = ()>) {
        tokio::select! {
            () = what => {}
            () = self.clock.sleep(self.settings.grace()) => {}
        }
    }

    /// Which backfills there are to work on.
    async fn look(&self, later: bool) -> Result<Vec<BackfillRecord>> {
        if later {
            self.pause_before_look().await;
        }
        let mut found = match retried(self, || self.ledger.backfills(&TAKEN_UP)).await {
            Ok(found) => found,
            Err(error) if error.is_retryable() && later => {
                tracing::warn!(%error, "the ledger cannot be asked for work");
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let can_run = self.host.can_run();
        found.retain(|record| {
            let plan = &record.plan;
            let waits = record.state != BackfillState::Published || plan.propagates();
            let runs = |task: &crate::domain::plan::Task| {
                matches!(task.action, Action::Restore { .. })
                    || can_run.iter().any(|(job, logic)| *job == task.job && *logic == task.logic)
            };
            waits && record.paused_by.is_none() && plan.tasks.iter().any(runs)
        });
        Ok(found)
    }
}

/// Waits for what is on its way; for ever where nothing is.
async fn sent<F: Future<Output = ()> + Unpin>(sending: &mut Option<F>) {
    match sending {
        Some(sending) => sending.await,
        None => std::future::pending().await,
    }
}
