use std::collections::BTreeSet;

use iceberg::spec::{FormatVersion, MAIN_BRANCH, ManifestFile, Operation};

use super::super::merge::Settings;
use super::super::{Desk, Draft};
use super::lab::{Lab, schema};

async fn small_commits(lab: &mut Lab, commits: i64) {
    for n in 0..commits {
        lab.append(100 + n, vec![lab.file(n, &format!("f{n:03}"), 1)]).await;
    }
}

#[tokio::test]
async fn many_small_commits_leave_few_manifests_and_every_entry_as_it_was() {
    for format in [FormatVersion::V1, FormatVersion::V2, FormatVersion::V3] {
        let mut lab = Lab::with(format, &[("commit.manifest.min-count-to-merge", "8")]);
        small_commits(&mut lab, 25).await;
        let manifests = lab.tip(MAIN_BRANCH).await.manifests;
        assert!(manifests.len() <= 9, "{}", manifests.len());
        let entries = lab.entries().await;
        assert_eq!(entries.len(), 25);
        for (n, (name, (snapshot, sequence, first_row))) in (0..).zip(entries) {
            assert_eq!((name, snapshot), (format!("f{n:03}"), 100 + n));
            assert_eq!(sequence, if format == FormatVersion::V1 { 0 } else { n + 1 });
            assert_eq!(first_row.is_some(), format == FormatVersion::V3);
        }
        let total =
            &lab.metadata.current_snapshot().unwrap().summary().additional_properties["total-records"];
        assert_eq!(total, "25");
    }
}

#[tokio::test]
async fn by_default_a_hundred_are_put_together_and_ninety_nine_are_not() {
    for (days, expected) in [(99, 100), (100, 2)] {
        let mut lab = Lab::new(FormatVersion::V2);
        lab.append(11, (0..days).map(|day| lab.file(day, &format!("f{day:03}"), 1)).collect()).await;
        assert_eq!(lab.paths().await.len(), usize::try_from(days).unwrap());
        lab.append(12, vec![lab.file(5, "n", 1)]).await;
        let manifests = lab.tip(MAIN_BRANCH).await.manifests;
        assert_eq!(manifests.len(), expected);
        let counts = |manifest: &ManifestFile| (manifest.added_files_count, manifest.existing_files_count);
        assert_eq!(counts(&manifests[0]), (Some(1), Some(0)), "what comes with the snapshot stays apart");
        if expected == 2 {
            assert_eq!(counts(&manifests[1]), (Some(0), Some(100)));
        }
    }
}

#[tokio::test]
async fn a_table_may_forbid_it() {
    let off = [("commit.manifest-merge.enabled", "false"), ("commit.manifest.min-count-to-merge", "2")];
    let mut lab = Lab::with(FormatVersion::V2, &off);
    small_commits(&mut lab, 5).await;
    assert_eq!(lab.paths().await.len(), 5);
}

#[tokio::test]
async fn a_day_is_replaced_in_the_commit_that_puts_the_other_manifests_together() {
    let mut lab = Lab::with(FormatVersion::V2, &[("commit.manifest.min-count-to-merge", "4")]);
    small_commits(&mut lab, 5).await;
    let draft = lab.replacing(900, &["f002"], vec![lab.file(2, "n", 1)]).await;
    lab.commit(&draft).await;
    assert_eq!(lab.names(MAIN_BRANCH).await, ["f000", "f001", "f003", "f004", "n"]);
    assert_eq!(lab.deleted().await, [("f002".to_owned(), 900, 3)]);
    assert_eq!(lab.paths().await.len(), 3);
    let draft = lab.replacing(901, &["f003"], vec![]).await;
    lab.commit(&draft).await;
    assert_eq!(lab.names(MAIN_BRANCH).await, ["f000", "f001", "f004", "n"]);
    assert_eq!(lab.entries().await["f004"], (104, 5, None));
}

