//! The answer of the validator.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Expectation, Severity};
use crate::domain::partition::PartitionKey;

/// How many findings the text shows; the JSON has all.
const SHOWN: usize = 50;

/// What is to happen with the backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[must_use]
pub enum Decision {
    /// Everything is as predicted.
    Approve,
    /// A person has to look.
    Review,
    /// The backfill stops.
    Abort,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Approve => "approve",
            Self::Review => "review",
            Self::Abort => "abort",
        })
    }
}

/// Why something is a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// An expectation is not met.
    NotMet,
    /// Something differs that no expectation predicts.
    Unpredicted,
    /// An expectation could not be checked.
    NotChecked,
}

/// One thing a reviewer has to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// The partition.
    pub partition: PartitionKey,
    /// What it does to the verdict.
    pub severity: Severity,
    /// Why it is a finding.
    pub kind: FindingKind,
    /// The expectation, where one was not met or not checked, without what it predicts of other partitions.
    pub expectation: Option<Expectation>,
    /// What was found, in words.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partition = match self.partition.is_whole() {
            true => "the whole table".to_owned(),
            false => self.partition.to_string(),
        };
        let severity = match self.severity {
            Severity::Review => "review",
            Severity::Abort => "abort",
        };
        write!(f, "{partition}: {} ({severity})", self.message)
    }
}

/// All findings, and what follows from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Verdict {
    /// What is to happen.
    pub decision: Decision,
    /// How many partitions were looked at.
    pub partitions: usize,
    /// Everything that was found, by partition.
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// The verdict that follows from the findings: the worst severity decides.
    pub(super) fn new(partitions: usize, findings: Vec<Finding>) -> Self {
        let decision = match findings.iter().map(|f| f.severity).max() {
            None => Decision::Approve,
            Some(Severity::Review) => Decision::Review,
            Some(Severity::Abort) => Decision::Abort,
        };
        Self { decision, partitions, findings }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        write!(f, "{}: ", self.decision)?;
        match self.findings.len() {
            0 => write!(f, "nothing unexpected")?,
            n => write!(f, "{n} finding{}", plural(n))?,
        }
        write!(f, " in {} partition{}", self.partitions, plural(self.partitions))?;
        for finding in self.findings.iter().take(SHOWN) {
            write!(f, "\n  {finding}")?;
        }
        match self.findings.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}
