//! What SQL catalogs do with files, and with transactions whose end is not known.

use std::io::Write;
use std::sync::Mutex;

use async_trait::async_trait;
use flate2::Compression;
use flate2::write::GzEncoder;
use iceberg::TableUpdate;
use reprocess_core::Error;
use reprocess_core::ports::ledger::RunLedger;

use super::super::sql::{Ended, Pointer, Pointers, Row, SqlCatalog};
use super::super::sqlite::InSqlite;
use super::super::{Catalog, Told};
use super::*;

async fn all() -> Vec<Place> {
    #[allow(unused_mut, reason = "there may be no other")]
    let mut all = vec![Place::in_sqlite().await];
    #[cfg(feature = "postgres")]
    all.extend(Place::in_postgres().await);
    all
}

fn metadata_folder(place: &Place) -> std::path::PathBuf {
    place.folder.path().join("warehouse/shop/orders/metadata")
}

#[tokio::test]
async fn each_change_writes_a_file_with_the_next_number_and_losers_leave_none() {
    for place in all().await {
        let base = place.create(&orders(), &[]).await.unwrap();
        for id in 1..=3 {
            place.append(&orders(), id).await;
        }
        assert!(matches!(place.change(&orders(), append(&base, 4)).await, Ok(Answer::CameFirst)));
        let mut error = append(&base, 5);
        error.updates.push(TableUpdate::SetCurrentSchema { schema_id: 77 });
        place.change(&orders(), error).await.unwrap_err();
        let names = documents(&metadata_folder(&place));
        let numbers: Vec<_> = names.iter().map(|name| &name[..6]).collect();
        assert_eq!(numbers, ["00000-", "00001-", "00002-", "00003-"]);
        let now = place.load(&orders()).await.unwrap();
        assert!(now.location.unwrap().ends_with(&names[3]));
        let log: Vec<_> =
            now.metadata.metadata_log().iter().map(|entry| entry.metadata_file.clone()).collect();
        assert!(
            log.iter().zip(&names).all(|(entry, name)| entry.ends_with(name)) && log.len() == 3,
            "{log:?}"
        );
    }
}

#[tokio::test]
async fn metadata_is_compressed_and_put_where_the_table_wants_it() {
    for place in all().await {
        let elsewhere = place.folder.path().join("elsewhere/");
        let elsewhere = elsewhere.to_str().unwrap();
        let properties = [("write.metadata.compression-codec", "gzip"), ("write.metadata.path", elsewhere)];
        let made = place.create(&orders(), &properties).await.unwrap();
        let changed = done(place.change(&orders(), append(&made, 1)).await);
        let names = documents(Path::new(elsewhere));
        assert!(
            names.iter().all(|name| name.ends_with(".gz.metadata.json")) && names.len() == 2,
            "{names:?}"
        );
        assert_eq!(changed.location.unwrap(), format!("{elsewhere}{}", names[1]));
        let bytes = std::fs::read(Path::new(elsewhere).join(&names[1])).unwrap();
        assert_eq!(bytes[..2], [0x1f, 0x8b]);
        // As another process has it, which has read nothing yet.
        let again = document(&place, &format!("{elsewhere}{}", names[1])).await;
        assert_eq!(again, *changed.metadata);
    }
}

async fn document(place: &Place, location: &str) -> TableMetadata {
    super::super::document::read(&place.stores.io(), location).await.unwrap()
}

