//! Deliveries as lines of the log.

use async_trait::async_trait;

use crate::error::Result;
use crate::ports::delivery::{Answer, Delivery, DeliverySink, Known};

/// Writes each delivery to the log, at the level of information, and takes that as its confirmation.
#[derive(Clone, Debug)]
pub struct LogSink {
    channel: String,
}

impl LogSink {
    /// A sink of a channel, for example [`NOTICES`](crate::ports::notify::NOTICES).
    pub fn new(channel: impl Into<String>) -> Self {
        Self { channel: channel.into() }
    }
}

#[async_trait]
impl DeliverySink for LogSink {
    fn channel(&self) -> &str {
        &self.channel
    }

    async fn send(&self, delivery: &Delivery) -> Result<Answer> {
        tracing::info!(channel = self.channel, key = delivery.key, payload = %delivery.payload, "delivery");
        Ok(Answer::Accepted { note: None })
    }

    /// A second line does no harm.
    async fn ask(&self, _delivery: &Delivery) -> Result<Known> {
        Ok(Known::NotReceived)
    }
}
