//! The same where the table is in an object store: written there, and read by the others from there.

use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{
    Change, CommitOutcome, Intent, MergeKeys, Op, PartitionWriter, StampId, Visibility,
};
use reprocess_iceberg::IcebergConfig;
use serde_json::json;

use crate::races::{race, race_of_processes};
use crate::readers::Others;
use crate::s3_store::Store;
use crate::support::*;

const BRANCH: &str = "reprocess-october";

/// `None` where there is no Python for it.
fn store() -> Option<Store> {
    Some(Store::start(&python()?))
}

async fn table(store: &Store, name: &str) -> Sales {
    let config = [
        ("s3.endpoint", store.endpoint()),
        ("s3.region", "us-east-1".to_owned()),
        ("s3.access-key-id", "tester".to_owned()),
        ("s3.secret-access-key", "secret".to_owned()),
    ];
    let config = config
        .into_iter()
        .fold(IcebergConfig::new(), |config, (name, value)| config.with_storage_option(name, value));
    Sales::in_store(format!("s3://tables/{name}"), config).await
}

fn others(sales: &Sales) -> Others {
    Others::with(&sales.raw(), &sales.place().config.storage_options).unwrap()
}

/// What left no file behind that nothing names.
async fn is_clean(sales: &Sales) {
    let orphans = sales.table.remove_orphans(chrono::Duration::zero(), true).await.unwrap();
    assert_eq!(orphans, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_state_is_read_by_others() {
    let Some(store) = store() else { return };
    let sales = table(&store, "a life").await;
    let mut others = others(&sales);
    let given = [(MON, Some("FR"), 1, 10), (MON, Some("a/b %2F ü"), 2, 20), (TUE, Some("../x"), 3, 30)];
    sales.replace("given", &Scope::whole_table(), &given).await;
    assert_eq!(others.rows(None, "given"), texts(&given));
    let pin = sales.pin(Slice::All).await;
    assert_eq!(sales.read(&pin).await.unwrap(), texts(&given));

    let owner = [("country".to_owned(), Value::from("../x"))].into();
    let merge = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: Some(owner) };
    let rows = [(MON, Some("a/b %2F ü"), 2, 21), (TUE, None, 5, 50)];
    sales.write("merge", &Scope::whole_table(), Intent::Merge(merge), batch(&rows)).await;
    let merged = texts(&[given[0], rows[0], rows[1]]);
    assert_eq!(others.rows(None, "merged"), merged);

    let monday = days(&[MON]);
    let mut request = request(&sales.table, "shadow", &monday, Intent::Replace).await;
    request.visibility = Visibility::Shadow("october".into());
    let staged = sales.table.stage(&request, batch(&[(MON, Some("FR"), 1, 11)]).into()).await.unwrap();
    let waiting = texts(&[(MON, Some("FR"), 1, 11), rows[1]]);
    assert_eq!(others.rows(None, "main while a shadow waits"), merged);
    assert_eq!(others.rows(Some(BRANCH), "the branch"), waiting);
    let now = sales.pin(Slice::All).await;
    let (_, overlaid) = sales.again().await.read_overlaid(std::slice::from_ref(&staged), &now).await.unwrap();
    assert_eq!(lines_of(overlaid).await.unwrap(), waiting);
    // Main moves elsewhere before it is published.
    sales.replace("daily", &days(&[TUE]), &[(TUE, None, 5, 51)]).await;
    let publish = async || commit(&sales.again().await, &[apply(&staged)], &request.base).await.unwrap();
    let kept = done(publish().await).kept.unwrap();
    let published = texts(&[(MON, Some("FR"), 1, 11), (TUE, None, 5, 51)]);
    assert_eq!(others.rows(None, "published"), published);
    let again = publish().await;
    assert!(matches!(again, CommitOutcome::AlreadyCommitted(_)), "{again:?}");

    let stamp = StampId { op: Op::Restore, ..stamp("undo", &monday, &Intent::Replace) };
    let undo = entry(stamp, &monday, Change::Restore(kept));
    let base = sales.table.head(&monday).await.unwrap();
    done(commit(&sales.table, &[undo], &base).await.unwrap());
    let restored = texts(&[given[0], rows[0], (TUE, None, 5, 51)]);
    assert_eq!(others.rows(None, "restored"), restored);

    request.id.attempt = 2;
    request.id.stamp.run = "other".into();
    request.base = base;
    let waits = sales.table.stage(&request, batch(&[]).into()).await.unwrap();
    let run = "other".into();
    assert_eq!(sales.again().await.list(&run).await.unwrap(), std::slice::from_ref(&waits.id));
    sales.again().await.discard(&waits.id).await.unwrap();
    assert_eq!(sales.table.list(&run).await.unwrap(), []);
    assert_eq!(sales.read(&pin).await.unwrap(), texts(&given), "the pinned version is still there");
    is_clean(&sales).await;
}

/// The server answers some hundred requests a second, so `REPROCESS_TEST_RACERS` is 24 where it is not set.
#[tokio::test(flavor = "multi_thread")]
async fn committers_of_different_partitions_all_land() {
    let Some(store) = store() else { return };
    let racers = std::env::var("REPROCESS_TEST_RACERS").map_or(24, |racers| racers.parse().unwrap());
    let sales = table(&store, "all").await;
    race(&sales, racers).await;
    let found = others(&sales).ask(&json!({ "do": "inspect" }));
    assert_eq!([&found["rows"], &found["files"], &found["snapshots"]], [racers; 3]);
    is_clean(&sales).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_processes_lose_nothing() {
    let Some(store) = store() else { return };
    let sales = table(&store, "processes").await;
    race_of_processes(&sales).await;
    let found = others(&sales).ask(&json!({ "do": "inspect" }));
    assert_eq!([&found["rows"], &found["files"], &found["snapshots"]], [32; 3]);
    is_clean(&sales).await;
}
