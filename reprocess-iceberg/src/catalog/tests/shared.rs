//! Catalogs that other programs made, and use at the same time.

use std::process::Command;

use reprocess_sqlite::{SqliteConfig, SqliteDatabase};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

use super::*;

/// As Java's `JdbcCatalog` makes it unless it is asked for views.
const OLD: &str = "
    CREATE TABLE iceberg_tables(catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
        table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
        PRIMARY KEY (catalog_name, table_namespace, table_name));
    CREATE TABLE iceberg_namespace_properties(catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
        property_key VARCHAR(255), property_value VARCHAR(1000),
        PRIMARY KEY (catalog_name, namespace, property_key));";

impl Place {
    /// Runs statements as another program.
    pub(super) async fn execute(&self, sql: &str) {
        match &self.database {
            Some(database) => database.execute(sql).await,
            None => {
                let mut raw = self.raw().await;
                raw.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
                raw.close().await.unwrap();
            }
        }
    }

    async fn raw(&self) -> SqliteConnection {
        raw(&self.folder.path().join("catalog.db")).await
    }

    /// One cell of the row of the table.
    async fn cell(&self, column: &str) -> Option<String> {
        let sql = format!("SELECT {column} FROM iceberg_tables WHERE table_name = 'orders'");
        match &self.database {
            Some(database) => {
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut database.raw().await).await.unwrap()
            }
            None => sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.raw().await).await.unwrap(),
        }
    }
}

async fn raw(file: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(file).create_if_missing(true).connect().await.unwrap()
}

async fn all() -> Vec<Place> {
    #[allow(unused_mut, reason = "there may be no other")]
    let mut all = vec![Place::in_sqlite().await];
    #[cfg(feature = "postgres")]
    all.extend(Place::in_postgres().await);
    all
}

#[tokio::test]
async fn rows_are_those_that_other_programs_expect() {
    for place in all().await {
        let base = place.create(&orders(), &[]).await.unwrap();
        assert_eq!(place.cell("iceberg_type").await.as_deref(), Some("TABLE"));
        assert_eq!(place.cell("previous_metadata_location").await, None);
        assert_eq!(place.cell("catalog_name || '/' || table_namespace").await.as_deref(), Some("test/shop"));
        let noted = "(SELECT namespace || property_key || property_value FROM iceberg_namespace_properties)";
        assert_eq!(place.cell(noted).await.as_deref(), Some("shopexiststrue"));
        let now = done(place.change(&orders(), append(&base, 1)).await);
        assert_eq!(place.cell("previous_metadata_location").await, base.location);
        assert_eq!(place.cell("metadata_location").await, now.location);
    }
}

#[tokio::test]
async fn a_catalog_that_does_not_know_views_is_used_as_it_is() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("catalog.db");
    raw(&file).await.execute(OLD).await.unwrap();
    let database = SqliteConfig::new().with_journal_mode_kept().open(&file).await.unwrap();
    let catalog = IcebergCatalog::sqlite(&database, "test", &warehouse(&folder)).await.unwrap();
    used(Place::new(folder, catalog)).await;
    #[cfg(feature = "postgres")]
    if let Some(database) = TestDatabase::fresh().await {
        let folder = TempDir::new().unwrap();
        database.execute(OLD).await;
        let catalog =
            IcebergCatalog::postgres(&database.connect().await, "test", &warehouse(&folder)).await.unwrap();
        used(Place { database: Some(database), ..Place::new(folder, catalog) }).await;
    }
}

async fn used(place: Place) {
    let base = place.create(&orders(), &[]).await.unwrap();
    done(place.change(&orders(), append(&base, 1)).await);
    assert!(place.create(&orders(), &[]).await.is_none());
    assert_eq!(history(&place.load(&orders()).await.unwrap().metadata), [1]);
    // A program that knows them adds the column; rows from before have no word in it.
    place.execute("ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)").await;
    place.append(&orders(), 2).await;
    assert_eq!(place.cell("iceberg_type").await, None);
}

#[tokio::test]
async fn a_view_is_no_table_and_keeps_its_name() {
    for place in all().await {
        place.create(&orders(), &[]).await.unwrap();
        place.execute("UPDATE iceberg_tables SET iceberg_type = 'VIEW'").await;
        assert!(place.load(&orders()).await.is_none());
        let error = place.catalog.inner().create(&orders(), creation(&[]), &place.stores).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::State, "{error}");
    }
}

#[tokio::test]
async fn catalogs_of_other_names_in_the_same_rows_are_left_alone() {
    for place in all().await {
        place.create(&orders(), &[]).await.unwrap();
        place.execute("UPDATE iceberg_tables SET catalog_name = 'other'").await;
        assert!(place.load(&orders()).await.is_none());
        // The folder is the same, the files are not.
        place.create(&orders(), &[]).await.unwrap();
        place.append(&orders(), 1).await;
        assert_eq!(history(&place.load(&orders()).await.unwrap().metadata), [1]);
    }
}

