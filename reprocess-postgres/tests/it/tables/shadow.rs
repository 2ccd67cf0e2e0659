//! Staged sets before they are committed.

use std::collections::BTreeMap;

use reprocess_core::ErrorKind;
use reprocess_core::domain::diff::DiffSpec;
use reprocess_core::domain::profile::{ProfileSpec, Total};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{Intent, MergeKeys, PartitionWriter, Staged};

use super::support::*;

async fn overlaid(f: &Fixture, staged: &[Staged], pin: &reprocess_core::domain::slice::Pin) -> Vec<String> {
    let (_, stream) = f.table.read_overlaid(staged, pin).await.unwrap();
    texts(stream).await.unwrap()
}

#[tokio::test]
async fn the_overlay_shows_production_as_it_would_be() {
    let f = fixture().await;
    let (one, two) = (days(&["2026-10-01"]), days(&["2026-10-02"]));
    f.replace(
        "r1",
        &one.union(&two),
        &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-02", "FR", 2, 2, 0), ("2026-10-02", "DE", 3, 3, 0)],
    )
    .await;
    f.replace(
        "r1 null",
        &scope(reprocess_core::domain::partition::PartitionKey::of(
            "day",
            reprocess_core::domain::value::Value::Null,
        )),
        &[("NULL", "NULL", 8, 8, 0)],
    )
    .await;
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    let first = f.stage("r2", &one, Intent::Replace, &[("2026-10-01", "FR", 1, 7, 0)]).await.unwrap();
    let second = f.stage("r2", &two, Intent::ReplaceDynamic, &[("2026-10-02", "FR", 2, 8, 0)]).await.unwrap();
    let shown = overlaid(&f, &[first.clone(), second.clone()], &pinned).await;
    assert_eq!(
        shown,
        ["2026-10-01/FR/1/7/0", "2026-10-02/DE/3/3/0", "2026-10-02/FR/2/8/0", "NULL/NULL/8/8/0"]
    );
    assert_eq!(overlaid(&f, &[], &pinned).await.len(), 4);
    // A change within the scopes does not matter, one outside does.
    f.replace("daily", &one, &[]).await;
    assert_eq!(overlaid(&f, &[first.clone(), second.clone()], &pinned).await, shown);
    let error = refused(
        f.table.read_overlaid(std::slice::from_ref(&second), &pinned).await.map(drop),
        &["2026-10-01"],
    );
    assert_eq!(error.kind(), ErrorKind::PinBroken);
    // What is committed is what was shown.
    let base = f.table.head(&one.union(&two)).await.unwrap();
    committed(commit(&f.table, &[apply(&first), apply(&second)], &base, false).await.unwrap());
    assert_eq!(f.rows().await, shown);
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    refused(f.table.read_overlaid(&[first], &pinned).await.map(drop), &["gone"]);
}

#[tokio::test]
async fn merges_are_laid_over_each_other() {
    let f = fixture().await;
    let all = Scope::whole_table();
    f.replace(
        "r1",
        &all,
        &[("2026-10-01", "FR", 1, 1, 5), ("2026-10-01", "FR", 2, 2, 5), ("2026-10-01", "DE", 3, 3, 5)],
    )
    .await;
    let merge = |country: Option<&str>| {
        Intent::Merge(MergeKeys {
            newer: Some("rev".into()),
            delete_vanished: country.map(|c| BTreeMap::from([("country".to_owned(), value(c))])),
            ..by_id()
        })
    };
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    let base = f.table.head(&all).await.unwrap();
    let first = f
        .stage("a", &all, merge(Some("FR")), &[("2026-10-02", "FR", 1, 10, 6), ("2026-10-02", "FR", 4, 4, 1)])
        .await
        .unwrap();
    let second = f
        .stage("b", &all, merge(None), &[("2026-10-03", "FR", 1, 9, 4), ("2026-10-03", "FR", 4, 5, 2)])
        .await
        .unwrap();
    let shown = overlaid(&f, &[first.clone(), second.clone()], &pinned).await;
    assert_eq!(shown, ["2026-10-01/DE/3/3/5", "2026-10-02/FR/1/10/6", "2026-10-03/FR/4/5/2"]);
    committed(commit(&f.table, &[apply(&first)], &base, false).await.unwrap());
    let base = f.table.head(&all).await.unwrap();
    committed(commit(&f.table, &[apply(&second)], &base, false).await.unwrap());
    assert_eq!(f.rows().await, shown);
}

#[tokio::test]
async fn many_staged_sets_make_one_overlay() {
    let f = fixture().await;
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    let mut staged = Vec::new();
    for i in 0..130_u64 {
        let d = (date("2026-01-01") + chrono::Days::new(i)).to_string();
        staged.push(f.stage("run", &days(&[&d]), Intent::Replace, &[(&d, "FR", 1, 1, 0)]).await.unwrap());
    }
    assert_eq!(overlaid(&f, &staged, &pinned).await.len(), 130);
    assert_eq!(f.table.list(&"run".into()).await.unwrap().len(), 130);
}

#[tokio::test]
async fn profiles_and_differences_are_taken_per_key() {
    let f = fixture().await;
    let both = days(&["2026-10-01", "2026-10-02"]);
    f.replace(
        "r1",
        &both,
        &[("2026-10-01", "FR", 1, 1, 0), ("2026-10-01", "FR", 2, 2, 0), ("2026-10-02", "FR", 3, 3, 0)],
    )
    .await;
    let staged = f
        .stage("r2", &both, Intent::Replace, &[("2026-10-01", "FR", 1, 5, 0), ("2026-10-02", "FR", 3, 3, 0)])
        .await
        .unwrap();
    let spec = ProfileSpec::new().with_totals(["amount"]).with_keys(["id"]);
    let (base, before) = f.table.profile(&both, &spec).await.unwrap();
    assert_eq!(base, f.table.head(&both).await.unwrap());
    assert_eq!(before.iter().map(|p| p.rows).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(before[0].totals["amount"], Total::Exact(3.into()));
    let after = f.table.profile_after(&staged, &spec).await.unwrap();
    assert_eq!(after[0].totals["amount"], Total::Exact(5.into()));
    assert_eq!(after[1].content, before[1].content);
    assert_eq!(staged.profiles[1].content, before[1].content);
    let diffs = f.table.diff(&staged, &DiffSpec::new(["id"])).await.unwrap();
    let counts: Vec<_> = diffs.iter().map(|d| (d.added, d.removed, d.changed, d.unchanged)).collect();
    assert_eq!(counts, [(0, 1, 1, 0), (0, 0, 0, 1)]);
    // The digest is of the content, so that an approval binds to it.
    let again = f
        .stage("r2", &both, Intent::Replace, &[("2026-10-02", "FR", 3, 3, 0), ("2026-10-01", "FR", 1, 5, 0)])
        .await
        .unwrap();
    assert_eq!(again.digest, staged.digest);
    let other = f.stage("r2", &both, Intent::Replace, &[("2026-10-02", "FR", 3, 4, 0)]).await.unwrap();
    assert_ne!(other.digest, staged.digest);
    // What was staged before under the id cannot be committed any more.
    refused(commit(&f.table, &[apply(&staged)], &base, false).await, &["others were staged"]);
}
