use super::*;

fn full() -> Error {
    Error::new(ErrorKind::Storage, "the disk is full")
        .with_context("path", "/data/a")
        .with_source("no space left on device")
        .with_advice("free space")
}

#[test]
fn an_error_of_ours_comes_out_of_a_library_as_it_went_in() {
    let said = full().to_string();
    let check = |error: Error| {
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Storage, said.clone()));
    };
    check(Err::<(), _>(carried(full())).doing("write").unwrap_err());
    let deeper = ParquetError::External(Box::new(carried(full())));
    check(Err::<(), _>(deeper).doing("write").unwrap_err());
    let deepest = iceberg::Error::new(iceberg::ErrorKind::Unexpected, "failed to write").with_source(
        ParquetError::External(Box::new(arrow_schema_58::ArrowError::ExternalError(Box::new(carried(
            full(),
        ))))),
    );
    check(Err::<(), _>(deepest).doing("write").unwrap_err());
}

#[test]
fn an_error_of_ours_can_be_read_inside_another() {
    let error = carried(full());
    assert!(
        error.to_string().contains("the disk is full (path /data/a): no space left on device; free space")
    );
    let busy = carried(Error::new(ErrorKind::Unavailable, "busy"));
    assert!(busy.retryable() && !error.retryable());
}

#[test]
fn what_is_beneath_decides_before_what_is_said() {
    let check = |kind: ErrorKind, source: Box<dyn StdError + Send + Sync>| {
        let error = ParquetError::External(source);
        let error = iceberg::Error::new(iceberg::ErrorKind::DataInvalid, "bad file").with_source(error);
        let error = Err::<(), _>(error).doing("read a manifest").unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with("could not read a manifest: "), "{error}");
    };
    check(ErrorKind::NotFound, Box::new(io::Error::from(io::ErrorKind::NotFound)));
    check(ErrorKind::Storage, Box::new(io::Error::from(io::ErrorKind::StorageFull)));
    check(ErrorKind::Unavailable, Box::new(io::Error::from(io::ErrorKind::TimedOut)));
    check(ErrorKind::Corrupt, Box::new(io::Error::other("not from a disk")));
    check(ErrorKind::Corrupt, Box::new(ParquetError::EOF("too short".into())));
    check(ErrorKind::State, Box::new(Error::new(ErrorKind::State, "aborted")));

    let store = |source: io::Error| object_store::Error::Generic { store: "S3", source: Box::new(source) };
    check(ErrorKind::Unavailable, Box::new(store(io::Error::other("reset"))));
    check(ErrorKind::Storage, Box::new(store(io::ErrorKind::PermissionDenied.into())));
}

#[test]
fn kinds_of_iceberg_are_kinds_of_ours() {
    let check = |kind: ErrorKind, theirs: iceberg::ErrorKind| {
        let error = Err::<(), _>(iceberg::Error::new(theirs, "said")).doing("load the table").unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    };
    check(ErrorKind::Corrupt, iceberg::ErrorKind::DataInvalid);
    check(ErrorKind::Unsupported, iceberg::ErrorKind::FeatureUnsupported);
    check(ErrorKind::NotFound, iceberg::ErrorKind::TableNotFound);
    check(ErrorKind::State, iceberg::ErrorKind::PreconditionFailed);
    check(ErrorKind::Unavailable, iceberg::ErrorKind::CatalogCommitConflicts);
    check(ErrorKind::Internal, iceberg::ErrorKind::Unexpected);
    let again = iceberg::Error::new(iceberg::ErrorKind::Unexpected, "said").with_retryable(true);
    assert!(Err::<(), _>(again).doing("load the table").unwrap_err().is_retryable());
}
