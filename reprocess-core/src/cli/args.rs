//! What can be said on the command line.

use std::num::NonZeroU32;

use clap::{Args, Parser, Subcommand};

use super::choices::{
    DecisionChoice, DeliveryChoice, GrainChoice, LeasedChoice, ModeChoice, MovedChoice, OrderChoice,
    SchemaChoice,
};
use super::exit;

/// Heading of the options that every command takes.
const EVERYWHERE: &str = "Options of every command";

/// Plans, runs, reviews, publishes, takes back and explains runs of this application's jobs
#[derive(Clone, Debug, Parser)]
#[command(after_help = exit::HELP, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// Prints one JSON document instead of text
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub(super) json: bool,
    /// Who asks, approves or stops; else $USER
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "WHO")]
    pub(super) by: Option<String>,
    /// Name of this process in the ledger; no two processes may share one
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "NAME")]
    pub(super) worker: Option<String>,
    /// How many lines of a list are shown
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "N", default_value_t = crate::render::SHOWN)]
    pub(super) lines: usize,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum Command {
    /// Shows what a backfill would do; writes nothing
    #[command(
        after_help = "Example: plan daily_departures@v2 --from 2013-03-04 --to 2013-03-24 --id cancelled --reason \"cancelled flights were counted\""
    )]
    Plan(PlanArgs),
    /// Plans, and files the plan so that somebody approves it
    #[command(
        after_help = "Example: submit daily_departures@v2 --from 2013-03-04 --to 2013-03-24 --id cancelled --reason \"cancelled flights were counted\""
    )]
    Submit(PlanArgs),
    /// Plans, asks for approval, runs; in shadow mode ends with a review
    #[command(
        after_help = "Example: backfill daily_departures@v2 --from 2013-03-04 --to 2013-03-24 --id cancelled --reason \"cancelled flights were counted\" --concurrency 4"
    )]
    Backfill(BackfillArgs),
    /// Shows what a backfill would cost, going by earlier runs
    #[command(
        after_help = "Example: estimate daily_departures@v2 --from 2013-03-04 --to 2013-03-24 --id cancelled --reason \"cancelled flights were counted\""
    )]
    Estimate(PlanArgs),
    /// Runs what an external scheduler asks for: one interval or partition of a job
    Run(RunArgs),
    /// Runs all intervals of a job that ended and that nobody has produced yet
    CatchUp(CatchUpArgs),
    /// Works on every approved backfill, and sends deliveries that are due; any number of processes may
    Work(WorkArgs),
    /// Lets no more tasks of a backfill be begun; those that run come to their end
    #[command(after_help = "Example: pause cancelled")]
    Pause {
        /// The backfill
        id: String,
    },
    /// Lets tasks of a paused backfill be begun again
    #[command(after_help = "Example: resume cancelled")]
    Resume {
        /// The backfill
        id: String,
    },
    /// Sets how many tasks of a backfill run at a time, over all processes
    #[command(after_help = "Example: concurrency cancelled 8")]
    Concurrency {
        /// The backfill
        id: String,
        /// How many
        tasks: NonZeroU32,
    },
    /// Shows one backfill with its tasks, or all backfills
    #[command(after_help = "Example: status cancelled --watch")]
    Status {
        /// The backfill
        id: Option<String>,
        /// Shows it again and again until no process works on it
        #[arg(long, requires = "id")]
        watch: bool,
    },
    /// Shows the outputs of a shadow before and after, and the rows of some of them that differ
    #[command(after_help = "Example: review cancelled --tasks 10 --samples 3")]
    Review {
        /// The backfill
        id: String,
        /// Of how many outputs rows are compared, those with findings first
        #[arg(long, default_value_t = 3, value_name = "N")]
        tasks: usize,
        /// How many rows of each kind to show
        #[arg(long, default_value_t = 5, value_name = "N")]
        samples: usize,
    },
    /// Shows the rows that one task of a shadow changes
    #[command(after_help = "Example: diff cancelled 3 --samples 50")]
    Diff {
        /// The backfill
        id: String,
        /// Number of the task, as the review shows it
        task: u32,
        /// How many rows of each kind to show
        #[arg(long, default_value_t = 20, value_name = "N")]
        samples: usize,
    },
    /// Approves a plan, or the reviewed outputs of a shadow
    #[command(after_help = "Example: approve cancelled --digest 4f1c… --comment \"as planned\"")]
    Approve {
        /// The backfill
        id: String,
        /// Digest of what was looked at: of the plan, or of the review
        #[arg(long)]
        digest: String,
        /// What is to be recorded with the approval
        #[arg(long, default_value = "")]
        comment: String,
    },
    /// A reviewer's no: discards what is staged
    #[command(after_help = "Example: abort cancelled --why \"the carrier disputes it\"")]
    Abort(StopArgs),
    /// Stops a backfill: discards what is staged, keeps what is committed
    #[command(after_help = "Example: cancel cancelled --why \"no longer needed\"")]
    Cancel(StopArgs),
    /// Discards what some tasks of a shadow, and those that wait for them, have staged; the others stay in review
    #[command(after_help = "Example: discard cancelled 3 4 --why \"the carrier disputes these days\"")]
    Discard {
        /// The backfill
        id: String,
        /// Numbers of the tasks, as the review shows them
        #[arg(required = true, value_name = "TASK")]
        tasks: Vec<u32>,
        /// Why; recorded
        #[arg(long)]
        why: String,
    },
    /// Commits the approved outputs of a shadow
    #[command(after_help = "Example: publish cancelled")]
    Publish {
        /// The backfill
        id: String,
    },
    /// Brings back what a backfill replaced, as a run of its own
    #[command(
        after_help = "Example: rollback cancelled --partition day=2013-03-08 --reason \"the carrier disputes it\""
    )]
    Rollback(RollbackArgs),
    /// Ends a backfill for good, and shows what is stale downstream
    #[command(after_help = "Example: close cancelled --forget")]
    Close {
        /// The backfill
        id: String,
        /// Frees what it replaced; it cannot be rolled back afterwards
        #[arg(long)]
        forget: bool,
    },
    /// Shows what produced a partition, and its history
    #[command(after_help = "Example: explain daily_departures day=2013-03-08")]
    Explain {
        /// The table
        table: String,
        /// The partition, for example day=2013-03-04; left out for a table without partitions
        #[arg(default_value = "")]
        key: String,
    },
    /// Shows rows of the ledger: the latest of each job, or those of a backfill, a run, a table or a partition
    #[command(after_help = "Example: ledger --backfill cancelled")]
    Ledger(LedgerArgs),
    /// Shows partitions on another logic version than the schedule runs
    #[command(after_help = "Example: outdated --json")]
    Outdated,
    /// Shows partitions that were computed from what has changed since
    #[command(after_help = "Example: stale --json")]
    Stale,
    /// Shows partitions that were computed from rows of a source that have changed since, or of which there are more now
    #[command(after_help = "Example: corrections daily_departures")]
    Corrections {
        /// Only of these jobs
        jobs: Vec<String>,
    },
    /// Shows whether the totals agree that jobs declare, layer by layer; fails where some do not
    #[command(after_help = "Example: reconcile weekly_departures")]
    Reconcile {
        /// Only of these jobs
        jobs: Vec<String>,
    },
    /// Shows partitions that were or will be ready too late, which backfills were open meanwhile, and how long tasks waited
    #[command(visible_alias = "sla", after_help = "Example: readiness --since 2013-03-04")]
    Readiness {
        /// Of intervals that ended from then on: an instant, or a date for midnight in UTC; else of the last seven days
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
    },
    /// Shows partitions that hold other rows than the ledger recorded, since somebody else has written
    #[command(after_help = "Example: drift daily_departures")]
    Drift {
        /// Only of these tables
        tables: Vec<String>,
    },
    /// Shows what jobs read and write, and who is upstream and downstream of them
    #[command(after_help = "Example: lineage daily_departures")]
    Lineage {
        /// Only this job
        job: Option<String>,
    },
    /// Runs a transform twice and compares, and compares with what the ledger has for the same work; commits nothing
    Check(CheckArgs),
    /// Looks for what will go wrong: missing code, inputs that expired, deliveries that nobody sends
    #[command(after_help = "Example: doctor")]
    Doctor,
    /// Shows, releases and sends deliveries
    #[command(subcommand)]
    Deliveries(DeliveriesCommand),
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum DeliveriesCommand {
    /// Shows deliveries
    #[command(after_help = "Example: deliveries list --backfill cancelled --state suppressed")]
    List {
        /// Only those of this backfill
        #[arg(long, value_name = "ID")]
        backfill: Option<String>,
        /// Only those in this state
        #[arg(long, value_enum)]
        state: Option<DeliveryChoice>,
    },
    /// Releases deliveries that were held back: those of a backfill, or those of some business events
    #[command(after_help = "Example: deliveries release cancelled --key report/2013-03-08")]
    Release {
        /// The backfill
        #[arg(required_unless_present = "key")]
        backfill: Option<String>,
        /// Only those of these business events
        #[arg(long, num_args = 1.., value_name = "KEY")]
        key: Vec<String>,
    },
    /// Sends what is released, until nothing is due
    #[command(after_help = "Example: deliveries send")]
    Send,
    /// Decides about deliveries that are unknown or dead
    #[command(after_help = "Example: deliveries decide report/2013-03-08 --as again")]
    Decide {
        /// Keys of their business events
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
        /// What is to be done
        #[arg(long = "as", value_enum)]
        decision: DecisionChoice,
    },
}

