//! Catalogs alone: tables whose snapshots name no file that is there.

#[path = "../../tests/it/postgres.rs"]
mod database;
mod rest;
#[path = "../../tests/rest_server/server.rs"]
mod rest_server;
#[cfg(feature = "sqlite")]
mod shared;
#[cfg(feature = "sqlite")]
mod sql;
#[cfg(all(feature = "sqlite", feature = "postgres"))]
mod told;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use iceberg::spec::{
    MAIN_BRANCH, NestedField, Operation, PrimitiveType, Schema, Snapshot, SnapshotReference,
    SnapshotRetention, Summary, TableMetadata, Transform, Type, UnboundPartitionSpec,
};
use iceberg::{TableIdent, TableRequirement, TableUpdate};
use reprocess_core::ErrorKind;
use tempfile::TempDir;

use super::{Answer, Creation, IcebergCatalog, Loaded, Proposal, RestConfig};
use crate::files::Files;
use crate::storage::Stores;
use database::TestDatabase;
use rest_server::RestServer;

/// A catalog, and what it needs while it is used.
struct Place {
    folder: TempDir,
    catalog: IcebergCatalog,
    stores: Arc<Stores>,
    server: Option<RestServer>,
    database: Option<TestDatabase>,
}

impl Place {
    #[cfg(feature = "sqlite")]
    async fn in_sqlite() -> Self {
        let folder = TempDir::new().unwrap();
        let database =
            reprocess_sqlite::SqliteDatabase::open(folder.path().join("catalog.db")).await.unwrap();
        let catalog = IcebergCatalog::sqlite(&database, "test", &warehouse(&folder)).await.unwrap();
        Self::new(folder, catalog)
    }

    #[cfg(feature = "postgres")]
    async fn in_postgres() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let database = TestDatabase::fresh().await?;
        let catalog =
            IcebergCatalog::postgres(&database.connect().await, "test", &warehouse(&folder)).await.unwrap();
        Some(Self { database: Some(database), ..Self::new(folder, catalog) })
    }

    async fn behind_rest() -> Self {
        Self::behind(rest_server::Rules::default(), |config| config).await
    }

    async fn behind(rules: rest_server::Rules, with: impl FnOnce(RestConfig) -> RestConfig) -> Self {
        let folder = TempDir::new().unwrap();
        let server = RestServer::start_with(&folder.path().join("warehouse"), rules).await;
        let catalog = IcebergCatalog::rest(with(RestConfig::new(server.uri()))).await.unwrap();
        Self { server: Some(server), ..Self::new(folder, catalog) }
    }

    fn new(folder: TempDir, catalog: IcebergCatalog) -> Self {
        Self {
            folder,
            catalog,
            stores: Arc::new(Stores::new(&BTreeMap::new())),
            server: None,
            database: None,
        }
    }

    /// One of every kind that can be had.
    async fn all() -> Vec<Self> {
        #[allow(unused_mut, reason = "there may be no other")]
        let mut all = vec![Self::behind_rest().await];
        #[cfg(feature = "sqlite")]
        all.push(Self::in_sqlite().await);
        #[cfg(feature = "postgres")]
        all.extend(Self::in_postgres().await);
        all
    }

    async fn load(&self, table: &TableIdent) -> Option<Loaded> {
        self.catalog.inner().load(table, &self.stores).await.unwrap()
    }

    async fn create(&self, table: &TableIdent, properties: &[(&str, &str)]) -> Option<Loaded> {
        self.catalog.inner().create(table, creation(properties), &self.stores).await.unwrap()
    }

    async fn change(&self, table: &TableIdent, proposal: Proposal<'_>) -> reprocess_core::Result<Answer> {
        let files = Files::new(Arc::clone(&self.stores), proposal.base.metadata.location()).unwrap();
        self.catalog.inner().change(table, &files, proposal).await
    }

    /// Appends until nobody comes first.
    async fn append(&self, table: &TableIdent, id: i64) -> Loaded {
        loop {
            let base = self.load(table).await.unwrap();
            match self.change(table, append(&base, id)).await.unwrap() {
                Answer::Done(loaded) => return loaded,
                Answer::CameFirst => {}
                Answer::Fenced => panic!("there is no fence"),
            }
        }
    }
}

