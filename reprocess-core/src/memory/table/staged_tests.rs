//! Staged sets before their commit.

use super::*;
use crate::domain::decimal::Decimal;
use crate::domain::diff::DiffSpec;
use crate::domain::profile::Total;
use crate::ports::staged::StagedReader;

fn sets(table: &MemoryTable) -> &dyn StagedReader {
    PartitionWriter::staged(table).unwrap()
}

async fn overlaid(table: &MemoryTable, staged: &[Staged], pin: &Pin) -> Result<Vec<String>> {
    let (_, stream) = sets(table).read_overlaid(staged, pin).await?;
    Ok(texts(&stream.try_collect::<Vec<_>>().await?))
}

#[tokio::test]
async fn a_staged_set_is_not_visible_is_profiled_and_can_be_found_again() {
    let table = table_with(&[(MON, Some("FR"), 1, 10)]).await;
    let both = Scope::keys([day(MON), day(TUE)]).unwrap();
    let staging = request("r1", &both, Intent::Replace);
    let staged =
        stage(&table, &staging, &[(MON, Some("FR"), 1, 11), (MON, Some("DE"), 2, 20)]).await.unwrap();
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/10"]);
    assert_eq!(staged.rows(), 2);
    let profile = &staged.profiles[0];
    assert_eq!((&profile.partition, profile.rows), (&day(MON), 2));
    assert_eq!(profile.totals["amount"], Total::Exact(Decimal::from(31)));
    assert_eq!((&staged.profiles[1].partition, staged.profiles[1].rows), (&day(TUE), 0));
    assert_eq!(sets(&table).open(&staging.id).await.unwrap(), Some(staged));
    assert_eq!(sets(&table).list(&"r1".into()).await.unwrap(), [staging.id]);
    assert_eq!(sets(&table).list(&"r2".into()).await.unwrap(), []);
}

#[tokio::test]
async fn staging_an_id_again_replaces_what_was_staged_and_approved() {
    let table = table().await;
    let staging = request("r1", &scope(&day(MON)), Intent::Replace);
    let first = stage(&table, &staging, &[(MON, Some("FR"), 1, 1)]).await.unwrap();
    let second = stage(&table, &staging, &[(MON, Some("FR"), 1, 2)]).await.unwrap();
    assert_ne!(first.digest, second.digest);
    let base = table.head(&staging.scope).await.unwrap();
    let approved = apply(first);
    let error = table.commit(asking(std::slice::from_ref(&approved), &base)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State, "other rows than those that were seen");
    committed(&table, &apply(second)).await;
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/2"]);
}

#[tokio::test]
async fn a_staged_set_can_be_discarded_until_it_is_committed() {
    let table = table().await;
    let staging = request("r1", &scope(&day(MON)), Intent::Replace);
    let entry = apply(stage(&table, &staging, &[(MON, Some("FR"), 1, 1)]).await.unwrap());
    table.discard(&staging.id).await.unwrap();
    table.discard(&staging.id).await.unwrap();
    assert_eq!(sets(&table).open(&staging.id).await.unwrap(), None);
    let base = table.head(&staging.scope).await.unwrap();
    let error = table.commit(asking(std::slice::from_ref(&entry), &base)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    committed(&table, &replace(&table, "r1", &staging.scope, &[]).await).await;
    assert_eq!(table.discard(&staging.id).await.unwrap_err().kind(), ErrorKind::State);
}

#[tokio::test]
async fn the_difference_and_the_profile_after_are_those_of_the_commit() {
    let table =
        table_with(&[(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20), (MON, Some("DE"), 3, 30)]).await;
    let by = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None };
    let rows = [(MON, Some("FR"), 2, 25), (MON, Some("FR"), 4, 40)];
    let staged = stage(&table, &request("r1", &scope(&day(MON)), Intent::Merge(by)), &rows).await.unwrap();
    let diff = sets(&table).diff(&staged, &DiffSpec::new(["id"])).await.unwrap().remove(0);
    assert_eq!((&diff.partition, diff.keyed), (&day(MON), true));
    assert_eq!((diff.added, diff.removed, diff.changed, diff.unchanged), (1, 0, 1, 2));
    let spec = ProfileSpec::new().with_totals(["amount"]);
    let after = sets(&table).profile_after(&staged, &spec).await.unwrap();
    assert_eq!((after[0].rows, after[0].totals["amount"]), (4, Total::Exact(Decimal::from(105))));
    let scope = staged.scope.clone();
    committed(&table, &apply(staged)).await;
    assert_eq!(table.profile(&scope, &spec).await.unwrap().1, after);
}

#[tokio::test]
async fn a_pin_is_read_as_the_staged_sets_would_leave_it() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let planned = pin(&table, Slice::Partitions([day(MON), day(TUE)].into())).await;
    let staging = request("r1", &scope(&day(MON)), Intent::Replace);
    let staged = stage(&table, &staging, &[(MON, Some("DE"), 3, 30)]).await.unwrap();
    let shadow = [staged];
    let expected = ["2026-10-05/DE/3/30", "2026-10-06/FR/2/20"];
    assert_eq!(overlaid(&table, &shadow, &planned).await.unwrap(), expected);
    assert_eq!(overlaid(&table, &[], &planned).await.unwrap(), ["2026-10-05/FR/1/10", "2026-10-06/FR/2/20"]);

    table.append_unmanaged(&batch(&[(MON, Some("FR"), 4, 40)])).unwrap();
    let moved = Pin { version: table.current().await.unwrap(), ..planned.clone() };
    assert_eq!(overlaid(&table, &shadow, &moved).await.unwrap(), expected, "only what is staged moved");
    table.append_unmanaged(&batch(&[(TUE, Some("FR"), 5, 50)])).unwrap();
    let moved = Pin { version: table.current().await.unwrap(), ..planned };
    assert_eq!(overlaid(&table, &shadow, &moved).await.unwrap_err().kind(), ErrorKind::PinBroken);
}

#[tokio::test]
async fn a_pin_from_before_the_table_was_there_is_read_with_the_columns_that_were_staged() {
    let table = table().await;
    let fresh = MemoryTable::new(table.spec.clone());
    let planned = pin(&fresh, Slice::Partitions([day(MON)].into())).await;
    assert_eq!(planned.version.as_str(), "0");
    assert_eq!(read(&fresh, &planned).await.unwrap(), [""; 0]);
    fresh.create(&columns()).await.unwrap();
    let staging = request("r1", &scope(&day(MON)), Intent::Replace);
    let staged = stage(&fresh, &staging, &[(MON, Some("DE"), 3, 30)]).await.unwrap();
    assert_eq!(overlaid(&fresh, &[staged], &planned).await.unwrap(), ["2026-10-05/DE/3/30"]);
}
