use iceberg::io::{Storage, StorageFactory};
use reprocess_core::ErrorKind;
use tempfile::TempDir;

use super::*;
use crate::error::Doing;

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn io() -> FileIO {
    Arc::new(Stores::default()).io()
}

/// Names as other engines write them, and as partition values may be.
const NAMES: [&str; 8] = [
    "plain",
    "with space",
    "100%",
    "a%20b%2Fc",
    "day=2013-03-04",
    "Ünïcödé/日本",
    "a?b#c&d+e;f",
    "'\"<>|\\{}^`~[]*",
];

#[tokio::test]
async fn every_name_stands_for_itself_whichever_way_it_is_written() {
    let folder = TempDir::new().unwrap();
    for name in NAMES {
        let path = format!("{}/{name}", folder.path().display());
        let forms = [path.clone(), format!("file:{path}"), format!("file://{path}")];
        for written in &forms {
            io().new_output(written).unwrap().write(name.as_bytes().into()).await.unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), name);
            for read in &forms {
                assert!(io().exists(read).await.unwrap(), "{read}");
                assert_eq!(io().new_input(read).unwrap().read().await.unwrap(), name);
            }
            io().delete(written).await.unwrap();
            assert!(!std::fs::exists(&path).unwrap());
        }
    }
}

#[tokio::test]
async fn a_file_is_read_by_ranges() {
    let folder = TempDir::new().unwrap();
    let path = format!("{}/file", folder.path().display());
    let mut writer = io().new_output(&path).unwrap().writer().await.unwrap();
    writer.write("0123456789".into()).await.unwrap();
    writer.close().await.unwrap();
    assert!(writer.close().await.is_err());

    let input = io().new_input(&path).unwrap();
    assert_eq!(input.metadata().await.unwrap().size, 10);
    let reader = input.reader().await.unwrap();
    assert_eq!(reader.read(3..6).await.unwrap(), "345");
    assert_eq!(reader.read(0..10).await.unwrap(), "0123456789");
    assert_eq!(reader.read(4..4).await.unwrap(), "");
    for beyond in [8..12, 12..14] {
        let error = reader.read(beyond).await.doing("read").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[tokio::test]
async fn what_is_not_there_says_so() {
    let folder = TempDir::new().unwrap();
    let path = format!("{}/gone", folder.path().display());
    let check = |error: reprocess_core::Error| {
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("gone"), "{error}");
    };
    let input = io().new_input(&path).unwrap();
    assert!(!input.exists().await.unwrap());
    check(input.read().await.doing("read").unwrap_err());
    check(input.metadata().await.map(drop).doing("look").unwrap_err());
    let reader = input.reader().await.unwrap();
    check(reader.read(0..1).await.doing("read").unwrap_err());
    // Folders are not files.
    assert!(!io().exists(folder.path().display().to_string()).await.unwrap());
}

#[tokio::test]
async fn files_are_removed_one_many_or_a_folder_of_them() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| format!("{}/{name}", folder.path().display());
    for name in ["a", "b", "c", "ab/d", "ab/e/f"] {
        io().new_output(path(name)).unwrap().write(name.as_bytes().into()).await.unwrap();
    }
    io().delete(path("a")).await.unwrap();
    io().delete(path("a")).await.unwrap();
    io().delete_stream(futures::stream::iter([path("a"), path("b")])).await.unwrap();
    io().delete_prefix(path("ab")).await.unwrap();
    io().delete_prefix(path("c")).await.unwrap();
    io().delete_prefix(path("nowhere")).await.unwrap();
    for (name, there) in [("a", false), ("b", false), ("ab/d", false), ("ab/e/f", false), ("c", true)] {
        assert_eq!(io().exists(path(name)).await.unwrap(), there, "{name}");
    }
}

#[tokio::test]
async fn an_error_of_ours_comes_through_the_library() {
    let error = io().exists("flights").await.doing("load the table").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.advice().unwrap().contains("absolute path"), "{error}");
}

#[test]
fn settings_of_a_catalog_make_stores_of_their_own_once() {
    let own = Arc::new(Stores::new(&settings(&[("s3.region", "eu-north-1")])));
    for nothing in [settings(&[]), settings(&[("s3.region", "eu-north-1")]), settings(&[("token", "x")])] {
        assert!(Arc::ptr_eq(&own, &own.with(&nothing)));
    }
    let vended = settings(&[("s3.session-token", "one"), ("expires", "soon")]);
    let with = own.with(&vended);
    assert!(!Arc::ptr_eq(&own, &with) && Arc::ptr_eq(&with, &own.with(&vended)));
    assert!(!Arc::ptr_eq(&with, &own.with(&settings(&[("s3.session-token", "two")]))));
}

#[test]
fn a_store_is_opened_once() {
    let stores = Stores::default();
    let (one, other) = (stores.place("/a/b").unwrap(), stores.place("file:///c").unwrap());
    assert!(Arc::ptr_eq(&one.store, &other.store));
}

#[test]
fn secrets_are_not_shown() {
    let stores = Arc::new(Stores::new(&settings(&[("s3.secret-access-key", "hunter2")])));
    let shown = format!("{stores:?} {:?} {:?}", stores.io(), stores.place("/a").unwrap());
    assert!(shown.contains("s3.secret-access-key") && !shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn a_storage_that_is_sent_elsewhere_reaches_the_same_files() {
    let folder = TempDir::new().unwrap();
    let path = format!("{}/file", folder.path().display());
    let factory: Arc<dyn StorageFactory> =
        Arc::new(Objects::new(Arc::new(Stores::new(&settings(&[("s3.region", "eu-north-1")])))));
    let storage = factory.build(&iceberg::io::StorageConfig::new()).unwrap();
    storage.write(&path, "rows".into()).await.unwrap();

    let sent = serde_json::to_string(&storage).unwrap();
    let there: Box<dyn Storage> = serde_json::from_str(&sent).unwrap();
    assert_eq!(there.read(&path).await.unwrap(), "rows");
    assert!(format!("{there:?}").contains("s3.region"), "{there:?}");
    let factory = serde_json::to_string(&factory).unwrap();
    let there: Box<dyn StorageFactory> = serde_json::from_str(&factory).unwrap();
    assert!(format!("{there:?}").contains("s3.region"), "{there:?}");
}

#[cfg(not(feature = "s3"))]
#[test]
fn a_store_that_was_left_out_names_its_feature() {
    let error = Stores::default().place("s3://tables/flights").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.advice().unwrap().contains("`s3`"), "{error}");
}