#[tokio::test]
async fn another_attempt_takes_the_manifests_that_were_put_together() {
    let mut lab = Lab::with(FormatVersion::V2, &[("commit.manifest.min-count-to-merge", "4")]);
    small_commits(&mut lab, 4).await;
    let mut desk = Desk::new();
    let draft = Draft { operation: Operation::Append, added: vec![lab.file(50, "n", 1)], ..lab.draft(900) };
    lab.assembled(&mut desk, &draft).await;
    // Another one comes first, and puts nothing together.
    lab.put(
        lab.builder_of()
            .set_properties([("commit.manifest-merge.enabled".into(), "false".into())].into_iter().collect())
            .unwrap(),
    );
    lab.append(901, vec![lab.file(60, "o", 1)]).await;
    let before: BTreeSet<_> = lab.written().into_iter().collect();
    let won = lab.assembled(&mut desk, &draft).await;
    assert_eq!(lab.written().into_iter().filter(|name| !before.contains(name)).count(), 1, "the list");
    lab.change(&won);
    assert_eq!(lab.names(MAIN_BRANCH).await.len(), 6);
    assert_eq!(lab.paths().await.len(), 3, "the new one, the four in one, and that of the other");
    assert_eq!(desk.unneeded(Some(&won)).len(), 1);
}

#[tokio::test]
async fn only_manifests_with_the_same_columns_are_put_together() {
    let mut lab = Lab::with(FormatVersion::V2, &[("commit.manifest.min-count-to-merge", "3")]);
    lab.append(11, vec![lab.file(1, "a", 1)]).await;
    lab.append(12, vec![lab.file(2, "b", 1)]).await;
    let wider = schema(&[(1, "day"), (2, "amount"), (3, "note")]);
    lab.put(lab.builder_of().add_schema(wider).unwrap().set_current_schema(-1).unwrap());
    lab.append(13, vec![lab.file(3, "c", 1)]).await;
    lab.commit(&lab.draft(14)).await;
    let live = lab.live(MAIN_BRANCH).await;
    let schemas: Vec<_> = live.values().map(|entry| entry.schema.schema_id()).collect();
    assert_eq!(schemas, [0, 0, 1]);
    assert_eq!(live["a"].manifest, live["b"].manifest);
    assert_ne!(live["a"].manifest, live["c"].manifest);
}

#[tokio::test]
async fn files_of_deletes_are_not_put_together_with_data() {
    let mut lab = Lab::with(FormatVersion::V2, &[("commit.manifest.min-count-to-merge", "2")]);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(2, "b", 10)]).await;
    lab.append_deletes(12, &[lab.deletes(1, "x", 2)]).await;
    lab.append_deletes(13, &[lab.deletes(2, "y", 2)]).await;
    lab.commit(&lab.draft(14)).await;
    assert_eq!(lab.paths().await.len(), 2);
    let entries: Vec<_> = lab.entries().await.into_iter().collect();
    let entry = |name: &str, snapshot, number| (name.to_owned(), (snapshot, number, None));
    assert_eq!(entries, [entry("a", 11, 1), entry("b", 11, 1), entry("x", 12, 2), entry("y", 13, 3)]);
}

#[tokio::test]
async fn a_manifest_is_small_up_to_half_of_what_it_may_be() {
    let properties =
        [("commit.manifest.min-count-to-merge", "0"), ("commit.manifest.target-size-bytes", "1000")];
    let mut lab = Lab::with(FormatVersion::V2, &properties);
    lab.append(11, vec![lab.file(1, "a", 1)]).await;
    let manifest = lab.tip(MAIN_BRANCH).await.manifests.remove(0);
    let sized =
        |files, bytes| ManifestFile { added_files_count: files, manifest_length: bytes, ..manifest.clone() };
    let chosen = |manifests: &[ManifestFile]| {
        let groups = Settings::of(&lab.metadata).choose(&manifests.iter().collect::<Vec<_>>());
        groups.into_iter().map(|group| group.len()).collect::<Vec<_>>()
    };
    assert_eq!(chosen(&[sized(Some(150), 500), sized(Some(1), 1)]), [2]);
    assert_eq!(chosen(&[sized(Some(151), 500), sized(Some(1), 1)]), [0; 0], "one alone is no two");
    assert_eq!(chosen(&[sized(Some(150), 501), sized(Some(1), 1)]), [0; 0]);
    assert_eq!(chosen(&[sized(None, 1), sized(Some(1), 1)]), [0; 0], "what does not say how many it has");
}
