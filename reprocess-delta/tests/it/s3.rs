//! The same races where the table is in an object store: no rename is atomic there, and a file is created once because
//! the store takes no second one of its name.

use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{
    Change, CommitOutcome, Intent, Op, PartitionWriter, StampId, Visibility,
};
use reprocess_delta::DeltaConfig;

use crate::races;
use crate::s3_store::Store;
use crate::support::*;

/// `None` where there is no Python for it.
fn store() -> Option<Store> {
    Some(Store::start(&python()?))
}

async fn table(store: &Store, name: &str) -> Sales {
    let config = [
        ("AWS_ENDPOINT_URL", store.endpoint()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "tester".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ];
    let config = config
        .into_iter()
        .fold(DeltaConfig::new(), |config, (name, value)| config.with_storage_option(name, value));
    Sales::in_store(Place { location: format!("s3://tables/{name}"), config }).await
}

/// Each loses against those before it, and the server answers some hundred requests a second, so `REPROCESS_TEST_RACERS`
/// is 24 where it is not set.
#[tokio::test(flavor = "multi_thread")]
async fn committers_of_different_partitions_all_land() {
    let Some(store) = store() else { return };
    let racers = std::env::var("REPROCESS_TEST_RACERS").map_or(24, |racers| racers.parse().unwrap());
    races::all_land(&table(&store, "all").await, racers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_committers_to_one_partition_one_wins_per_base() {
    let Some(store) = store() else { return };
    races::one_wins_per_base(&table(&store, "one").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_processes_lose_nothing() {
    let Some(store) = store() else { return };
    races::processes_lose_nothing(&table(&store, "processes").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_and_compactions_conflict_where_they_touch() {
    let Some(store) = store() else { return };
    for (touched, by_rows) in [(MON, true), (MON, false), (TUE, true), (TUE, false)] {
        let sales = table(&store, &format!("touched-{touched}-{by_rows}")).await;
        races::conflicts_where_touched(&sales, touched, by_rows).await;
    }
}

/// A shadow waits, is read, is published and comes back; one that is discarded leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_is_staged_published_and_restored() {
    let Some(store) = store() else { return };
    let sales = table(&store, "shadow of a day").await;
    let given = [(MON, Some("FR"), 1, 10), (MON, Some("a/b %"), 2, 20)];
    sales.replace("given", &days(&[MON]), &given).await;
    let monday = days(&[MON]);
    let mut request = request(&sales.table, "shadow", &monday, Intent::Replace).await;
    request.visibility = Visibility::Shadow("october".into());
    let staged = sales.table.stage(&request, batch(&[(MON, Some("FR"), 1, 11)]).into()).await.unwrap();
    assert_eq!(sales.rows().await, texts(&given));
    let pin = sales.pin(Slice::All).await;
    let (_, overlaid) = sales.again().read_overlaid(std::slice::from_ref(&staged), &pin).await.unwrap();
    assert_eq!(lines_of(overlaid).await.unwrap(), texts(&[(MON, Some("FR"), 1, 11)]));
    let kept = done(commit(&sales.again(), &[apply(&staged)], &request.base).await.unwrap()).kept.unwrap();
    assert_eq!(sales.rows().await, texts(&[(MON, Some("FR"), 1, 11)]));
    let again = commit(&sales.again(), &[apply(&staged)], &request.base).await.unwrap();
    assert!(matches!(again, CommitOutcome::AlreadyCommitted(_)), "{again:?}");

    let stamp = StampId { op: Op::Restore, ..stamp("undo", &monday, &Intent::Replace) };
    let undo = entry(stamp, &monday, Change::Restore(kept));
    let base = sales.table.head(&monday).await.unwrap();
    done(commit(&sales.table, &[undo], &base).await.unwrap());
    assert_eq!(sales.rows().await, texts(&given));

    request.id.attempt = 2;
    request.id.stamp.run = "other".into();
    let waits = sales.table.stage(&request, batch(&[]).into()).await.unwrap();
    let listed = sales.again().list(&"other".into()).await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&waits.id));
    sales.again().discard(&waits.id).await.unwrap();
    assert_eq!(sales.table.list(&"other".into()).await.unwrap(), []);
    assert_eq!(sales.read(&pin).await.unwrap(), texts(&given), "the pinned version is still there");
    assert_eq!(sales.table.current().await.unwrap().as_str(), "3");
}
