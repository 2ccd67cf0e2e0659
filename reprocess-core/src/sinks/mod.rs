//! Sinks that hosts need not write themselves: a log, a program, a webhook.

mod command;
mod log;
mod webhook;

pub use command::CommandSink;
pub use log::LogSink;
pub use webhook::WebhookSink;

use crate::error::{Error, Result};
use crate::ports::delivery::Delivery;

/// The document that receivers get.
fn document(delivery: &Delivery) -> Result<Vec<u8>> {
    serde_json::to_vec(delivery).map_err(|e| Error::internal("a delivery has no JSON form").with_source(e))
}
