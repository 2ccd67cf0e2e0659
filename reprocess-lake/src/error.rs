//! The one place where errors of DataFusion and object stores become errors of reprocess.

use datafusion::arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use object_store::Error as StoreError;
use reprocess_core::{Error, ErrorKind, Result};

/// Says what was being done when a library failed.
pub(crate) trait Doing<T> {
    /// Maps the error; `what` reads as in "could not {what}".
    fn doing(self, what: &str) -> Result<T>;
}

impl<T> Doing<T> for Result<T, DataFusionError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| of_query(e, what))
    }
}

impl<T> Doing<T> for Result<T, StoreError> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| of_store(e, what))
    }
}

/// An error of a query; what a stream of ours said beneath it is said again.
pub fn of_query(error: DataFusionError, what: &str) -> Error {
    match error {
        // A stream of ours failed beneath a plan: what it said is said again.
        DataFusionError::External(error) => match error.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(error) => Error::internal(format!("could not {what}")).with_source(error),
        },
        DataFusionError::Context(_, inner) => of_query(*inner, what),
        DataFusionError::ArrowError(error, _) => match *error {
            ArrowError::ExternalError(inner) => of_query(DataFusionError::External(inner), what),
            error => Error::invalid(format!("could not {what}")).with_source(error),
        },
        DataFusionError::ObjectStore(error) => of_store(*error, what),
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

/// An error of an object store.
pub fn of_store(error: StoreError, what: &str) -> Error {
    mapped(kind_of_store(&error), what).with_source(error)
}

/// What an error of an object store means, and what to do.
pub fn kind_of_store(error: &StoreError) -> (ErrorKind, &'static str) {
    match error {
        StoreError::NotFound { .. } => (ErrorKind::NotFound, ""),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            (ErrorKind::Storage, "check the credentials of the table's store")
        }
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => (ErrorKind::Unsupported, ""),
        _ => (ErrorKind::Unavailable, "try again"),
    }
}

/// An error of a kind with its advice, where there is one.
pub fn mapped((kind, advice): (ErrorKind, &'static str), what: &str) -> Error {
    let error = Error::new(kind, format!("could not {what}"));
    if advice.is_empty() { error } else { error.with_advice(advice) }
}

/// What cannot be there, said as such.
pub fn broken_promise(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::internal(what).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_ours_beneath_a_plan_is_said_again() {
        let ours = || DataFusionError::External(Box::new(Error::new(ErrorKind::PinBroken, "gone")));
        for error in [
            ours(),
            DataFusionError::Context("reading".to_owned(), Box::new(ours())),
            DataFusionError::from(ArrowError::ExternalError(Box::new(Error::new(
                ErrorKind::PinBroken,
                "gone",
            )))),
        ] {
            assert_eq!(of_query(error, "read").kind(), ErrorKind::PinBroken);
        }
    }

    #[test]
    fn kinds_tell_what_can_be_done() {
        let store = |error| of_query(DataFusionError::ObjectStore(Box::new(error)), "read").kind();
        let source = || "x".into();
        let path = "a".to_owned();
        assert_eq!(store(StoreError::NotFound { path: path.clone(), source: source() }), ErrorKind::NotFound);
        assert_eq!(store(StoreError::PermissionDenied { path, source: source() }), ErrorKind::Storage);
        assert_eq!(store(StoreError::Generic { store: "S3", source: source() }), ErrorKind::Unavailable);
        let full = of_query(DataFusionError::ResourcesExhausted("memory".to_owned()), "merge rows");
        assert_eq!(full.kind(), ErrorKind::Storage);
        assert_eq!(of_query(DataFusionError::Plan("x".to_owned()), "read").kind(), ErrorKind::Invalid);
        assert_eq!(of_query(DataFusionError::Internal("x".to_owned()), "read").kind(), ErrorKind::Internal);
    }
}
