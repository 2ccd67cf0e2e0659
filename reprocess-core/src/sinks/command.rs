//! Deliveries as runs of a program.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::process::{Output, Stdio};

use async_trait::async_trait;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::document;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::delivery::{Answer, Delivery, DeliverySink, Known};

/// What a program exits with that may take the delivery later: `EX_TEMPFAIL` of `sysexits.h`.
const LATER: i32 = 75;
/// How much of what a program says is kept.
const NOTE: usize = 500;

/// Runs a program for each delivery, without a shell.
///
/// The program gets the delivery as one JSON document on its input (`key`, `channel`, `payload`), and the key as the variable
/// `REPROCESS_KEY`. In its arguments `{/a/b}` stands for what the payload has at that
/// [pointer](https://datatracker.ietf.org/doc/html/rfc6901); a delivery that has nothing there is refused.
///
/// Exit code 0 confirms it, 75 asks to be tried again later, and every other one refuses it; what a program said last, on
/// its output or else on its errors, is noted. One that is killed leaves open whether it did its work.
///
/// ```
/// use reprocess_core::ports::notify::EVENTS;
/// use reprocess_core::sinks::CommandSink;
///
/// // Builds the dbt models downstream of each published partition, over its data interval. dbt takes times without a zone,
/// // as UTC: the shell takes off their last letter.
/// let build = r#"exec dbt build --select daily_revenue+ --event-time-start "${1%Z}" --event-time-end "${2%Z}""#;
/// let sink = CommandSink::new(EVENTS, "sh")
///     .with_args(["-c", build, "dbt"])
///     .with_args(["{/data_interval_start}", "{/data_interval_end}"]);
/// ```
#[derive(Clone)]
pub struct CommandSink {
    channel: String,
    program: OsString,
    args: Vec<String>,
    ask: Option<(OsString, Vec<String>)>,
}

impl fmt::Debug for CommandSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments may hold secrets.
        f.debug_struct("CommandSink")
            .field("channel", &self.channel)
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

impl CommandSink {
    /// A sink of a channel that runs a program.
    pub fn new(channel: impl Into<String>, program: impl Into<OsString>) -> Self {
        Self { channel: channel.into(), program: program.into(), args: Vec::new(), ask: None }
    }

    /// Adds arguments.
    #[must_use]
    pub fn with_args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets the program that says whether a delivery was received which may have been sent: it exits with 0 where it was, with
    /// 1 where it was not, and with another code where it cannot tell.
    #[must_use]
    pub fn with_ask(
        mut self,
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.ask = Some((program.into(), args.into_iter().map(Into::into).collect()));
        self
    }
}

/// How a program could not be run.
enum Unrun {
    /// Nothing was started.
    NotStarted(String),
    /// The payload has not what an argument needs.
    Lacks(String),
    /// Nobody knows how far it came.
    Unknown(Error),
}

async fn run(program: &OsString, args: &[String], delivery: &Delivery) -> Result<Output, Unrun> {
    let args = args.iter().map(|arg| filled(arg, &delivery.payload)).collect::<Result<Vec<_>, _>>();
    let document = document(delivery).map_err(Unrun::Unknown)?;
    let mut command = Command::new(program);
    command.args(args.map_err(Unrun::Lacks)?).env("REPROCESS_KEY", &delivery.key).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = program.to_string_lossy();
    let mut child = command.spawn().map_err(|e| Unrun::NotStarted(format!("{name} was not started: {e}")))?;
    let input = child.stdin.take();
    let write = async {
        match input {
            // A program need not read its input.
            Some(mut input) => match input.write_all(&document).await {
                Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e),
                _ => Ok(()),
            },
            None => Ok(()),
        }
    };
    let (written, output) = futures::join!(write, child.wait_with_output());
    let failed = |e| {
        let message = format!("{name} could not be waited for");
        Unrun::Unknown(Error::new(ErrorKind::Unavailable, message).with_source(e))
    };
    written.map_err(failed)?;
    output.map_err(failed)
}

/// The argument with what the payload has in place of each `{/…}`.
fn filled(arg: &str, payload: &Value) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = arg;
    while let Some((before, after)) = rest.split_once("{/") {
        let Some((pointer, tail)) = after.split_once('}') else { break };
        let value = payload.pointer(&format!("/{pointer}"));
        let value = value.filter(|value| !value.is_null());
        let value = value.ok_or_else(|| format!("the payload has nothing at /{pointer}"))?;
        filled.push_str(before);
        match value {
            Value::String(text) => filled.push_str(text),
            other => filled.push_str(&other.to_string()),
        }
        rest = tail;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// What a program said last.
fn said(output: &Output) -> Option<String> {
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(line.chars().take(NOTE).collect::<String>())
    };
    last(&output.stdout).or_else(|| last(&output.stderr))
}

#[async_trait]
impl DeliverySink for CommandSink {
    fn channel(&self) -> &str {
        &self.channel
    }

    async fn send(&self, delivery: &Delivery) -> Result<Answer> {
        let output = match run(&self.program, &self.args, delivery).await {
            Ok(output) => output,
            Err(Unrun::NotStarted(why)) => return Ok(Answer::Busy { why }),
            Err(Unrun::Lacks(why)) => return Ok(Answer::Refused { why }),
            Err(Unrun::Unknown(error)) => return Err(error),
        };
        let note = said(&output);
        let why = |code: i32| {
            let said = note.clone().map_or_else(String::new, |said| format!(": {said}"));
            format!("{} exited with {code}{said}", self.program.to_string_lossy())
        };
        match output.status.code() {
            Some(0) => Ok(Answer::Accepted { note }),
            Some(LATER) => Ok(Answer::Busy { why: why(LATER) }),
            Some(code) => Ok(Answer::Refused { why: why(code) }),
            None => {
                let message = format!("{} was killed", self.program.to_string_lossy());
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    async fn ask(&self, delivery: &Delivery) -> Result<Known> {
        let Some((program, args)) = &self.ask else { return Ok(Known::CannotTell) };
        match run(program, args, delivery).await {
            Ok(output) => Ok(match output.status.code() {
                Some(0) => Known::Received,
                Some(1) => Known::NotReceived,
                _ => Known::CannotTell,
            }),
            Err(Unrun::Unknown(error)) => Err(error),
            Err(Unrun::NotStarted(why) | Unrun::Lacks(why)) => Err(Error::new(ErrorKind::Unavailable, why)),
        }
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
