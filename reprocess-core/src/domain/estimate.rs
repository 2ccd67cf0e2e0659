//! What a plan will cost, told from earlier runs.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::ids::JobName;
use super::partition::PartitionKey;

/// What one earlier successful run of one partition took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sample {
    /// From start to finish of the task.
    pub duration_ms: u64,
    /// Rows written.
    pub rows: u64,
    /// Bytes read, where the run recorded them.
    #[serde(default)]
    pub read_bytes: Option<u64>,
    /// Bytes written, where the run recorded them.
    #[serde(default)]
    pub written_bytes: Option<u64>,
}

impl Sample {
    /// A run of which bytes are not known.
    pub fn new(duration_ms: u64, rows: u64) -> Self {
        Self { duration_ms, rows, read_bytes: None, written_bytes: None }
    }

    /// Adds the bytes read.
    #[must_use]
    pub fn with_read_bytes(mut self, bytes: u64) -> Self {
        self.read_bytes = Some(bytes);
        self
    }

    /// Adds the bytes written.
    #[must_use]
    pub fn with_written_bytes(mut self, bytes: u64) -> Self {
        self.written_bytes = Some(bytes);
        self
    }
}

/// Earlier runs by job and partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Run>", into = "Vec<Run>")]
pub struct History {
    jobs: BTreeMap<JobName, BTreeMap<PartitionKey, Vec<Sample>>>,
}

impl History {
    /// No runs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a run.
    pub fn add(&mut self, job: JobName, partition: PartitionKey, sample: Sample) {
        self.jobs.entry(job).or_default().entry(partition).or_default().push(sample);
    }

    /// What a task will cost: the medians of the runs of this very partition; what they do not tell, of all runs of the
    /// job, which are in `overall`.
    fn expect(&self, job: &JobName, partition: &PartitionKey, overall: Cost) -> Cost {
        let own = self.jobs.get(job).and_then(|partitions| partitions.get(partition));
        own.map_or(overall, |samples| Cost::median(samples.iter()).or(overall))
    }

    /// The medians of all runs of a job.
    fn overall(&self, job: &JobName) -> Cost {
        self.jobs.get(job).map_or(Cost::default(), |partitions| Cost::median(partitions.values().flatten()))
    }
}

/// What one task will cost, as far as earlier runs tell.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    duration_ms: Option<u64>,
    rows: Option<u64>,
    read_bytes: Option<u64>,
    written_bytes: Option<u64>,
}

impl Cost {
    fn median<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> Self {
        Self {
            duration_ms: median(samples.clone().map(|s| s.duration_ms).collect()),
            rows: median(samples.clone().map(|s| s.rows).collect()),
            read_bytes: median(samples.clone().filter_map(|s| s.read_bytes).collect()),
            written_bytes: median(samples.filter_map(|s| s.written_bytes).collect()),
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            duration_ms: self.duration_ms.or(other.duration_ms),
            rows: self.rows.or(other.rows),
            read_bytes: self.read_bytes.or(other.read_bytes),
            written_bytes: self.written_bytes.or(other.written_bytes),
        }
    }
}

/// JSON form of a history: a list, as keys of JSON are text.
#[derive(Serialize, Deserialize)]
struct Run {
    job: JobName,
    partition: PartitionKey,
    #[serde(flatten)]
    sample: Sample,
}

impl From<Vec<Run>> for History {
    fn from(runs: Vec<Run>) -> Self {
        let mut history = Self::new();
        runs.into_iter().for_each(|run| history.add(run.job, run.partition, run.sample));
        history
    }
}

impl From<History> for Vec<Run> {
    fn from(history: History) -> Self {
        let mut runs = Vec::new();
        for (job, partitions) in history.jobs {
            for (partition, samples) in partitions {
                let run = |sample| Run { job: job.clone(), partition: partition.clone(), sample };
                runs.extend(samples.into_iter().map(run));
            }
        }
        runs
    }
}

/// The tasks to estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EstimateInput {
    /// Requested tasks.
    pub tasks: Vec<(JobName, PartitionKey)>,
    /// Tasks that follow from them.
    pub downstream: Vec<(JobName, PartitionKey)>,
    /// How many tasks run at once; at least one does.
    pub concurrency: usize,
    /// Whether the requested tasks are staged beside production until they are reviewed.
    pub shadow: bool,
}

impl EstimateInput {
    /// Requested tasks at a concurrency, published at once and without downstream tasks.
    pub fn new(tasks: Vec<(JobName, PartitionKey)>, concurrency: usize) -> Self {
        Self { tasks, downstream: Vec::new(), concurrency, shadow: false }
    }

    /// Adds the tasks that follow.
    #[must_use]
    pub fn with_downstream(mut self, downstream: Vec<(JobName, PartitionKey)>) -> Self {
        self.downstream = downstream;
        self
    }

    /// Stages the requested tasks beside production.
    #[must_use]
    pub fn with_shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }
}

/// What a plan will cost, downstream tasks included. A field is `None` where no earlier run tells it; where some jobs
/// have no earlier run, the notes name them and the fields are the cost of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Estimate {
    /// Number of requested tasks.
    pub tasks: usize,
    /// Number of tasks that follow from them.
    pub downstream_tasks: usize,
    /// How many tasks run at once.
    pub concurrency: usize,
    /// Time until the last task is done: for each job, as many waves as its tasks need at this concurrency, each as
    /// long as the median of its tasks; one job after the other. Review and waiting for other work come on top.
    pub wall_ms: Option<u64>,
    /// Rows to write.
    pub rows: Option<u64>,
    /// Bytes to read.
    pub read_bytes: Option<u64>,
    /// Bytes to write.
    pub written_bytes: Option<u64>,
    /// Bytes that the requested tasks take beside production until they are published; zero in direct mode.
    pub shadow_bytes: Option<u64>,
    /// What the numbers leave out.
    pub notes: Vec<String>,
}

