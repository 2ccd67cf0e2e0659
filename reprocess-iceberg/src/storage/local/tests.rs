use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use tempfile::TempDir;

use super::*;

fn at(folder: &TempDir, name: &str) -> Path {
    Path::parse(format!("{}/{name}", folder.path().display())).unwrap()
}

fn names(folder: &TempDir) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn read(path: &Path) -> Vec<u8> {
    LocalFiles::new().get(path).await.unwrap().bytes().await.unwrap().to_vec()
}

#[tokio::test]
async fn a_file_is_put_in_folders_that_are_made_and_nothing_else_is_left() {
    let folder = TempDir::new().unwrap();
    let store = LocalFiles::new();
    store.put(&at(&folder, "a/b/c"), "one".into()).await.unwrap();
    store.put(&at(&folder, "a/b/c"), "two".into()).await.unwrap();
    assert_eq!(read(&at(&folder, "a/b/c")).await, b"two");
    assert_eq!(fs::read_dir(folder.path().join("a/b")).unwrap().count(), 1);
}

#[tokio::test]
async fn what_is_created_was_not_there_before() {
    let folder = TempDir::new().unwrap();
    let store = LocalFiles::new();
    let path = at(&folder, "claim");
    let create = |word: &'static str| store.put_opts(&path, word.into(), PutMode::Create.into());
    create("mine").await.unwrap();
    assert!(matches!(create("theirs").await, Err(Error::AlreadyExists { .. })));
    assert_eq!(read(&path).await, b"mine");
    assert_eq!(names(&folder), ["claim"]);
}

#[tokio::test]
async fn of_many_that_create_a_file_at_once_one_does() {
    let folder = TempDir::new().unwrap();
    let path = at(&folder, "claims/one");
    let all = (0..16).map(|number| {
        let path = path.clone();
        tokio::spawn(async move {
            LocalFiles::new().put_opts(&path, number.to_string().into(), PutMode::Create.into()).await.is_ok()
        })
    });
    let created = futures::future::try_join_all(all).await.unwrap();
    assert_eq!(created.iter().filter(|created| **created).count(), 1);
    let winner = created.iter().position(|created| *created).unwrap();
    assert_eq!(read(&path).await, winner.to_string().into_bytes());
    assert_eq!(fs::read_dir(folder.path().join("claims")).unwrap().count(), 1);
}

#[tokio::test]
async fn parts_stand_in_the_order_of_their_making() {
    let folder = TempDir::new().unwrap();
    let path = at(&folder, "parts");
    let mut upload = LocalFiles::new().put_multipart(&path).await.unwrap();
    let first = upload.put_part("first ".into());
    let second = upload.put_part("second".into());
    second.await.unwrap();
    assert_eq!(names(&folder), ["parts#1"]);
    first.await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(read(&path).await, b"first second");
    assert_eq!(names(&folder), ["parts"]);
}

#[tokio::test]
async fn what_is_given_up_or_dropped_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let mut upload = LocalFiles::new().put_multipart(&at(&folder, "a")).await.unwrap();
    upload.put_part("half".into()).await.unwrap();
    upload.abort().await.unwrap();
    assert!(upload.complete().await.is_err());
    let mut upload = LocalFiles::new().put_multipart(&at(&folder, "b")).await.unwrap();
    upload.put_part("half".into()).await.unwrap();
    drop(upload);
    assert_eq!(names(&folder), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_crash_left_is_in_nobodys_way_and_not_listed() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("file#1"), "half").unwrap();
    let store = LocalFiles::new();
    store.put(&at(&folder, "file"), "whole".into()).await.unwrap();
    let found = store.list(Some(&at(&folder, ""))).map_ok(|file| file.location);
    assert_eq!(found.try_collect::<Vec<_>>().await.unwrap(), [at(&folder, "file")]);
}

#[tokio::test]
async fn a_copy_stays_when_the_first_goes() {
    let folder = TempDir::new().unwrap();
    let store = LocalFiles::new();
    let (a, b, c) = (at(&folder, "a"), at(&folder, "deep/er/b"), at(&folder, "c"));
    store.put(&a, "rows".into()).await.unwrap();
    store.put(&c, "others".into()).await.unwrap();
    store.copy(&a, &b).await.unwrap();
    // In place of another file, and of itself.
    store.copy(&a, &c).await.unwrap();
    store.copy(&a, &b).await.unwrap();
    store.delete(&a).await.unwrap();
    assert_eq!((read(&b).await, read(&c).await), (b"rows".to_vec(), b"rows".to_vec()));
    assert!(matches!(store.copy_if_not_exists(&b, &c).await, Err(Error::AlreadyExists { .. })));
    assert!(matches!(store.copy(&a, &b).await, Err(Error::NotFound { .. })));
    assert_eq!(names(&folder), ["c", "deep"]);
    assert_eq!(store.delete_stream(futures::stream::iter([Ok(b), Ok(c)]).boxed()).count().await, 2);
}

#[cfg(unix)]
#[tokio::test]
async fn a_folder_that_may_not_be_written_is_an_error_of_the_disk() {
    use std::os::unix::fs::PermissionsExt;

    use reprocess_core::ErrorKind;

    use crate::error::Doing;

    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let put = LocalFiles::new().put(&at(&folder, "a"), "rows".into()).await;
    // Root may write everywhere.
    if let Err(e) = put {
        assert_eq!(Err::<(), _>(e).doing("write").unwrap_err().kind(), ErrorKind::Storage);
    }
}
