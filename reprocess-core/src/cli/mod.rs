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
//! `corrections`, `reconcile`, `readiness`, `drift`, `lineage`, `check`, `doctor` and `deliveries`;
//! `--help` tells of each. Results go to stdout, everything else to stderr; with `--json` there is exactly one document on stdout where the command has a
//! result, and an error is one document on stderr; what the documents hold is described in `cli/json.md`. How a command ended is an [`Exit`].

mod answer;
mod args;
mod choices;
mod console;
mod decide;
mod deliveries;
mod exit;
mod inspect;
#[cfg(feature = "prometheus")]
mod metrics;
mod progress;
mod request;
mod schedule;
mod signals;
mod work;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use futures::future::LocalBoxFuture;

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

/// The work of a command, in a box of its own: all of them together would take more stack than a thread has.
fn dispatch<'a>(s: &'a mut Invocation<'_>, command: Command) -> LocalBoxFuture<'a, Result<Exit>> {
    let id = BackfillId::new;
    match command {
        Command::Plan(args) => Box::pin(async move { work::plan(s, &args).await }),
        Command::Submit(args) => Box::pin(async move { work::submit(s, &args).await }),
        Command::Estimate(args) => Box::pin(async move { inspect::estimate(s, &args).await }),
        Command::Backfill(args) => Box::pin(async move { work::backfill(s, &args).await }),
        Command::Run(args) => Box::pin(schedule::run(s, args)),
        Command::CatchUp(args) => Box::pin(schedule::catch_up(s, args)),
        Command::Work(args) => Box::pin(async move { worker::work(s, &args).await }),
        Command::Pause { id: of } => Box::pin(async move { worker::pause(s, &id(of)).await }),
        Command::Resume { id: of } => Box::pin(async move { worker::resume(s, &id(of)).await }),
        Command::Concurrency { id: of, tasks } => {
            Box::pin(async move { worker::concurrency(s, &id(of), tasks).await })
        }
        Command::Rollback(args) => Box::pin(async move { work::rollback(s, &args).await }),
        Command::Approve { id: of, digest, comment } => {
            Box::pin(async move { decide::approve(s, &id(of), &digest, &comment).await })
        }
        Command::Abort(args) => Box::pin(async move { decide::abort(s, &id(args.id), &args.why).await }),
        Command::Cancel(args) => Box::pin(async move { decide::cancel(s, &id(args.id), &args.why).await }),
        Command::Discard { id: of, tasks, why } => {
            Box::pin(async move { decide::discard(s, &id(of), &tasks, &why).await })
        }
        Command::Publish { id: of } => Box::pin(async move { decide::publish(s, &id(of)).await }),
        Command::Close { id: of, forget } => Box::pin(async move { decide::close(s, &id(of), forget).await }),
        other => inquire(s, other),
    }
}

/// Commands that only ask.
fn inquire<'a>(s: &'a mut Invocation<'_>, command: Command) -> LocalBoxFuture<'a, Result<Exit>> {
    let id = BackfillId::new;
    match command {
        Command::Status { id: Some(of), watch: true } => {
            Box::pin(async move { answer::watch(s, &id(of)).await })
        }
        Command::Status { id: of, .. } => {
            Box::pin(async move { answer::status(s, of.map(id).as_ref()).await })
        }
        Command::Review { id: of, tasks, samples } => {
            Box::pin(async move { answer::review(s, &id(of), tasks, samples).await })
        }
        Command::Diff { id: of, task, samples } => {
            Box::pin(async move { answer::diff(s, &id(of), task, samples).await })
        }
        Command::Explain { table, key } => Box::pin(async move { answer::explain(s, &table, &key).await }),
        Command::Ledger(args) => Box::pin(async move { answer::ledger(s, &args).await }),
        Command::Outdated => Box::pin(answer::outdated(s)),
        Command::Stale => Box::pin(answer::stale(s)),
        Command::Corrections { jobs } => Box::pin(inspect::corrections(s, jobs)),
        Command::Reconcile { jobs } => Box::pin(inspect::reconcile(s, jobs)),
        Command::Readiness { since } => {
            Box::pin(async move { inspect::readiness(s, since.as_deref()).await })
        }
        Command::Drift { tables } => Box::pin(inspect::drift(s, tables)),
        Command::Lineage { job } => Box::pin(async move { inspect::lineage(s, job.as_deref()) }),
        Command::Check(args) => Box::pin(async move { inspect::check(s, &args).await }),
        Command::Doctor => Box::pin(inspect::doctor(s)),
        Command::Deliveries(command) => Box::pin(deliveries::run(s, command)),
        other => Box::pin(async move { Err(Error::internal(format!("{other:?} is no question"))) }),
    }
}

#[cfg(test)]
mod tests;
