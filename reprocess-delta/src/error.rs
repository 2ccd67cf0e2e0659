//! The one place where errors of Delta, DataFusion and object stores become errors of reprocess.

use deltalake::datafusion::error::DataFusionError;
use deltalake::kernel::transaction::TransactionError;
use deltalake::{DeltaTableError, ObjectStoreError};
use reprocess_core::{Error, ErrorKind, Result};
pub(crate) use reprocess_lake::error::broken_promise;
use reprocess_lake::error::{kind_of_store, mapped, of_query, of_store};

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
        self.map_err(|e| of_store(e, what))
    }
}

fn of_delta(error: DeltaTableError, what: &str) -> Error {
    let kind = match &error {
        DeltaTableError::ObjectStore { source } => kind_of_store(source),
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
