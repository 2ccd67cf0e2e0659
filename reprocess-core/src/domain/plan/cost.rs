//! The plan's estimate from the history of its jobs.

use chrono::Duration;

use super::facts::Facts;
use super::{Downstream, Task};
use crate::domain::estimate::{Estimate, EstimateInput, estimate};
use crate::domain::request::{Mode, Request};

pub(super) fn of(request: &Request, facts: &Facts, tasks: &[Task], downstream: &[Downstream]) -> Estimate {
    let units = tasks.iter().flat_map(|task| task.units.iter().map(|unit| (task.job.clone(), unit.clone())));
    let following = downstream.iter().map(|d| (d.job.clone(), d.partition.clone()));
    let concurrency = usize::try_from(request.concurrency).unwrap_or(usize::MAX);
    let input = EstimateInput::new(units.collect(), concurrency)
        .with_downstream(following.collect())
        .with_shadow(request.mode == Mode::Shadow);
    estimate(&input, &facts.history)
}

/// How long tasks of these units may take, for the check that their inputs stay readable; nothing without history.
pub(super) fn longest(request: &Request, facts: &Facts, tasks: &[Task]) -> Duration {
    let wall_ms = of(request, facts, tasks, &[]).wall_ms.unwrap_or(0);
    Duration::milliseconds(i64::try_from(wall_ms).unwrap_or(i64::MAX))
}