#[tokio::test]
async fn metadata_of_a_newer_format_are_refused_by_name() {
    let place = Place::in_sqlite().await;
    let made = place.create(&orders(), &[]).await.unwrap();
    let mut json = serde_json::to_value(&*made.metadata).unwrap();
    for (version, kind, word) in [
        (4.into(), ErrorKind::Unsupported, "format version 4"),
        ("".into(), ErrorKind::Corrupt, "not understood"),
    ] {
        json["format-version"] = version;
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(json.to_string().as_bytes()).unwrap();
        for bytes in [json.to_string().into_bytes(), packed.finish().unwrap()] {
            let file = place.folder.path().join("of-others.json");
            std::fs::write(&file, bytes).unwrap();
            let io = place.stores.io();
            let error = super::super::document::read(&io, file.to_str().unwrap()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}

#[tokio::test]
async fn old_metadata_files_go_only_where_the_table_wants_it() {
    for (wanted, left) in [("false", 6), ("true", 3)] {
        for place in all().await {
            let properties = [
                ("write.metadata.delete-after-commit.enabled", wanted),
                ("write.metadata.previous-versions-max", "2"),
            ];
            place.create(&orders(), &properties).await.unwrap();
            for id in 1..=5 {
                place.append(&orders(), id).await;
            }
            let names = documents(&metadata_folder(&place));
            assert_eq!(names.len(), left, "{names:?}");
            assert!(names.last().unwrap().starts_with("00005-"), "{names:?}");
        }
    }
}

#[tokio::test]
async fn a_table_is_made_where_its_namespace_is() {
    for place in all().await {
        let statement =
            "INSERT INTO iceberg_namespace_properties VALUES ('test', 'shop', 'location', '{folder}')";
        let folder = place.folder.path().join("of the shop");
        let folder = folder.to_str().unwrap();
        place.execute(&statement.replace("{folder}", folder)).await;
        let made = place.create(&orders(), &[]).await.unwrap();
        assert_eq!(made.metadata.location(), format!("{folder}/orders"));
        let odd = TableIdent::from_strs(["..", "..", "orders"]);
        assert_eq!(
            place.catalog.inner().load(&odd.unwrap(), &place.stores).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }
}

#[tokio::test]
async fn a_warehouse_is_a_place_that_is_the_same_for_all() {
    let folder = TempDir::new().unwrap();
    let database = reprocess_sqlite::SqliteDatabase::open(folder.path().join("catalog.db")).await.unwrap();
    let error = IcebergCatalog::sqlite(&database, "test", "warehouse").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for good in ["/srv/warehouse/", "file:///srv/warehouse", "s3://bucket/folder"] {
        IcebergCatalog::sqlite(&database, "test", good).await.unwrap();
    }
}

/// Rows of a database whose connection breaks at COMMIT.
#[derive(Debug)]
struct Breaking {
    inner: InSqlite,
    how: Break,
    /// Who changes the table between the break and the question what became of it.
    meanwhile: Mutex<Vec<(String, String)>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Break {
    Before,
    After,
    /// And nobody can say more.
    ForGood,
}

#[async_trait]
impl Pointers for Breaking {
    async fn pointer(&self, row: &Row<'_>) -> reprocess_core::Result<Pointer> {
        self.inner.pointer(row).await
    }

    async fn settled(&self, row: &Row<'_>) -> reprocess_core::Result<Pointer> {
        if self.how == Break::ForGood {
            return Err(broken());
        }
        let meanwhile = std::mem::take(&mut *self.meanwhile.lock().unwrap());
        for (from, to) in meanwhile {
            assert!(matches!(self.inner.swap(row, &from, &to, None).await, Ok(Ended::Committed)));
        }
        self.inner.settled(row).await
    }

    async fn folder(&self, row: &Row<'_>) -> reprocess_core::Result<Option<String>> {
        self.inner.folder(row).await
    }

    async fn add(&self, row: &Row<'_>, to: &str) -> reprocess_core::Result<Ended> {
        if self.how != Break::Before {
            self.inner.add(row, to).await?;
        }
        Ok(Ended::Unknown(broken()))
    }

    async fn swap(
        &self,
        row: &Row<'_>,
        from: &str,
        to: &str,
        told: Option<Told<'_>>,
    ) -> reprocess_core::Result<Ended> {
        if self.how != Break::Before {
            self.inner.swap(row, from, to, told).await?;
        }
        Ok(Ended::Unknown(broken()))
    }

    fn holds(&self, ledger: &dyn RunLedger) -> bool {
        self.inner.holds(ledger)
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection broke")
}

/// The same catalog over a connection that breaks.
async fn breaking(place: &Place, how: Break, meanwhile: &[(&str, &str)]) -> SqlCatalog<Breaking> {
    let database =
        reprocess_sqlite::SqliteDatabase::open(place.folder.path().join("catalog.db")).await.unwrap();
    let meanwhile = meanwhile.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
    let inner = InSqlite::open(database).await.unwrap();
    let pointers = Breaking { inner, how, meanwhile: Mutex::new(meanwhile) };
    SqlCatalog::new("test", &warehouse(&place.folder), pointers).unwrap()
}

async fn changed(
    place: &Place,
    catalog: &impl Catalog,
    base: &Loaded,
    id: i64,
) -> reprocess_core::Result<Answer> {
    let files = Files::new(Arc::clone(&place.stores), base.metadata.location()).unwrap();
    catalog.change(&orders(), &files, append(base, id)).await
}

#[tokio::test]
async fn what_became_of_a_change_is_found_out_where_the_connection_broke() {
    let place = Place::in_sqlite().await;
    let base = place.create(&orders(), &[]).await.unwrap();
    let made = done(changed(&place, &breaking(&place, Break::After, &[]).await, &base, 1).await);
    assert_eq!(history(&place.load(&orders()).await.unwrap().metadata), [1]);
    let error = changed(&place, &breaking(&place, Break::Before, &[]).await, &made, 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(place.load(&orders()).await.unwrap().location, made.location);
    assert_eq!(documents(&metadata_folder(&place)).len(), 2, "what nothing points to has gone");
}

#[tokio::test]
async fn a_change_that_others_have_built_on_is_found_too() {
    let place = Place::in_sqlite().await;
    let base = place.create(&orders(), &[]).await.unwrap();
    let first = done(place.change(&orders(), append(&base, 1)).await);
    let second = done(place.change(&orders(), append(&first, 2)).await);
    // The table is at `base` again; the change below fails, and meanwhile the two others come.
    let (at, one, two) = (base.location.clone().unwrap(), first.location.unwrap(), second.location.unwrap());
    let reset = |to: String, from: String| {
        format!("UPDATE iceberg_tables SET metadata_location = '{to}' WHERE metadata_location = '{from}'")
    };
    place.execute(&reset(at.clone(), two.clone())).await;
    let moves = [(at.as_str(), one.as_str()), (one.as_str(), two.as_str())];
    let answer = changed(&place, &breaking(&place, Break::Before, &moves).await, &base, 3).await.unwrap();
    assert!(matches!(answer, Answer::CameFirst), "another followed the base: {answer:?}");
    // The change happens, and another comes on top of it.
    place.execute(&reset(at, two)).await;
    let catalog = breaking(&place, Break::After, &[]).await;
    let third = done(changed(&place, &catalog, &base, 3).await);
    let fourth = done(place.change(&orders(), append(&third, 4)).await);
    let files = documents(&metadata_folder(&place));
    let (third, fourth) = (third.location.unwrap(), fourth.location.unwrap());
    place.execute(&reset(third.clone(), fourth.clone())).await;
    place.execute(&reset(base.location.clone().unwrap(), third.clone())).await;
    let metadata = document(&place, &fourth).await;
    let follower = super::super::sql::follower(&metadata, base.location.as_deref().unwrap(), &fourth);
    assert_eq!(follower, Some(third.as_str()));
    assert_eq!(documents(&metadata_folder(&place)), files);
}

#[tokio::test]
async fn nothing_is_removed_where_nobody_knows_what_became_of_a_change() {
    let place = Place::in_sqlite().await;
    let base = place.create(&orders(), &[]).await.unwrap();
    let error = changed(&place, &breaking(&place, Break::ForGood, &[]).await, &base, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(history(&place.load(&orders()).await.unwrap().metadata), [1]);
}

#[tokio::test]
async fn a_table_that_was_made_as_the_connection_broke_is_ours() {
    let place = Place::in_sqlite().await;
    let catalog = breaking(&place, Break::Before, &[]).await;
    catalog.create(&orders(), creation(&[]), &place.stores).await.unwrap_err();
    assert!(place.load(&orders()).await.is_none());
    let catalog = breaking(&place, Break::After, &[]).await;
    let made = catalog.create(&orders(), creation(&[]), &place.stores).await.unwrap().unwrap();
    assert_eq!(place.load(&orders()).await.unwrap().location, made.location);
}
