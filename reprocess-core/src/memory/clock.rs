//! A clock that tests control.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};

use crate::ports::clock::Clock;

/// A clock that stands still until it is told, or until somebody sleeps by it.
#[derive(Debug)]
pub struct ManualClock(Mutex<DateTime<Utc>>);

impl ManualClock {
    /// Stands at an instant.
    pub fn new(at: DateTime<Utc>) -> Self {
        Self(Mutex::new(at))
    }

    /// Puts it to an instant, which may lie before.
    pub fn set(&self, at: DateTime<Utc>) {
        *self.time() = at;
    }

    /// Puts it forward.
    pub fn advance(&self, by: Duration) {
        let mut time = self.time();
        *time = later(*time, by);
    }

    fn time(&self) -> MutexGuard<'_, DateTime<Utc>> {
        // An instant has no half-written state, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> DateTime<Utc> {
        *self.time()
    }

    /// Puts the clock forward and lets others run: nobody waits in a test.
    async fn sleep(&self, duration: Duration) {
        self.advance(duration);
        tokio::task::yield_now().await;
    }
}

/// The instant so much later, or the last one that can be represented.
pub(super) fn later(instant: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(by)
        .ok()
        .and_then(|by| instant.checked_add_signed(by))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleeping_puts_the_clock_forward() {
        let clock = ManualClock::new(DateTime::UNIX_EPOCH);
        clock.sleep(Duration::from_secs(90)).await;
        assert_eq!(clock.now().timestamp(), 90);
        clock.set(DateTime::UNIX_EPOCH);
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.now().timestamp(), 1);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), DateTime::<Utc>::MAX_UTC);
    }
}
