//! The fingerprint: equal exactly when a task would compute the same thing from the same inputs.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::ids::{LogicVersion, PartitionVersion};
use super::job::JobSpec;
use super::partition::PartitionKey;
use crate::error::{Error, Result};

/// Hash of job definition, logic version, partitions, parameters and versions of the slices read; 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// The fingerprint of one task.
    pub fn of(work: &Work<'_>) -> Result<Self> {
        // Canonical JSON: every map below is ordered, and struct fields keep their declared order.
        let bytes = serde_json::to_vec(work)
            .map_err(|e| Error::internal("a job definition does not serialise").with_source(e))?;
        Ok(Self(blake3::hash(&bytes).to_hex().to_string()))
    }

    /// The hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.get(..12).unwrap_or(&self.0))
    }
}

/// What a fingerprint is taken over.
#[derive(Clone, Debug, Serialize)]
pub struct Work<'a> {
    /// Definition of the job.
    pub job: Definition<'a>,
    /// Logic version.
    pub logic: &'a LogicVersion,
    /// Text of a SQL transform; `None` where the logic version alone stands for the code.
    pub sql: Option<&'a str>,
    /// The units computed.
    pub units: &'a [PartitionKey],
    /// Parameters, those of the request over those of the job.
    pub parameters: &'a BTreeMap<String, serde_json::Value>,
    /// For each input its name and the version of the slice read.
    pub inputs: &'a BTreeMap<String, PartitionVersion>,
}

/// The parts of a job's definition that decide its result; owner, profile and scheduling do not.
#[derive(Clone, Debug, Serialize)]
pub struct Definition<'a> {
    name: &'a super::ids::JobName,
    inputs: &'a [super::job::InputSpec],
    output: &'a super::ids::TableId,
    write: &'a super::job::WriteMode,
    unit: &'a super::partition::Partitioning,
    keyed_by: &'a [String],
}

impl<'a> Definition<'a> {
    /// The parts of a job with its unit; zone, grain and keys are part of the unit.
    pub fn of(job: &'a JobSpec, unit: &'a super::partition::Partitioning) -> Self {
        Self {
            name: &job.name,
            inputs: &job.inputs,
            output: &job.output,
            write: &job.write,
            unit,
            keyed_by: &job.keyed_by,
        }
    }
}
