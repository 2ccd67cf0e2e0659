use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt;
use iceberg::TableUpdate;
use iceberg::spec::{DataFile, Struct, Transform, UnboundPartitionSpec};
use reprocess_core::ErrorKind;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::profile::ProfileSpec;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::value::ValueKind;
use reprocess_core::ports::ledger::TaskFinish;
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Intent, Op, PartitionWriter, Rows,
    StageRequest, StagedId, StampId, Visibility,
};
use reprocess_sqlite::SqliteDatabase;
use tempfile::TempDir;

use super::*;
use crate::IcebergCatalog;
use crate::scan;
use crate::writer::encode::paths;

/// A table of sales by country.
struct Sales {
    _folder: TempDir,
    table: IcebergTable,
}

impl Sales {
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let database = SqliteDatabase::open(folder.path().join("catalog.db")).await.unwrap();
        let warehouse = folder.path().join("warehouse");
        let catalog = IcebergCatalog::sqlite(&database, "test", warehouse.to_str().unwrap()).await.unwrap();
        let by_country = Partitioning::unpartitioned().with_key("country", ValueKind::Text);
        let table = IcebergTable::open(&catalog, "shop.sales", TableSpec::new("sales", by_country)).unwrap();
        table.create(&columns()).await.unwrap();
        Self { _folder: folder, table }
    }

    async fn replace(&self, run: &str, scope: &Scope, rows: &[(&str, i64)]) -> Commit {
        let base = self.table.head(scope).await.unwrap();
        let stamp = StampId {
            run: run.into(),
            job: "daily".into(),
            op: Op::Replace,
            scope_digest: scope.digest(),
            generation: 1,
        };
        let request = StageRequest {
            id: StagedId { stamp: stamp.clone(), attempt: 1 },
            scope: scope.clone(),
            intent: Intent::Replace,
            visibility: Visibility::Direct,
            profile: ProfileSpec::new(),
            schema: SchemaPolicy::Refuse,
            base: base.clone(),
        };
        let stream = Box::pin(futures::stream::iter([Ok(batch(rows))]));
        let staged = self.table.stage(&request, Rows::Stream { schema: columns(), stream }).await.unwrap();
        let finish = TaskFinish::default();
        let change = Change::Apply(staged);
        let entries = [CommitEntry { scope: scope.clone(), change, stamp, attempt: 1, finish }];
        let (base, since) = (&base, &base);
        let request = CommitRequest { entries: &entries, base, since, fence: None, keep: true, ledger: None };
        match self.table.commit(request).await.unwrap() {
            CommitOutcome::Committed(commit) => commit,
            other => panic!("{other:?}"),
        }
    }

    async fn view(&self) -> Arc<View> {
        self.table.latest().await.unwrap()
    }

    /// Changes the metadata as another tool would.
    async fn change(&self, updates: Vec<TableUpdate>) {
        let view = self.view().await;
        let base = &view.there().unwrap().loaded;
        let proposal = Proposal { base, requirements: Vec::new(), updates, told: None };
        assert!(matches!(self.table.change(&view, proposal).await.unwrap(), Answer::Done(_)));
    }

    async fn back(&self, kept: &Kept, scope: &Scope, name: &str) -> Back {
        back(&self.table, self.view().await.as_ref(), kept, scope, name).await.unwrap()
    }

    async fn ids(&self, files: &[DataFile]) -> Vec<i64> {
        let view = self.view().await;
        let there = view.there().unwrap();
        let rows = scan::staged(&there.files, &there.columns, files).unwrap();
        let batches: Vec<RecordBatch> = rows.try_collect().await.unwrap();
        let ids = batches.iter().flat_map(|batch| {
            batch.column(1).as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec()
        });
        let mut ids: Vec<_> = ids.collect();
        ids.sort_unstable();
        ids
    }
}

fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("country", DataType::Utf8, true),
        Field::new("id", DataType::Int64, true),
    ]))
}

fn batch(rows: &[(&str, i64)]) -> RecordBatch {
    let countries: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)));
    let ids = Int64Array::from_iter_values(rows.iter().map(|row| row.1));
    RecordBatch::try_new(columns(), vec![countries, Arc::new(ids)]).unwrap()
}

fn only(countries: &[&str]) -> Scope {
    Scope::keys(countries.iter().map(|country| PartitionKey::of("country", *country))).unwrap()
}

#[tokio::test]
async fn an_empty_table_is_kept_without_a_tag_and_comes_back_empty() {
    let sales = Sales::new().await;
    let (kept, tag) = keep(&sales.table, sales.view().await.as_ref(), &"0".repeat(32)).unwrap();
    assert!(tag.is_none());
    sales.replace("first", &only(&["FR"]), &[("FR", 1)]).await;
    assert!(find(&sales.table, sales.view().await.as_ref(), &kept).unwrap().is_none());
    let back = sales.back(&kept, &only(&["FR"]), "n").await;
    assert!(back.stays.is_empty() && back.added.is_empty());
    forget(&sales.table, &kept).await.unwrap();
}

