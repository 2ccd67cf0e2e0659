//! The one source of time. Everything else is told the time, so that tests and replays control it.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

/// Tells the time and waits.
#[async_trait]
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The instant now.
    fn now(&self) -> DateTime<Utc>;

    /// Waits.
    async fn sleep(&self, duration: Duration);
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one place where the wall clock is read")]
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
