//! Exit codes that scripts can trust.

use std::process::ExitCode;

use crate::error::{Error, ErrorKind};
use crate::ports::ledger::BackfillState;

/// The table of exit codes, as `--help` shows it.
pub(super) const HELP: &str = "\
Exit codes:
   0  done
   1  failed: some task failed, an expectation stopped the backfill, or an error that is not listed here
   2  bad usage or bad input
   3  refused by the state in the ledger, an overlap or a missing approval
   4  waits for a person: to approve a plan, to review outputs, or to decide about a delivery
   5  production or an input moved: stage again, or plan again
  75  temporary: the same command may succeed later

With --json there is one JSON document on stdout, and an error is one JSON document on stderr.";

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Exit {
    /// It is done: 0.
    Done,
    /// Some task failed, an expectation stopped the backfill, or another error: 1.
    Failed,
    /// Bad usage or bad input: 2.
    Usage,
    /// Refused by state, overlap or a missing approval: 3.
    Refused,
    /// Waits for a person: 4.
    Waiting,
    /// Production or an input moved: 5.
    Stale,
    /// The same command may succeed later: 75.
    Temporary,
}

impl Exit {
    /// The code that the process ends with.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Waiting => 4,
            Self::Stale => 5,
            Self::Temporary => 75,
        }
    }

    /// How a command ends that worked on a backfill and left it in this state.
    pub(super) fn of_state(state: BackfillState) -> Self {
        match state {
            BackfillState::Published
            | BackfillState::Done
            | BackfillState::Closed
            | BackfillState::RolledBack => Self::Done,
            BackfillState::Planned | BackfillState::AwaitingReview => Self::Waiting,
            BackfillState::Stale => Self::Stale,
            BackfillState::Failed | BackfillState::Aborted | BackfillState::Cancelled => Self::Failed,
            // Another process is at it.
            BackfillState::Approved
            | BackfillState::Running
            | BackfillState::Publishing
            | BackfillState::Propagating => Self::Temporary,
        }
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        match error.kind() {
            _ if error.is_retryable() => Self::Temporary,
            ErrorKind::Invalid | ErrorKind::NotFound => Self::Usage,
            ErrorKind::State => Self::Refused,
            ErrorKind::PinBroken => Self::Stale,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_the_code_that_says_what_can_be_done() {
        let check = |error: Error, code| assert_eq!(Exit::from(&error).code(), code, "{error}");
        check(Error::invalid("x"), 2);
        check(Error::not_found("x"), 2);
        check(Error::new(ErrorKind::State, "x"), 3);
        check(Error::new(ErrorKind::PinBroken, "x"), 5);
        check(Error::new(ErrorKind::Unavailable, "x"), 75);
        check(Error::new(ErrorKind::State, "x").with_retry(true), 75);
        check(Error::new(ErrorKind::Transform, "x"), 1);
        check(Error::internal("x"), 1);
    }
}