impl Estimate {
    /// How many downstream tasks come with each requested one; `None` where nothing is requested.
    pub fn downstream_multiple(&self) -> Option<f64> {
        let number = |n: usize| u32::try_from(n).map(f64::from).ok();
        (self.tasks > 0).then_some(number(self.downstream_tasks)? / number(self.tasks)?)
    }
}

/// Estimates the tasks from earlier runs: of each task the median of its own partition, else of its job.
pub fn estimate(input: &EstimateInput, history: &History) -> Estimate {
    let by_job = by_job(input.tasks.iter().chain(&input.downstream));
    let overall: BTreeMap<_, _> = by_job.keys().map(|job| (*job, history.overall(job))).collect();
    let cost = |job: &JobName, partition: &PartitionKey| {
        history.expect(job, partition, overall.get(job).copied().unwrap_or_default())
    };
    let costs = |tasks: &[(JobName, PartitionKey)]| -> Vec<Cost> {
        tasks.iter().map(|(job, partition)| cost(job, partition)).collect()
    };
    let (requested, downstream) = (costs(&input.tasks), costs(&input.downstream));
    let all = || requested.iter().chain(&downstream);
    let concurrency = input.concurrency.max(1);
    let of_job = |(job, partitions): (&&JobName, &Vec<&PartitionKey>)| {
        let waves = u64::try_from(partitions.len().div_ceil(concurrency)).unwrap_or(u64::MAX);
        let durations = partitions.iter().filter_map(|partition| cost(job, partition).duration_ms);
        Some(median(durations.collect())?.saturating_mul(waves))
    };
    Estimate {
        tasks: input.tasks.len(),
        downstream_tasks: input.downstream.len(),
        concurrency,
        wall_ms: sum(by_job.iter().map(of_job)),
        rows: sum(all().map(|cost| cost.rows)),
        read_bytes: sum(all().map(|cost| cost.read_bytes)),
        written_bytes: sum(all().map(|cost| cost.written_bytes)),
        shadow_bytes: match input.shadow {
            true => sum(requested.iter().map(|cost| cost.written_bytes)),
            false => Some(0),
        },
        notes: notes(&by_job, history),
    }
}

/// The sum of what is known; `None` where nothing is.
fn sum(known: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    known.flatten().fold(None, |sum: Option<u64>, n| Some(sum.unwrap_or(0).saturating_add(n)))
}

type ByJob<'a> = BTreeMap<&'a JobName, Vec<&'a PartitionKey>>;

fn by_job<'a>(tasks: impl Iterator<Item = &'a (JobName, PartitionKey)>) -> ByJob<'a> {
    let mut jobs = ByJob::new();
    tasks.for_each(|(job, partition)| jobs.entry(job).or_default().push(partition));
    jobs
}

fn notes(by_job: &ByJob<'_>, history: &History) -> Vec<String> {
    let mut notes = Vec::new();
    for (job, partitions) in by_job {
        let Some(runs) =
            history.jobs.get(*job).filter(|runs| runs.values().any(|samples| !samples.is_empty()))
        else {
            notes.push(format!(
                "no earlier run of `{job}`: its tasks ({}) are not in the numbers",
                partitions.len()
            ));
            continue;
        };
        let samples = || runs.values().flatten();
        if samples().all(|s| s.read_bytes.is_none()) {
            notes.push(format!("earlier runs of `{job}` do not tell how many bytes they read"));
        }
        if samples().all(|s| s.written_bytes.is_none()) {
            notes.push(format!("earlier runs of `{job}` do not tell how many bytes they wrote"));
        }
    }
    notes
}

/// The middle value, or half-way between the two in the middle.
pub(crate) fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(values.get(values.len() / 2 - 1)?.midpoint(upper))
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".to_owned());
        write!(f, "tasks: {}, {} at a time", self.tasks, self.concurrency)?;
        if self.downstream_tasks > 0 {
            write!(f, ", and {} downstream", self.downstream_tasks)?;
            if let Some(multiple) = self.downstream_multiple() {
                write!(f, " ({multiple:.1} for each)")?;
            }
        }
        write!(
            f,
            "\nwall time: {}",
            or_unknown(self.wall_ms.map(|ms| format!("about {}", duration_text(ms))))
        )?;
        write!(f, "\nrows: {}", or_unknown(self.rows.map(|rows| rows.to_string())))?;
        let parts =
            [("read", self.read_bytes), ("write", self.written_bytes), ("shadow storage", self.shadow_bytes)];
        for (what, bytes) in parts {
            write!(f, "\n{what}: {}", or_unknown(bytes.map(size_text)))?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))
    }
}

/// A duration in its two largest units.
fn duration_text(ms: u64) -> String {
    let (seconds, minutes, hours, days) = (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    match (days, hours, minutes, seconds) {
        (0, 0, 0, 0) => format!("{ms} ms"),
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {} s", s % 60),
        (0, h, m, _) => format!("{h} h {} min", m % 60),
        (d, h, _, _) => format!("{d} d {} h", h % 24),
    }
}

/// A size in decimal units, with one digit behind the point.
fn size_text(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    let tenths = (bytes / (unit / 10)).saturating_add(u64::from(bytes % (unit / 10) >= unit / 20));
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
