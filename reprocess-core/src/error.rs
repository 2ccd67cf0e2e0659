//! The error of this crate and of every adapter: what happened, where, whether a retry helps, what to do.

use std::error::Error as StdError;
use std::fmt;

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong; tells the caller what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request, the catalog or the rows are wrong; nothing was changed. Mend the input.
    Invalid,
    /// A named job, backfill, run, table or staged set is not known.
    NotFound,
    /// The state in the ledger does not allow it (for example publishing what was aborted).
    State,
    /// What a pin names has changed or is gone; plan again with current inputs.
    PinBroken,
    /// The backend does not offer this; its [`Capabilities`](crate::ports::writer::Capabilities) say so.
    Unsupported,
    /// Storage could not be reached or was busy; a retry may help.
    Unavailable,
    /// Storage is full or refuses to write; an operator has to act.
    Storage,
    /// The host's transform failed or panicked.
    Transform,
    /// What was read back cannot have been written by this library, or was written by a newer one.
    Corrupt,
    /// A defect of this library or of an adapter.
    Internal,
}

impl ErrorKind {
    /// The kind as one lower-case word, for logs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::State => "state",
            Self::PinBroken => "pin_broken",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Storage => "storage",
            Self::Transform => "transform",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }
}

/// An error with its place and advice.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    retryable: bool,
    message: String,
    context: Vec<(&'static str, String)>,
    advice: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of a kind. Only [`ErrorKind::Unavailable`] starts as retryable.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            retryable: kind == ErrorKind::Unavailable,
            message: message.into(),
            context: Vec::new(),
            advice: None,
            source: None,
        }))
    }

    /// Shorthand for [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Shorthand for [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// Shorthand for [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Says where: a job, a partition, a run, a table.
    #[must_use]
    pub fn with_context(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((name, value.to_string()));
        self
    }

    /// Says what the user can do.
    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Says whether the same call can succeed later without a change by a person.
    #[must_use]
    pub fn with_retry(mut self, retryable: bool) -> Self {
        self.0.retryable = retryable;
        self
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call can succeed later without a change by a person.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// The message alone, without place, advice and cause.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What the user can do, where there is something to say.
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }

    /// The places, innermost first.
    pub fn context(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.context.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if !self.0.context.is_empty() {
            f.write_str(" (")?;
            for (i, (name, value)) in self.context().enumerate() {
                write!(f, "{}{name} {value}", if i == 0 { "" } else { ", " })?;
            }
            f.write_str(")")?;
        }
        let mut source = self.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        if let Some(advice) = self.advice() {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|s| s as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_where_why_and_what_to_do() {
        let error = Error::new(ErrorKind::Unavailable, "the table is locked")
            .with_context("job", "daily_departures")
            .with_context("partition", "day=2013-03-04")
            .with_source("database is busy")
            .with_advice("try again");
        assert_eq!(
            error.to_string(),
            "the table is locked (job daily_departures, partition day=2013-03-04): database is busy; try again"
        );
        assert!(error.is_retryable());
        assert!(!Error::invalid("no").is_retryable());
    }
}
