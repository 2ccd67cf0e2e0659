//! The one place where errors of Iceberg, catalogs, DataFusion and object stores become errors of reprocess.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use parquet_58::errors::ParquetError;
use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::error::{kind_of_store, mapped, of_query};

mod http;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod sql;

/// Says what was being done when a library failed.
pub(crate) trait Doing<T> {
    /// Maps the error; `what` reads as in "could not {what}".
    fn doing(self, what: &str) -> Result<T>;
}

/// What cannot be there, said as such.
pub(crate) fn broken_promise(what: &str, error: impl StdError + Send + Sync + 'static) -> Error {
    Error::internal(what).with_source(error)
}

impl<T> Doing<T> for Result<T, iceberg::Error> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| of_library(e, what, of_iceberg))
    }
}

impl<T> Doing<T> for Result<T, ParquetError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| of_library(e, what, of_parquet))
    }
}

impl<T> Doing<T> for Result<T, arrow_schema_58::ArrowError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| {
            of_library(e, what, |e| match e {
                arrow_schema_58::ArrowError::NotYetImplemented(_) => (ErrorKind::Unsupported, ""),
                _ => (ErrorKind::Invalid, ""),
            })
        })
    }
}

impl<T> Doing<T> for Result<T, arrow_schema::ArrowError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| {
            of_library(e, what, |e| match e {
                arrow_schema::ArrowError::NotYetImplemented(_) => (ErrorKind::Unsupported, ""),
                _ => (ErrorKind::Invalid, ""),
            })
        })
    }
}

impl<T> Doing<T> for Result<T, datafusion::error::DataFusionError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| of_query(e, what))
    }
}

impl<T> Doing<T> for Result<T, object_store::Error> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| of_library(e, what, kind_of_store))
    }
}

/// An error of ours on its way through a library, as a source of that one's errors. It comes out as it went in.
pub(crate) struct Carried(Mutex<Option<Error>>);

impl Carried {
    fn new(error: Error) -> Self {
        Self(Mutex::new(Some(error)))
    }

    /// Once.
    fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => error.fmt(f),
            None => f.write_str("said elsewhere"),
        }
    }
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Carried {}

/// An error of ours for what `iceberg` calls; [`Doing`] gives it back unchanged.
pub(crate) fn carried(error: Error) -> iceberg::Error {
    let kind = match error.kind() {
        ErrorKind::Unsupported => iceberg::ErrorKind::FeatureUnsupported,
        ErrorKind::Invalid | ErrorKind::Corrupt => iceberg::ErrorKind::DataInvalid,
        _ => iceberg::ErrorKind::Unexpected,
    };
    iceberg::Error::new(kind, "").with_retryable(error.is_retryable()).with_source(Carried::new(error))
}

/// Kind and advice of an error by what is beneath it, else by what it says itself.
fn of_library<E>(error: E, what: &str, says: impl Fn(&E) -> (ErrorKind, &'static str)) -> Error
where
    E: StdError + Send + Sync + 'static,
{
    match beneath(&error) {
        Some(Beneath::Ours(ours)) => ours,
        Some(Beneath::Kind(kind)) => mapped(kind, what).with_source(error),
        None => mapped(says(&error), what).with_source(error),
    }
}

enum Beneath {
    Ours(Error),
    Kind((ErrorKind, &'static str)),
}

/// What the causes of an error come down to; the innermost that is known decides, and one of ours before all.
fn beneath(error: &(dyn StdError + 'static)) -> Option<Beneath> {
    let mut found = None;
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(ours) = error.downcast_ref::<Carried>().and_then(Carried::take) {
            return Some(Beneath::Ours(ours));
        }
        found = kind_of_cause(error).or(found);
        cause = error.source();
    }
    found.map(Beneath::Kind)
}

fn kind_of_cause(error: &(dyn StdError + 'static)) -> Option<(ErrorKind, &'static str)> {
    if let Some(ours) = error.downcast_ref::<Error>() {
        return Some((ours.kind(), ""));
    }
    if let Some(error) = error.downcast_ref::<object_store::Error>() {
        return Some(kind_of_store(error));
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return kind_of_io(error.kind());
    }
    error.downcast_ref::<ParquetError>().filter(|error| error.source().is_none()).map(of_parquet)
}

fn kind_of_io(kind: io::ErrorKind) -> Option<(ErrorKind, &'static str)> {
    Some(match kind {
        io::ErrorKind::NotFound => (ErrorKind::NotFound, ""),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::Storage, "check the permissions of the table's folder")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Storage, "free space on the disk")
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidFilename => {
            (ErrorKind::Invalid, "check the location of the table")
        }
        // Libraries wrap what is no failure of a disk in such errors, too.
        io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => return None,
        _ => (ErrorKind::Unavailable, "try again"),
    })
}

fn of_iceberg(error: &iceberg::Error) -> (ErrorKind, &'static str) {
    use iceberg::ErrorKind as Theirs;
    match error.kind() {
        Theirs::DataInvalid => {
            (ErrorKind::Corrupt, "a file of the table is damaged, or breaks the rules of Iceberg")
        }
        Theirs::FeatureUnsupported => (ErrorKind::Unsupported, ""),
        Theirs::TableNotFound | Theirs::NamespaceNotFound => (ErrorKind::NotFound, ""),
        Theirs::PreconditionFailed | Theirs::TableAlreadyExists | Theirs::NamespaceAlreadyExists => {
            (ErrorKind::State, "")
        }
        Theirs::CatalogCommitConflicts => (ErrorKind::Unavailable, "another change came first; try again"),
        _ if error.retryable() => (ErrorKind::Unavailable, "try again"),
        _ => (ErrorKind::Internal, ""),
    }
}

fn of_parquet(error: &ParquetError) -> (ErrorKind, &'static str) {
    match error {
        ParquetError::NYI(_) => (ErrorKind::Unsupported, ""),
        ParquetError::EOF(_) | ParquetError::General(_) | ParquetError::IndexOutOfBound(..) => {
            (ErrorKind::Corrupt, "a file of the table is damaged; restore it, or compute its partition again")
        }
        _ => (ErrorKind::Internal, ""),
    }
}

#[cfg(test)]
mod tests;
