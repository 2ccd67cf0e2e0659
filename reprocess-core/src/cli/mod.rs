//! The command line that a host application gets for its own jobs.
//!
//! ```no_run
//! # async fn host(engine: reprocess_core::engine::Engine) -> std::process::ExitCode {
//! reprocess_core::cli::run(&engine, std::env::args_os()).await
//! # }
//! ```
//!
//! `plan`, `submit`, `estimate`, `backfill`, `run`, `catch-up`, `work`, `pause`, `resume`, `concurrency`, `status`, `review`, `diff`, `approve`,
//! `discard`, `abort`, `cancel`, `publish`, `rollback`, `close`, `explain`, `ledger`, `outdated`, `stale`,
//! `drift`, `lineage`, `check`, `doctor` and `deliveries`;
//! `--help` tells of each. Results go to stdout, everything else to stderr; with `--json` there is exactly one document on stdout where the command has a
//! result, and an error is one document on stderr. How a command ended is an [`Exit`].

mod answer;
mod args;
mod choices;
mod console;
mod decide;
mod deliveries;
mod exit;
mod inspect;
mod progress;
mod request;
mod schedule;
mod signals;
mod work;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

pub use args::Cli;
pub use console::{Ask, Console};
pub use exit::Exit;

use crate::domain::ids::{Actor, BackfillId, WorkerId};
use crate::engine::Engine;
use crate::error::{Error, Result};
use args::Command;
use console::Invocation;

/// Runs the command that the arguments name; the first argument is the name of the program.
///
/// In the ledger this process is the worker `cli-<process id>`. Where several machines share a ledger, say which one
/// this is: [`run_on`].
pub async fn run(engine: &Engine, args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    run_on(engine, "cli", args).await
}

/// As [`run`], on a machine with a name: in the ledger this process is the worker `<machine>-<process id>`.
pub async fn run_on(
    engine: &Engine,
    machine: &str,
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let mut ask = console::ask_at_terminal;
    let progress = std::io::IsTerminal::is_terminal(&err);
    let mut console = Console::new(&mut out, &mut err).with_progress(progress).with_signals();
    if console::at_terminal() {
        console = console.with_ask(&mut ask);
    }
    run_with(engine, machine, args, console).await.into()
}

/// As [`run_on`], writing to what the caller gives: for tests, and for hosts that are no process of their own.
pub async fn run_with<'a>(
    engine: &'a Engine,
    machine: &str,
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    mut console: Console<'a>,
) -> Exit {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return usage(&mut console, &args, &error),
    };
    let by = cli.by.or_else(|| std::env::var("USER").ok()).filter(|by| !by.trim().is_empty());
    let worker = cli.worker.unwrap_or_else(|| format!("{machine}-{}", std::process::id()));
    let mut invocation = Invocation {
        engine,
        by: Actor::new(by.unwrap_or_else(|| "unknown".to_owned())),
        worker: WorkerId::new(worker),
        lines: cli.lines,
        json: cli.json,
        console,
    };
    match dispatch(&mut invocation, cli.command).await {
        Ok(exit) => exit,
        Err(error) => console::report(&mut invocation.console, cli.json, &error),
    }
}

/// Says what is wrong with the arguments, or gives the help that they ask for.
fn usage(console: &mut Console<'_>, args: &[OsString], error: &clap::Error) -> Exit {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return match console.print(&text) {
            Ok(()) => Exit::Done,
            Err(error) => console::report(console, false, &error),
        };
    }
    if args.iter().any(|arg| arg == "--json") {
        let text = text.trim_end().trim_start_matches("error: ");
        return console::report(console, true, &Error::invalid(text));
    }
    let _ = console.print_aside(&text);
    Exit::Usage
}

async fn dispatch(s: &mut Invocation<'_>, command: Command) -> Result<Exit> {
    match command {
        Command::Plan(args) => work::plan(s, &args).await,
        Command::Submit(args) => work::submit(s, &args).await,
        Command::Estimate(args) => inspect::estimate(s, &args).await,
        Command::Backfill(args) => work::backfill(s, &args).await,
        Command::Run(args) => schedule::run(s, args).await,
        Command::CatchUp(args) => schedule::catch_up(s, args).await,
        Command::Work(args) => worker::work(s, &args).await,
        Command::Pause { id } => worker::pause(s, &BackfillId::new(id)).await,
        Command::Resume { id } => worker::resume(s, &BackfillId::new(id)).await,
        Command::Concurrency { id, tasks } => worker::concurrency(s, &BackfillId::new(id), tasks).await,
        Command::Rollback(args) => work::rollback(s, &args).await,
        Command::Approve { id, digest, comment } => {
            decide::approve(s, &BackfillId::new(id), &digest, &comment).await
        }
        Command::Abort(args) => decide::abort(s, &BackfillId::new(args.id), &args.why).await,
        Command::Cancel(args) => decide::cancel(s, &BackfillId::new(args.id), &args.why).await,
        Command::Discard { id, tasks, why } => decide::discard(s, &BackfillId::new(id), &tasks, &why).await,
        Command::Publish { id } => decide::publish(s, &BackfillId::new(id)).await,
        Command::Close { id, forget } => decide::close(s, &BackfillId::new(id), forget).await,
        Command::Status { id: Some(id), watch: true } => answer::watch(s, &BackfillId::new(id)).await,
        Command::Status { id, .. } => answer::status(s, id.map(BackfillId::new).as_ref()).await,
        Command::Review { id } => answer::review(s, &BackfillId::new(id)).await,
        Command::Diff { id, task, samples } => answer::diff(s, &BackfillId::new(id), task, samples).await,
        Command::Explain { table, key } => answer::explain(s, &table, &key).await,
        Command::Ledger(args) => answer::ledger(s, &args).await,
        Command::Outdated => answer::outdated(s).await,
        Command::Stale => answer::stale(s).await,
        Command::Drift { tables } => inspect::drift(s, tables).await,
        Command::Lineage { job } => inspect::lineage(s, job.as_deref()),
        Command::Check(args) => inspect::check(s, &args).await,
        Command::Doctor => inspect::doctor(s).await,
        Command::Deliveries(command) => deliveries::run(s, command).await,
    }
}

#[cfg(test)]
mod tests;
