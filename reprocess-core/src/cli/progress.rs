//! A bar for long work.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::domain::plan::{Plan, TaskId};
use crate::engine::TaskEvent;
use crate::ports::ledger::TaskRecord;

/// Shows on stderr how many tasks are done, and which one was started last.
pub(super) struct Progress {
    bar: ProgressBar,
    scopes: BTreeMap<TaskId, String>,
}

impl Progress {
    /// A bar over the tasks of a plan, of which some may be done; it draws nothing where there is no terminal.
    pub(super) fn new(draws: bool, plan: &Plan, tasks: &[TaskRecord]) -> Self {
        let target = if draws { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let length = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let bar = ProgressBar::with_draw_target(Some(length(tasks.len())), target);
        let style = ProgressStyle::with_template("{bar:30} {pos} of {len} tasks, {eta} left  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(length(tasks.iter().filter(|t| t.state.is_success()).count()));
        if draws {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        let scopes = plan.tasks.iter().map(|t| (t.id, format!("{} {}", t.job, t.scope))).collect();
        Self { bar, scopes }
    }

    /// Moves the bar.
    pub(super) fn watch(&self, event: &TaskEvent) {
        match event {
            TaskEvent::Started(task) => {
                self.bar.set_message(self.scopes.get(task).cloned().unwrap_or_default());
            }
            TaskEvent::Left(_, state) if !state.is_open() => self.bar.inc(1),
            TaskEvent::Left(..) => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
