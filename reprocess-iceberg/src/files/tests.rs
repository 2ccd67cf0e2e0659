use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use reprocess_core::ErrorKind;
use tempfile::TempDir;

use super::*;

fn in_folder(folder: &TempDir) -> Files {
    let root = format!("file://{}/100% flights/", folder.path().display());
    Files::new(Arc::new(Stores::default()), &root).unwrap()
}

async fn write(files: &Files, name: &str, content: &'static str) -> String {
    let location = format!("{}/{name}", files.root());
    files.io().new_output(&location).unwrap().write(content.into()).await.unwrap();
    location
}

async fn read(files: &Files, location: &str) -> String {
    String::from_utf8(files.io().new_input(location).unwrap().read().await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn the_folder_of_a_table_that_is_not_there_is_made_with_its_first_document() {
    let folder = TempDir::new().unwrap();
    let files = in_folder(&folder);
    assert!(files.root().ends_with("/100% flights"), "{}", files.root());
    assert!(!std::fs::exists(folder.path().join("100% flights")).unwrap());
    let path = reprocess_lake::place(["staged", "a b"]);
    assert_eq!(files.folder().read::<String>(&path).await.unwrap(), None);
    assert_eq!(files.folder().list(&reprocess_lake::place([])).await.unwrap(), []);

    files.folder().write(&path, &"rows").await.unwrap();
    assert_eq!(files.folder().read::<String>(&path).await.unwrap().unwrap(), "rows");
    assert_eq!(files.folder().list(&reprocess_lake::place([])).await.unwrap(), [path]);
    let there = folder.path().join("100% flights/_reprocess/staged/a b");
    assert_eq!(std::fs::read_to_string(there).unwrap(), "\"rows\"");
}

#[tokio::test]
async fn a_claim_has_one_winner() {
    let folder = TempDir::new().unwrap();
    let files = in_folder(&folder);
    let path = reprocess_lake::place(["claims", "1"]);
    assert_eq!(files.folder().claim(&path, "commit").await.unwrap(), "commit");
    assert_eq!(files.folder().claim(&path, "discard").await.unwrap(), "commit");
}

#[tokio::test]
async fn a_copy_is_made_once_and_stays() {
    let folder = TempDir::new().unwrap();
    let files = in_folder(&folder);
    let from = write(&files, "data/a.parquet", "rows").await;
    let to = format!("{}/data/b.parquet", files.root());
    files.copy(&from, &to).await.unwrap();
    files.copy(&from, &to).await.unwrap();
    files.remove(vec![from.clone()]).await.unwrap();
    assert_eq!(read(&files, &to).await, "rows");

    let error = files.copy(&from, &to).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("a.parquet"), "{error}");
}

#[tokio::test]
async fn a_copy_between_stores_goes_through_here() {
    let folder = TempDir::new().unwrap();
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let stores = Arc::new(Stores::default().with_store("s3://tables", Arc::clone(&memory)));
    let files = Files::new(stores, "s3://tables/flights").unwrap();
    let here = format!("{}/a b", folder.path().display());
    std::fs::write(&here, "rows").unwrap();
    let there = format!("{}/data/a b", files.root());
    files.copy(&here, &there).await.unwrap();
    assert_eq!(read(&files, &there).await, "rows");
    assert_eq!(memory.head(&Path::parse("flights/data/a b").unwrap()).await.unwrap().size, 4);
    // Inside the store.
    let twice = format!("{}/data/c", files.root());
    files.copy(&there, &twice).await.unwrap();
    files.remove(vec![there, here.clone()]).await.unwrap();
    assert_eq!(read(&files, &twice).await, "rows");
    assert!(!std::fs::exists(here).unwrap());
}

#[tokio::test]
async fn what_is_missing_is_named_in_order() {
    let folder = TempDir::new().unwrap();
    let files = in_folder(&folder);
    let mut asked = Vec::new();
    for number in 0..40 {
        asked.push((write(&files, &format!("{number}"), "rows").await, 4));
    }
    let gone = format!("{}/gone", files.root());
    asked.insert(3, (gone.clone(), 4));
    asked[20].1 = 5;
    let shorter = asked[20].0.clone();
    assert_eq!(files.missing(asked).await.unwrap(), [gone, shorter]);
}

#[tokio::test]
async fn what_is_removed_may_be_gone_already() {
    let folder = TempDir::new().unwrap();
    let files = in_folder(&folder);
    let there = write(&files, "a", "rows").await;
    files.remove(vec![format!("{}/gone", files.root()), there.clone()]).await.unwrap();
    assert_eq!(files.size(&there).await.unwrap(), None);
    files.remove(Vec::new()).await.unwrap();
}

#[test]
fn secrets_are_not_shown() {
    let settings = [("s3.secret-access-key".to_owned(), "hunter2".to_owned())].into();
    let files = Files::new(Arc::new(Stores::new(&settings)), "/flights").unwrap();
    let shown = format!("{files:?}");
    assert!(shown.contains("/flights") && !shown.contains("hunter2"), "{shown}");
}