fn warehouse(folder: &TempDir) -> String {
    folder.path().join("warehouse").to_str().unwrap().to_owned()
}

fn orders() -> TableIdent {
    TableIdent::from_strs(["shop", "orders"]).unwrap()
}

fn creation(properties: &[(&str, &str)]) -> Creation {
    let long = NestedField::required(1, "id", Type::Primitive(PrimitiveType::Long));
    let day = NestedField::optional(2, "day", Type::Primitive(PrimitiveType::Date));
    let spec = UnboundPartitionSpec::builder().add_partition_field(2, "day", Transform::Identity).unwrap();
    Creation {
        schema: Schema::builder().with_fields([long.into(), day.into()]).build().unwrap(),
        spec: spec.build(),
        properties: properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

/// A snapshot on top of a branch, which nobody may have moved.
fn on_branch<'a>(base: &'a Loaded, branch: &str, id: i64) -> Proposal<'a> {
    let metadata = &base.metadata;
    let head = metadata.snapshot_for_ref(branch).map(|snapshot| snapshot.snapshot_id());
    let parent = head.or_else(|| metadata.current_snapshot_id());
    let summary = Summary { operation: Operation::Append, additional_properties: [].into() };
    let snapshot = Snapshot::builder()
        .with_snapshot_id(id)
        .with_parent_snapshot_id(parent)
        .with_sequence_number(metadata.next_sequence_number())
        .with_timestamp_ms(metadata.last_updated_ms() + 1)
        .with_manifest_list(format!(
            "{}/metadata/snap-{id}-{}.avro",
            metadata.location(),
            parent.unwrap_or_default()
        ))
        .with_summary(summary)
        .with_schema_id(metadata.current_schema_id());
    let snapshot = match metadata.format_version() {
        iceberg::spec::FormatVersion::V3 => snapshot.with_row_range(metadata.next_row_id(), 0).build(),
        _ => snapshot.build(),
    };
    let retention = SnapshotRetention::branch(None, None, None);
    Proposal {
        base,
        requirements: vec![
            TableRequirement::UuidMatch { uuid: metadata.uuid() },
            TableRequirement::RefSnapshotIdMatch { r#ref: branch.to_owned(), snapshot_id: head },
        ],
        updates: vec![
            TableUpdate::AddSnapshot { snapshot },
            TableUpdate::SetSnapshotRef {
                ref_name: branch.to_owned(),
                reference: SnapshotReference::new(id, retention),
            },
        ],
        told: None,
    }
}

fn append(base: &Loaded, id: i64) -> Proposal<'_> {
    on_branch(base, MAIN_BRANCH, id)
}

fn done(answer: reprocess_core::Result<Answer>) -> Loaded {
    match answer {
        Ok(Answer::Done(loaded)) => loaded,
        other => panic!("not done: {other:?}"),
    }
}

/// Ids on main, the newest first.
fn history(metadata: &TableMetadata) -> Vec<i64> {
    let mut ids = Vec::new();
    let mut at = metadata.current_snapshot();
    while let Some(snapshot) = at {
        ids.push(snapshot.snapshot_id());
        at = snapshot.parent_snapshot_id().and_then(|parent| metadata.snapshot_by_id(parent));
    }
    ids
}

/// The metadata files in the folder of a table, in order.
fn documents(folder: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.ends_with(".metadata.json")).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_table_is_made_once_and_found_as_it_was_made() {
    for place in Place::all().await {
        assert!(place.load(&orders()).await.is_none());
        let made = place.create(&orders(), &[("owner", "shop")]).await.unwrap();
        assert_eq!(made.metadata.properties()["owner"], "shop");
        assert_eq!(made.metadata.default_partition_spec().fields()[0].name, "day");
        assert_eq!(made.metadata.format_version() as u8, 2);
        assert!(place.create(&orders(), &[]).await.is_none());
        let found = place.load(&orders()).await.unwrap();
        assert_eq!((&found.metadata, &found.location), (&made.metadata, &made.location));
    }
}

#[tokio::test]
async fn a_table_is_of_the_version_that_it_is_asked_to_be_of() {
    for place in Place::all().await {
        for version in ["1", "2", "3"] {
            let name = TableIdent::from_strs(["shop", version]).unwrap();
            let made = place.create(&name, &[("format-version", version)]).await.unwrap();
            assert_eq!((made.metadata.format_version() as u8).to_string(), version);
            let loaded = done(place.change(&name, append(&made, 7)).await);
            assert_eq!(history(&loaded.metadata), [7]);
        }
    }
}

