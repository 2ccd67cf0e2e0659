//! The validator: what the reason for a backfill predicts, against what happened.

mod expectation;

pub use expectation::{Expectation, Prediction, Severity, Tolerance};

use serde::{Deserialize, Serialize};

/// Placeholder until the validator lands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {}
