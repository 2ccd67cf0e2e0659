//! The validator: what the reason for a backfill predicts, against what happened.

mod expectation;

pub use expectation::{Expectation, Prediction, Severity, Tolerance};