#[tokio::test]
async fn names_and_levels_of_namespaces_are_kept_apart() {
    for place in Place::all().await {
        let names = [
            &["a", "b", "c", "orders"][..],
            &["a", "b", "orders"],
            &["a b", "orders"],
            &["a_b", "orders"],
            &["Ä/%", "../orders"],
            &["Ä/%", "orders?"],
        ];
        for (id, name) in (1..).zip(names) {
            let name = TableIdent::from_strs(name).unwrap();
            let made = place.create(&name, &[]).await.unwrap();
            done(place.change(&name, append(&made, id)).await);
        }
        for (id, name) in (1..).zip(names) {
            let name = TableIdent::from_strs(name).unwrap();
            assert_eq!(history(&place.load(&name).await.unwrap().metadata), [id], "{name}");
        }
    }
}

#[tokio::test]
async fn of_two_changes_on_one_version_the_second_did_not_happen() {
    for place in Place::all().await {
        let base = place.create(&orders(), &[]).await.unwrap();
        let first = done(place.change(&orders(), append(&base, 1)).await);
        assert_eq!(history(&first.metadata), [1]);
        let second = place.change(&orders(), append(&base, 2)).await.unwrap();
        assert!(matches!(second, Answer::CameFirst), "{second:?}");
        let now = place.load(&orders()).await.unwrap();
        assert_eq!((&now.metadata, &now.location), (&first.metadata, &first.location));
        done(place.change(&orders(), append(&now, 2)).await);
        assert_eq!(history(&place.load(&orders()).await.unwrap().metadata), [2, 1]);
    }
}

#[tokio::test]
async fn a_snapshot_on_another_branch_is_a_change_that_came_first() {
    for place in Place::all().await {
        let base = place.create(&orders(), &[]).await.unwrap();
        let base = done(place.change(&orders(), append(&base, 1)).await);
        done(place.change(&orders(), on_branch(&base, "other", 2)).await);
        let late = place.change(&orders(), append(&base, 3)).await.unwrap();
        assert!(matches!(late, Answer::CameFirst), "{late:?}");
    }
}

#[tokio::test]
async fn what_a_table_cannot_become_is_refused() {
    for place in Place::all().await {
        let base = place.create(&orders(), &[]).await.unwrap();
        let base = done(place.change(&orders(), append(&base, 1)).await);
        let mut again = append(&base, 2);
        again.updates = vec![TableUpdate::SetCurrentSchema { schema_id: 77 }];
        let error = place.change(&orders(), again).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(place.load(&orders()).await.unwrap().metadata, base.metadata);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_who_append_at_once_all_land() {
    for place in Place::all().await {
        place.create(&orders(), &[]).await.unwrap();
        let place = Arc::new(place);
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let place = Arc::clone(&place);
                tokio::spawn(async move {
                    for number in 1..=5 {
                        place.append(&orders(), task * 10 + number).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let mut ids = history(&place.load(&orders()).await.unwrap().metadata);
        ids.sort_unstable();
        let expected: Vec<i64> =
            (0..8).flat_map(|task| (1..=5).map(move |number| task * 10 + number)).collect();
        assert_eq!(ids, expected);
    }
}

#[test]
fn what_a_catalog_says_of_stores_is_not_shown() {
    let metadata = serde_json::from_str::<TableMetadata>(
        r#"{"format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "s3://b/t",
            "last-sequence-number": 0, "last-updated-ms": 1, "last-column-id": 0, "current-schema-id": 0,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": []}], "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}], "last-partition-id": 999,
            "default-sort-order-id": 0, "sort-orders": [{"order-id": 0, "fields": []}]}"#,
    );
    let config = BTreeMap::from([("s3.secret-access-key".to_owned(), "hunter2".to_owned())]);
    let loaded = Loaded { metadata: metadata.unwrap().into(), location: None, config };
    let shown = format!("{loaded:?}");
    assert!(shown.contains("s3.secret-access-key") && !shown.contains("hunter2"), "{shown}");
}
