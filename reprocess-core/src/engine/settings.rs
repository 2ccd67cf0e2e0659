//! Settings of an engine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How an engine works. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Settings {
    /// Whether leases are taken. Correctness does not depend on it; without them more commits conflict.
    pub leases: bool,
    /// How long a lease or a claim is valid without being prolonged; it is prolonged at a third of this.
    pub lease_ttl_ms: u64,
    /// How long to wait before looking again at what others hold; a worker looks for other backfills after ten times as
    /// long, and whenever it is done with one.
    pub poll_ms: u64,
    /// How often a step is tried that fails with an error that a retry can get past; and how often a task of a backfill
    /// is claimed again that ends with such an error, before it counts as failed; and how often a run of the schedule is
    /// planned under which production moves.
    pub attempts: u32,
    /// Wait before the second try; it doubles with each further one.
    pub backoff_min_ms: u64,
    /// Longest wait between two tries.
    pub backoff_max_ms: u64,
    /// How many tasks this process runs at a time, whatever number of backfills it works on. Rows are streamed, so that a
    /// process needs the memory of so many transforms. One that waits for a slot of a pool, or for memory, counts.
    pub tasks: u32,
    /// How much memory the tasks of this process may need at a time, in MiB, as their jobs
    /// [say](crate::domain::job::JobSpec::memory_mib); one that needs more runs alone.
    pub memory_mib: u32,
    /// How long tasks that run are given to come to their end when the process is asked to stop, before they are left to
    /// others.
    pub grace_ms: u64,
    /// Whether a plan and its outputs must be approved by somebody other than the requester.
    pub second_person: bool,
    /// How many earlier rows of a job an estimate is made of.
    pub history_rows: u32,
    /// How many deliveries a process sends at a time.
    pub sends: u32,
    /// For how long a delivery is a process's own to send, before another takes it and asks whether it was received. Its
    /// receiver is given half of this.
    pub send_ttl_ms: u64,
    /// How often a delivery is tried that its receiver has not taken, before it is left to a person.
    pub send_attempts: u32,
    /// Wait before the second try of a delivery; it doubles with each further one.
    pub send_backoff_min_ms: u64,
    /// Longest wait between two tries of a delivery.
    pub send_backoff_max_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            leases: true,
            lease_ttl_ms: 60_000,
            poll_ms: 500,
            attempts: 5,
            backoff_min_ms: 100,
            backoff_max_ms: 10_000,
            tasks: u32::MAX,
            memory_mib: u32::MAX,
            grace_ms: 30_000,
            second_person: false,
            history_rows: 200,
            sends: 4,
            send_ttl_ms: 60_000,
            send_attempts: 10,
            send_backoff_min_ms: 1_000,
            send_backoff_max_ms: 3_600_000,
        }
    }
}

impl Settings {
    pub(crate) fn lease_ttl(&self) -> Duration {
        Duration::from_millis(self.lease_ttl_ms)
    }

    pub(crate) fn send_ttl(&self) -> Duration {
        Duration::from_millis(self.send_ttl_ms)
    }

    #[cfg(feature = "cli")]
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }

    pub(crate) fn slots(&self) -> usize {
        usize::try_from(self.tasks.max(1)).unwrap_or(usize::MAX).min(tokio::sync::Semaphore::MAX_PERMITS)
    }

    pub(crate) fn memory(&self) -> usize {
        usize::try_from(self.memory_mib.max(1)).unwrap_or(usize::MAX).min(tokio::sync::Semaphore::MAX_PERMITS)
    }

    pub(crate) fn poll(&self) -> Duration {
        Duration::from_millis(self.poll_ms)
    }

    /// The wait before a task that ended with an error of that kind may be claimed again: it doubles with each claim.
    pub(crate) fn pause(&self, claims: u32) -> Duration {
        doubled(self.poll_ms, claims, self.backoff_max_ms)
    }

    /// The wait before a delivery is tried again: it doubles with each attempt.
    pub(crate) fn send_pause(&self, attempts: u32) -> Duration {
        doubled(self.send_backoff_min_ms, attempts, self.send_backoff_max_ms)
    }

    /// The waits between tries of one step.
    pub(crate) fn backoff(&self) -> backon::ExponentialBackoff {
        use backon::BackoffBuilder;
        backon::ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(self.backoff_min_ms))
            .with_max_delay(Duration::from_millis(self.backoff_max_ms))
            .with_max_times(usize::try_from(self.attempts.saturating_sub(1)).unwrap_or(usize::MAX))
            .build()
    }
}

fn doubled(first_ms: u64, times: u32, longest_ms: u64) -> Duration {
    let doubled = 1_u64.checked_shl(times.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_millis(first_ms.saturating_mul(doubled).min(longest_ms))
}