#[tokio::test]
async fn a_snapshot_is_kept_until_it_is_forgotten() {
    let sales = Sales::new().await;
    sales.replace("first", &only(&["FR"]), &[("FR", 1)]).await;
    let before = sales.view().await.snapshot_id();
    let kept = sales.replace("second", &only(&["FR"]), &[("FR", 2)]).await.kept.unwrap();
    let found = find(&sales.table, sales.view().await.as_ref(), &kept).unwrap();
    assert_eq!(found.map(|snapshot| snapshot.snapshot_id()), before);
    forget(&sales.table, &kept).await.unwrap();
    let error = find(&sales.table, sales.view().await.as_ref(), &kept).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::State, "what the commit replaced is no longer kept")
    );
    forget(&sales.table, &kept).await.unwrap();
}

#[tokio::test]
async fn what_another_table_kept_is_refused() {
    let sales = Sales::new().await;
    let (kept, _) = keep(&sales.table, sales.view().await.as_ref(), &"0".repeat(32)).unwrap();
    let mut ticket: Ticket = serde_json::from_value(kept.0).unwrap();
    ticket.table = "orders".into();
    let foreign = Kept(json!(ticket));
    for kept in [foreign, Kept(json!("what"))] {
        assert_eq!(forget(&sales.table, &kept).await.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    // A table that was made again under the name is another one, of which nothing is kept.
    ticket.table = "sales".into();
    ticket.uuid = "00000000-0000-0000-0000-000000000000".into();
    let earlier = Kept(json!(ticket));
    forget(&sales.table, &earlier).await.unwrap();
    let error = find(&sales.table, sales.view().await.as_ref(), &earlier).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
}

#[tokio::test]
async fn what_went_is_copied_and_what_is_still_there_stays() {
    let sales = Sales::new().await;
    sales.replace("first", &only(&["FR", "DE"]), &[("FR", 1), ("DE", 2)]).await;
    let kept = sales.replace("second", &only(&["FR"]), &[("FR", 3)]).await.kept.unwrap();
    let back = sales.back(&kept, &only(&["FR", "DE"]), "n").await;
    assert_eq!((back.stays.len(), back.added.len()), (1, 1));
    assert!(back.stays.iter().all(|path| path.contains("country=DE")));
    assert_eq!(sales.ids(&back.added).await, [1]);
    assert!(back.added[0].file_path().contains("/data/country=FR/reprocess-n/"));
    // A retry makes the same files.
    let again = sales.back(&kept, &only(&["FR", "DE"]), "n").await;
    assert_eq!((&again.stays, paths(&again.added)), (&back.stays, paths(&back.added)));
    let other = sales.back(&kept, &only(&["FR"]), "m").await;
    assert!(other.stays.is_empty());
    assert_ne!(paths(&other.added), paths(&back.added));
}

#[tokio::test]
async fn a_copy_says_of_its_rows_what_the_file_said() {
    let sales = Sales::new().await;
    sales.replace("first", &only(&["FR"]), &[("FR", 1), ("FR", 7)]).await;
    let view = sales.view().await;
    let listing = view.listing(&sales.table, &crate::view::Wanted::All).await.unwrap();
    let before = listing.files.values().flatten().next().unwrap().entry.file.clone();
    let kept = sales.replace("second", &only(&["FR"]), &[]).await.kept.unwrap();
    let [copy]: [DataFile; 1] = sales.back(&kept, &only(&["FR"]), "n").await.added.try_into().unwrap();
    assert_ne!(copy.file_path(), before.file_path());
    assert_eq!(copy.record_count(), before.record_count());
    assert_eq!(copy.lower_bounds(), before.lower_bounds());
    assert_eq!(copy.partition(), before.partition());
    let bytes = |file: &DataFile| std::fs::read(file.file_path()).unwrap();
    assert_eq!(bytes(&copy), bytes(&before));
}

#[tokio::test]
async fn files_of_an_older_spec_are_written_again_by_the_one_of_now() {
    let sales = Sales::new().await;
    sales.replace("first", &only(&["FR", "DE"]), &[("FR", 1), ("FR", 34), ("DE", 2)]).await;
    let kept = sales.replace("second", &only(&["FR"]), &[("FR", 3)]).await.kept.unwrap();
    let spec = UnboundPartitionSpec::builder()
        .add_partition_field(1, "country", Transform::Identity)
        .unwrap()
        .add_partition_field(2, "id_part", Transform::Truncate(10))
        .unwrap()
        .build();
    sales.change(vec![TableUpdate::AddSpec { spec }, TableUpdate::SetDefaultSpec { spec_id: -1 }]).await;
    let back = sales.back(&kept, &only(&["FR", "DE"]), "n").await;
    // The file of Germany is live, of whichever spec it is.
    assert_eq!(back.stays.len(), 1);
    let part = |id| {
        let country = iceberg::spec::Literal::string("FR");
        Struct::from_iter([Some(country), Some(iceberg::spec::Literal::long(id))])
    };
    let parts: BTreeSet<_> = back.added.iter().map(|file| format!("{:?}", file.partition())).collect();
    assert_eq!(parts, [part(0), part(30)].iter().map(|part| format!("{part:?}")).collect());
    assert_eq!(sales.ids(&back.added).await, [1, 34]);
}