#[tokio::test]
async fn a_file_that_others_have_open_keeps_its_journal_mode() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("catalog.db");
    let mut other = raw(&file).await;
    other.execute(OLD).await.unwrap();
    // It reads, as a program does that shows a list.
    other.execute("BEGIN; SELECT * FROM iceberg_tables").await.unwrap();
    let mode = async || -> String {
        sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut raw(&file).await).await.unwrap()
    };
    assert_eq!(mode().await, "delete");
    let config = SqliteConfig::new().with_journal_mode_kept();
    let opening = tokio::spawn(config.open(file.clone()));
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    other.execute("COMMIT").await.unwrap();
    let database = opening.await.unwrap().unwrap();
    IcebergCatalog::sqlite(&database, "test", "/warehouse").await.unwrap();
    assert_eq!(mode().await, "delete");
    database.close().await;
    other.close().await.unwrap();
    SqliteDatabase::open(&file).await.unwrap();
    assert_eq!(mode().await, "wal");
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn the_search_path_says_where_the_catalog_is() {
    let Some(database) = TestDatabase::fresh().await else { return };
    database.execute("CREATE SCHEMA lake").await;
    let joint = if database.address().contains('?') { '&' } else { '?' };
    let address = format!("{}{joint}options=-c%20search_path%3Dlake", database.address());
    let there = reprocess_postgres::PostgresDatabase::connect(&address).await.unwrap();
    IcebergCatalog::postgres(&there, "test", "/warehouse").await.unwrap();
    let found: Vec<String> = sqlx::query_scalar(
        "SELECT nspname || '.' || relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
         WHERE relname LIKE 'iceberg%' AND relkind = 'r' ORDER BY 1",
    )
    .fetch_all(&mut database.raw().await)
    .await
    .unwrap();
    assert_eq!(found, ["lake.iceberg_namespace_properties", "lake.iceberg_tables"]);
    let fails =
        reprocess_postgres::PostgresDatabase::connect(&address.replace("lake", "nowhere")).await.unwrap();
    IcebergCatalog::postgres(&fails, "test", "/warehouse").await.unwrap_err();
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_may_make_the_catalog_at_once() {
    let Some(database) = TestDatabase::fresh().await else { return };
    let database = Arc::new(database);
    let opening = (0..8).map(|_| {
        let database = Arc::clone(&database);
        tokio::spawn(async move {
            IcebergCatalog::postgres(&database.connect().await, "test", "/warehouse").await.unwrap()
        })
    });
    for opened in opening.collect::<Vec<_>>() {
        opened.await.unwrap();
    }
}

/// PyIceberg in the same file: it reads what is made here, we read what it makes, and both change one table.
#[tokio::test]
async fn pyiceberg_shares_the_catalog() {
    let python = std::env::var("REPROCESS_TEST_PYTHON").ok();
    assert!(
        python.is_some() || std::env::var("CI").is_err(),
        "set REPROCESS_TEST_PYTHON, or run scripts/test"
    );
    let Some(python) = python else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/catalogs.py");
    for made_here in [true, false] {
        let place = Place::in_sqlite().await;
        let run = |command: &'static str| {
            let (python, folder) = (python.clone(), place.folder.path().to_owned());
            tokio::task::spawn_blocking(move || {
                let file = folder.join("catalog.db");
                let output = Command::new(python)
                    .arg(script)
                    .args([file, folder.join("warehouse")])
                    .arg(command)
                    .output();
                let output = output.unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                String::from_utf8(output.stdout).unwrap().trim().to_owned()
            })
        };
        if made_here {
            let made = place.create(&orders(), &[]).await.unwrap();
            let expected = format!("{} id,day 0", made.location.unwrap());
            assert_eq!(run("show").await.unwrap(), expected);
        } else {
            run("create").await.unwrap();
        }
        run("append").await.unwrap();
        let base = place.load(&orders()).await.unwrap();
        assert_eq!(history(&base.metadata).len(), 1);
        let tag = TableUpdate::SetSnapshotRef {
            ref_name: "kept".to_owned(),
            reference: SnapshotReference::new(
                history(&base.metadata)[0],
                SnapshotRetention::Tag { max_ref_age_ms: None },
            ),
        };
        let proposal = Proposal { base: &base, requirements: vec![], updates: vec![tag], told: None };
        let tagged = done(place.change(&orders(), proposal).await);
        assert_eq!(run("show").await.unwrap(), format!("{} id,day 1 kept", tagged.location.unwrap()));
        run("append").await.unwrap();
        assert_eq!(history(&place.load(&orders()).await.unwrap().metadata).len(), 2);
        assert_eq!(run("list").await.unwrap(), "shop shop.orders");
    }
}