/// What is asked for.
#[derive(Clone, Debug, Args)]
pub(super) struct PlanArgs {
    /// The jobs, each with its logic version where --logic is not meant; JOB+ adds all jobs downstream, and +JOB all upstream,
    /// each in the version that it registered last
    #[arg(value_name = "[+]JOB[@LOGIC][+]")]
    pub(super) jobs: Vec<String>,
    /// Logic version of the jobs that name none
    #[arg(long, value_name = "V")]
    pub(super) logic: Option<String>,
    /// Name of the backfill; the same name again is the same backfill
    #[arg(long)]
    pub(super) id: Option<String>,
    /// Why; recorded with every row of the ledger
    #[arg(long)]
    pub(super) reason: Option<String>,
    /// First partition, as 2013-03-04 or, for hours, 2013-03-04T05:00:00Z
    #[arg(long, value_name = "KEY", requires = "to", conflicts_with_all = ["partition", "whole_table"])]
    pub(super) from: Option<String>,
    /// Last partition, included
    #[arg(long, value_name = "KEY", requires = "from")]
    pub(super) to: Option<String>,
    /// These partitions, for example day=2013-03-04/country=FR
    #[arg(long, value_name = "KEY", num_args = 1.., conflicts_with = "whole_table")]
    pub(super) partition: Vec<String>,
    /// The whole table, rebuilt
    #[arg(long)]
    pub(super) whole_table: bool,
    /// The partitions that the command stale names, with the logic that the schedule runs where none is named
    #[arg(long, conflicts_with_all = ["from", "partition", "whole_table"])]
    pub(super) stale: bool,
    /// The partitions that the command outdated names, with the logic that the schedule runs where none is named
    #[arg(long, conflicts_with_all = ["from", "partition", "whole_table"])]
    pub(super) outdated: bool,
    /// The partitions that the command corrections names, with the logic that the schedule runs where none is named
    #[arg(long, conflicts_with_all = ["from", "partition", "whole_table"])]
    pub(super) corrected: bool,
    /// Whether the output waits for a review
    #[arg(long, value_enum, default_value_t = ModeChoice::Shadow)]
    pub(super) mode: ModeChoice,
    /// How many tasks run at a time, over all processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) concurrency: u32,
    /// In which order tasks run
    #[arg(long, value_enum, default_value_t = OrderChoice::Any)]
    pub(super) order: OrderChoice,
    /// Also runs what is unchanged or was rolled back
    #[arg(long)]
    pub(super) force: bool,
    /// Leaves downstream tables out of the plan
    #[arg(long)]
    pub(super) no_propagate: bool,
    /// Releases deliveries at the commit; else they wait to be released by name
    #[arg(long)]
    pub(super) deliver: bool,
    /// Reads exactly the inputs that this run recorded
    #[arg(long, value_name = "RUN")]
    pub(super) inputs_of: Option<String>,
    /// How many partitions one commit takes, where the job allows it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) partitions_per_commit: u32,
    /// Commits the partitions of one such period at once, as far as the job allows so many
    #[arg(long, value_enum, conflicts_with = "partitions_per_commit")]
    pub(super) commit_by: Option<GrainChoice>,
    /// Does not keep the replaced rows; the backfill cannot be rolled back
    #[arg(long)]
    pub(super) no_keep: bool,
    /// What to do where a partition moved after planning
    #[arg(long, value_enum, default_value_t = MovedChoice::Stop)]
    pub(super) when_moved: MovedChoice,
    /// What to do where another run holds a partition
    #[arg(long, value_enum, default_value_t = LeasedChoice::Wait)]
    pub(super) when_leased: LeasedChoice,
    /// What to do where the logic produces other columns
    #[arg(long, value_enum, default_value_t = SchemaChoice::Refuse)]
    pub(super) schema: SchemaChoice,
    /// Overrides a parameter of the jobs; the value is JSON
    #[arg(long, value_name = "NAME=JSON")]
    pub(super) param: Vec<String>,
    /// What is expected to change, as JSON, or @FILE with JSON: one expectation or a list of them
    #[arg(long, value_name = "JSON")]
    pub(super) expect: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub(super) struct BackfillArgs {
    #[command(flatten)]
    pub(super) plan: PlanArgs,
    /// Approves the plan at once
    #[arg(long)]
    pub(super) yes: bool,
    /// Goes on with a backfill that is in the ledger
    #[arg(long, value_name = "ID", conflicts_with_all = ["jobs", "id", "from", "partition", "whole_table", "stale", "outdated", "corrected"])]
    pub(super) resume: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: check daily_departures@v2 day=2013-03-04")]
pub(super) struct CheckArgs {
    /// The job, with its logic version where --logic does not say it
    #[arg(value_name = "JOB[@LOGIC]")]
    pub(super) job: String,
    /// One partition, for example day=2013-03-04; left out for a table without partitions
    #[arg(default_value = "")]
    pub(super) partition: String,
    /// Logic version
    #[arg(long, value_name = "V")]
    pub(super) logic: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Example: run daily_departures --interval 2013-03-04/2013-03-05 --run \"{{ run_id }}\""
)]
pub(super) struct RunArgs {
    /// The job
    pub(super) job: String,
    /// Data interval, START/END, of one or more whole partitions; each end an instant, or a date for midnight in the job's zone
    #[arg(long, value_name = "START/END", conflicts_with = "partition")]
    pub(super) interval: Option<String>,
    /// One partition, for example day=2013-03-04; left out for a table without partitions
    #[arg(long, value_name = "KEY")]
    pub(super) partition: Option<String>,
    /// The scheduler's id of the run: the same id again is the same run; else one made of job and partition
    #[arg(long, value_name = "ID")]
    pub(super) run: Option<String>,
    #[command(flatten)]
    pub(super) options: RunOptions,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: catch-up daily_departures --until 2013-03-08")]
pub(super) struct CatchUpArgs {
    /// The job
    pub(super) job: String,
    /// Up to when, not later than now: an instant, or a date for midnight in the job's zone
    #[arg(long, value_name = "TIME")]
    pub(super) until: String,
    /// First partition; else the first that was ever produced
    #[arg(long, value_name = "KEY")]
    pub(super) from: Option<String>,
    #[command(flatten)]
    pub(super) options: RunOptions,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example: work --until-idle

On SIGINT or SIGTERM no task is begun any more, and those that run come to their end. On a second signal, or where they take
too long, they are left to other workers, which go on with what is staged. The exit code is 0 in both cases.")]
pub(super) struct WorkArgs {
    /// Ends when there is nothing left to do, instead of waiting for more
    #[arg(long)]
    pub(super) until_idle: bool,
    /// Serves what is measured to Prometheus
    #[cfg(feature = "prometheus")]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) metrics: Option<std::net::SocketAddr>,
}

#[derive(Clone, Debug, Args)]
pub(super) struct RunOptions {
    /// Logic version; else the one that the job registered last
    #[arg(long, value_name = "V")]
    pub(super) logic: Option<String>,
    /// A run by hand: deliveries are held back
    #[arg(long)]
    pub(super) manual: bool,
    /// Why; recorded
    #[arg(long)]
    pub(super) reason: Option<String>,
    /// Also runs what is unchanged
    #[arg(long)]
    pub(super) force: bool,
    /// Keeps the replaced rows
    #[arg(long)]
    pub(super) keep: bool,
    /// What to do where another run, or a backfill at work, holds the partition
    #[arg(long, value_enum, default_value_t = LeasedChoice::Wait)]
    pub(super) when_leased: LeasedChoice,
}

#[derive(Clone, Debug, Args)]
pub(super) struct StopArgs {
    /// The backfill
    pub(super) id: String,
    /// Why; recorded
    #[arg(long)]
    pub(super) why: String,
}

#[derive(Clone, Debug, Args)]
pub(super) struct RollbackArgs {
    /// The backfill
    pub(super) id: String,
    /// Only these partitions
    #[arg(long, value_name = "KEY", num_args = 1.., required_unless_present = "all", conflicts_with = "all")]
    pub(super) partition: Vec<String>,
    /// Everything that it wrote
    #[arg(long, required_unless_present = "partition")]
    pub(super) all: bool,
    /// Why; recorded
    #[arg(long)]
    pub(super) reason: String,
    /// Name of the rollback, itself a backfill; else <ID>.rollback-<n>
    #[arg(long, value_name = "ID")]
    pub(super) rollback_id: Option<String>,
    /// Approves the plan at once
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Clone, Debug, Args)]
pub(super) struct LedgerArgs {
    /// The rows of a backfill over all its generations, rollbacks included
    #[arg(long, value_name = "ID", conflicts_with_all = ["run", "table"])]
    pub(super) backfill: Option<String>,
    /// The rows of a run
    #[arg(long, value_name = "RUN", conflicts_with = "table")]
    pub(super) run: Option<String>,
    /// What is current in a table
    #[arg(long, value_name = "TABLE")]
    pub(super) table: Option<String>,
    /// With --table: every row about this partition, newest first
    #[arg(long, value_name = "KEY", requires = "table")]
    pub(super) partition: Option<String>,
    /// How many rows at the most, where the question has no end
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(super) limit: u32,
}
