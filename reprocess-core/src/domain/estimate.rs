//! What a plan will cost.

use serde::{Deserialize, Serialize};

/// Placeholder until the estimate lands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {}

/// Placeholder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskHistory {}
