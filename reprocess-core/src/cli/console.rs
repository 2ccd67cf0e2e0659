//! Where a command writes, and whom it can ask.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::exit::Exit;
use crate::domain::ids::{Actor, WorkerId};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};

/// A person who can be asked a question and says yes or no.
pub type Ask<'a> = &'a mut (dyn FnMut(&str) -> bool + Send);

/// Where a command writes, and whom it can ask.
pub struct Console<'a> {
    out: &'a mut (dyn Write + Send),
    err: &'a mut (dyn Write + Send),
    ask: Option<Ask<'a>>,
    progress: bool,
    signals: bool,
}

impl<'a> Console<'a> {
    /// Writes results to `out` and everything else to `err`; asks nobody.
    pub fn new(out: &'a mut (dyn Write + Send), err: &'a mut (dyn Write + Send)) -> Self {
        Self { out, err, ask: None, progress: false, signals: false }
    }

    /// Asks for approvals.
    #[must_use]
    pub fn with_ask(mut self, ask: Ask<'a>) -> Self {
        self.ask = Some(ask);
        self
    }

    /// Draws a progress bar on the terminal's stderr while tasks run.
    #[must_use]
    pub fn with_progress(mut self, progress: bool) -> Self {
        self.progress = progress;
        self
    }

    /// Takes SIGINT and SIGTERM while tasks run, so that they are finished or left to others: for commands that are a process
    /// of their own.
    #[must_use]
    pub fn with_signals(mut self) -> Self {
        self.signals = true;
        self
    }

    /// Writes text as it is.
    pub(super) fn print(&mut self, text: &str) -> Result<()> {
        write(self.out, text)
    }

    /// Writes text beside the results.
    pub(super) fn print_aside(&mut self, text: &str) -> Result<()> {
        write(self.err, text)
    }
}

impl fmt::Debug for Console<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("progress", &self.progress).finish_non_exhaustive()
    }
}

fn write(to: &mut (dyn Write + Send), text: &str) -> Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        // Whoever reads has seen enough, which is no reason to leave work undone.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(Error::new(ErrorKind::Storage, "the output cannot be written").with_source(e)),
        Ok(()) => Ok(()),
    }
}

/// Asks at the terminal; everything that is not a yes is a no.
pub(super) fn ask_at_terminal(question: &str) -> bool {
    let mut answer = String::new();
    let asked = write!(io::stderr(), "{question} [y/N] ").and_then(|()| io::stderr().flush());
    let answered = asked.and_then(|()| io::stdin().read_line(&mut answer));
    answered.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// Whether there is a person to ask.
pub(super) fn at_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// One command at work.
pub(super) struct Invocation<'a> {
    pub(super) engine: &'a Engine,
    pub(super) by: Actor,
    pub(super) worker: WorkerId,
    pub(super) lines: usize,
    pub(super) json: bool,
    pub(super) console: Console<'a>,
}

impl Invocation<'_> {
    /// The result: the document, or its text for a person.
    pub(super) fn show(
        &mut self,
        document: &impl Serialize,
        text: impl FnOnce(usize) -> String,
    ) -> Result<()> {
        let text = match self.json {
            true => json(document)?,
            false => text(self.lines),
        };
        self.console.print(&text)
    }

    /// Something on the way to the result, for a person only.
    pub(super) fn say(&mut self, text: impl FnOnce(usize) -> String) -> Result<()> {
        match self.json {
            true => Ok(()),
            false => self.console.print(&text(self.lines)),
        }
    }

    /// What can be done next, for a person only.
    pub(super) fn hint(&mut self, text: &str) -> Result<()> {
        match self.json {
            true => Ok(()),
            false => self.console.print_aside(&format!("{text}\n")),
        }
    }

    /// Whether the person at the terminal says yes; `None` where there is nobody to ask.
    pub(super) fn ask(&mut self, question: &str) -> Option<bool> {
        let ask = self.console.ask.as_mut().filter(|_| !self.json)?;
        Some(ask(question))
    }

    /// Whether signals are taken while tasks run.
    pub(super) fn takes_signals(&self) -> bool {
        self.console.signals
    }

    /// Whether a progress bar is drawn.
    pub(super) fn draws_progress(&self) -> bool {
        self.console.progress && !self.json
    }
}

pub(super) fn json(document: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(document)
        .map_err(|e| Error::internal("the result has no JSON form").with_source(e))?;
    Ok(text + "\n")
}

/// An error for a program.
#[derive(Serialize)]
struct ErrorDocument<'a> {
    kind: &'a str,
    message: &'a str,
    retryable: bool,
    advice: Option<&'a str>,
    context: Vec<(&'a str, &'a str)>,
    causes: Vec<String>,
    exit_code: u8,
}

/// Writes the error beside the results, and answers how the command ends.
pub(super) fn report(console: &mut Console<'_>, as_json: bool, error: &Error) -> Exit {
    let exit = Exit::from(error);
    let mut causes = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    let document = ErrorDocument {
        kind: error.kind().name(),
        message: error.message(),
        retryable: error.is_retryable(),
        advice: error.advice(),
        context: error.context().collect(),
        causes,
        exit_code: exit.code(),
    };
    let text = match as_json {
        true => json(&document).unwrap_or_default(),
        false => format!("error: {error}\n"),
    };
    // There is no place left to say that this place cannot be written to.
    let _ = console.print_aside(&text);
    exit
}
