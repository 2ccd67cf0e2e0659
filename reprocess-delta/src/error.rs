//! The one place where errors of Delta, DataFusion and object stores become errors of reprocess.

use deltalake::datafusion::error::DataFusionError;
use deltalake::kernel::transaction::TransactionError;
use deltalake::logstore::object_store::Error as StoreError;
use deltalake::{DeltaTableError, ObjectStoreError};
use reprocess_core::{Error, ErrorKind, Result};

/// Says what was being done when a library failed.
pub(crate) trait Doing<T> {
    /// Maps the error; `what` reads as in "could not {what}".
    fn doing(self, what: &str) -> Result<T>;
}

impl<T> Doing<T> for Result<T, DeltaTableError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| of_delta(e, what))
    }
}

impl<T> Doing<T> for Result<T, DataFusionError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| of_query(e, what))
    }
}

impl<T> Doing<T> for Result<T, ObjectStoreError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| mapped(of_store(&e), what).with_source(e))
    }
}

fn mapped((kind, advice): (ErrorKind, &'static str), what: &str) -> Error {
    let error = Error::new(kind, format!("could not {what}"));
    if advice.is_empty() { error } else { error.with_advice(advice) }
}

fn of_delta(error: DeltaTableError, what: &str) -> Error {
    let kind = match &error {
        DeltaTableError::ObjectStore { source } => of_store(source),
        DeltaTableError::NotATable(_) => (ErrorKind::NotFound, ""),
        DeltaTableError::InvalidTableLocation(_) => (ErrorKind::Invalid, "check the location of the table"),
        DeltaTableError::SchemaMismatch { .. } | DeltaTableError::InvalidData { .. } => {
            (ErrorKind::Invalid, "")
        }
        DeltaTableError::Transaction {
            source: TransactionError::UnsupportedTableFeatures(_) | TransactionError::DeltaTableAppendOnly,
        } => (ErrorKind::Unsupported, ""),
        DeltaTableError::Transaction { source: TransactionError::LogStoreError { .. } } => {
            (ErrorKind::Unavailable, "try again")
        }
        DeltaTableError::InvalidJsonLog { .. } => (ErrorKind::Corrupt, "the log of the table is damaged"),
        DeltaTableError::Io { .. } => (ErrorKind::Storage, "look at the disk or the store of the table"),
        _ => (ErrorKind::Internal, ""),
    };
    mapped(kind, what).with_source(error)
}

fn of_query(error: DataFusionError, what: &str) -> Error {
    match error {
        // A stream of ours failed beneath a plan: what it said is said again.
        DataFusionError::External(error) => match error.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(error) => Error::internal(format!("could not {what}")).with_source(error),
        },
        DataFusionError::Context(_, inner) => of_query(*inner, what),
        DataFusionError::ArrowError(error, _) => match *error {
            deltalake::arrow::error::ArrowError::ExternalError(inner) => {
                of_query(DataFusionError::External(inner), what)
            }
            error => Error::invalid(format!("could not {what}")).with_source(error),
        },
        DataFusionError::ObjectStore(error) => mapped(of_store(&error), what).with_source(error),
        error @ DataFusionError::ResourcesExhausted(_) => {
            mapped((ErrorKind::Storage, "raise `memory_bytes`, or give temporary files more room"), what)
                .with_source(error)
        }
        error => {
            let kind = match error.find_root() {
                DataFusionError::SQL(..)
                | DataFusionError::Plan(_)
                | DataFusionError::SchemaError(..)
                | DataFusionError::Execution(_)
                | DataFusionError::NotImplemented(_) => ErrorKind::Invalid,
                _ => ErrorKind::Internal,
            };
            Error::new(kind, format!("could not {what}")).with_source(error)
        }
    }
}

fn of_store(error: &StoreError) -> (ErrorKind, &'static str) {
    match error {
        StoreError::NotFound { .. } => (ErrorKind::NotFound, ""),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            (ErrorKind::Storage, "check the credentials of the table's store")
        }
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => (ErrorKind::Unsupported, ""),
        _ => (ErrorKind::Unavailable, "try again"),
    }
}

/// What cannot be there, said as such.
pub(crate) fn broken_promise(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::internal(what).with_source(error)
}
