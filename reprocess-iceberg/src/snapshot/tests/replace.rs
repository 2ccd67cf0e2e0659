use iceberg::spec::{FormatVersion, MAIN_BRANCH, ManifestStatus, Operation};

use super::super::{Desk, Draft};
use super::lab::Lab;

const FORMATS: [FormatVersion; 3] = [FormatVersion::V1, FormatVersion::V2, FormatVersion::V3];

/// Sequence numbers are not in format version 1.
fn number(lab: &Lab, number: i64) -> i64 {
    if lab.metadata.format_version() == FormatVersion::V1 { 0 } else { number }
}

async fn three_days(format: FormatVersion) -> Lab {
    let mut lab = Lab::new(format);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(2, "b", 20), lab.file(3, "c", 30)]).await;
    lab
}

#[tokio::test]
async fn a_replaced_day_has_its_new_files_and_the_manifests_of_the_others_stay_as_they_are() {
    for format in FORMATS {
        let mut lab = three_days(format).await;
        let before = lab.paths().await;
        assert_eq!(before.len(), 3, "one for each day");
        let draft = lab.replacing(12, &["b"], vec![lab.file(2, "d", 5)]).await;
        let assembled = lab.commit(&draft).await;
        assert_eq!(assembled.snapshot.parent_snapshot_id(), Some(11));
        assert_eq!(lab.metadata.current_snapshot_id(), Some(12));
        let told = |(snapshot, sequence, _)| (snapshot, sequence);
        let entries = lab.entries().await.into_iter().map(|(name, entry)| (name, told(entry)));
        let expected = [
            ("a".to_owned(), (11, number(&lab, 1))),
            ("c".to_owned(), (11, number(&lab, 1))),
            ("d".to_owned(), (12, number(&lab, 2))),
        ];
        assert_eq!(entries.collect::<Vec<_>>(), expected);
        assert_eq!(lab.deleted().await, [("b".to_owned(), 12, number(&lab, 1))]);
        let after = lab.paths().await;
        assert_eq!(before.iter().filter(|path| after.contains(path)).count(), 2);
    }
}

#[tokio::test]
async fn what_has_gone_is_told_by_one_snapshot_and_no_longer_by_the_next() {
    for format in FORMATS {
        let mut lab = three_days(format).await;
        let draft = lab.replacing(12, &["b"], vec![]).await;
        lab.commit(&draft).await;
        assert_eq!(lab.names(MAIN_BRANCH).await, ["a", "c"]);
        assert_eq!(lab.paths().await.len(), 3, "two that stay, and one that tells what went");
        lab.append(13, vec![]).await;
        assert_eq!(lab.names(MAIN_BRANCH).await, ["a", "c"]);
        assert_eq!(lab.deleted().await, []);
        assert_eq!(lab.paths().await.len(), 2);
    }
}

#[tokio::test]
async fn a_commit_that_changes_no_file_is_a_snapshot_all_the_same() {
    for format in FORMATS {
        let mut lab = Lab::new(format);
        lab.commit(&lab.draft(11)).await;
        assert_eq!(lab.metadata.current_snapshot_id(), Some(11));
        assert_eq!(lab.paths().await, Vec::<String>::new());
        lab.append(12, vec![lab.file(1, "a", 10)]).await;
        lab.commit(&lab.draft(13)).await;
        assert_eq!(lab.names(MAIN_BRANCH).await, ["a"]);
    }
}

#[tokio::test]
async fn files_go_from_several_manifests_at_once() {
    for format in FORMATS {
        let mut lab = three_days(format).await;
        lab.append(12, vec![lab.file(1, "a2", 1), lab.file(2, "b2", 2)]).await;
        let draft = lab.replacing(13, &["a", "a2", "b"], vec![lab.file(1, "n", 7)]).await;
        lab.commit(&draft).await;
        assert_eq!(lab.names(MAIN_BRANCH).await, ["b2", "c", "n"]);
        let one = |name: &str, sequence| (name.to_owned(), 13, number(&lab, sequence));
        assert_eq!(lab.deleted().await, [one("a", 1), one("a2", 2), one("b", 1)]);
    }
}

#[tokio::test]
async fn other_entries_of_a_manifest_keep_their_snapshot_and_number() {
    let mut lab = Lab::new(FormatVersion::V2);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(1, "b", 20), lab.file(1, "c", 30)]).await;
    let draft = lab.replacing(12, &["a"], vec![]).await;
    lab.commit(&draft).await;
    let draft = lab.replacing(13, &["c"], vec![lab.file(1, "d", 1)]).await;
    lab.commit(&draft).await;
    assert_eq!(lab.entries().await["b"], (11, 1, None));
    assert_eq!(lab.entries().await["d"], (13, 3, None));
    assert_eq!(lab.deleted().await, [("c".to_owned(), 13, 1)], "what went before is not told again");
    let tip = lab.tip(MAIN_BRANCH).await;
    let with_b = tip.manifests.iter().find(|manifest| manifest.existing_files_count == Some(1)).unwrap();
    assert_eq!((with_b.sequence_number, with_b.min_sequence_number, with_b.added_snapshot_id), (3, 1, 13));
    assert_eq!((with_b.existing_rows_count, with_b.deleted_rows_count), (Some(20), Some(30)));
}

#[tokio::test]
async fn a_day_takes_its_files_of_deletes_with_it_and_leaves_those_of_others() {
    for format in [FormatVersion::V2, FormatVersion::V3] {
        let mut lab = three_days(format).await;
        lab.append_deletes(12, &[lab.deletes(1, "x", 2), lab.deletes(2, "y", 3)]).await;
        let draft = lab.replacing(13, &["b", "y"], vec![lab.file(2, "d", 5)]).await;
        lab.commit(&draft).await;
        assert_eq!(lab.names(MAIN_BRANCH).await, ["a", "c", "d", "x"]);
        assert_eq!(lab.entries().await["x"], (12, 2, None));
        assert_eq!(lab.deleted().await, [("b".to_owned(), 13, 1), ("y".to_owned(), 13, 2)]);
    }
}

#[tokio::test]
async fn of_deletion_vectors_in_one_file_only_that_of_the_replaced_day_goes() {
    let mut lab = three_days(FormatVersion::V3).await;
    lab.append_deletes(12, &[lab.vector(1, "v", "a", 4), lab.vector(2, "v", "b", 11)]).await;
    let draft = lab.replacing(13, &["b", "v@11"], vec![]).await;
    let assembled = lab.commit(&draft).await;
    assert_eq!(lab.names(MAIN_BRANCH).await, ["a", "c", "v@4"]);
    let told = &assembled.snapshot.summary().additional_properties;
    assert_eq!(told["removed-dvs"], "1");
    assert_eq!(told["removed-files-size"], "207", "the size of the vector, not of the file that it is in");
    assert_eq!(told["total-position-deletes"], "3");
}

#[tokio::test]
async fn many_days_share_manifests_and_are_not_torn_between_them() {
    let mut lab = Lab::new(FormatVersion::V2);
    let mut files = Vec::new();
    for day in 0..200 {
        files.extend((0..2).map(|n| lab.file(day, &format!("{day:03}-{n}"), 1)));
    }
    files.reverse();
    lab.append(11, files).await;
    let manifests = lab.tip(MAIN_BRANCH).await.manifests;
    let counts: Vec<_> = manifests.iter().map(|manifest| manifest.added_files_count.unwrap()).collect();
    assert_eq!(counts, [300, 100]);
    let mut days = Vec::new();
    for manifest in manifests {
        let manifest = manifest.load_manifest(lab.files.io()).await.unwrap();
        assert!(manifest.entries().iter().all(|entry| entry.status() == ManifestStatus::Added));
        let mut of_this: Vec<_> =
            manifest.entries().iter().map(|entry| format!("{:?}", entry.data_file().partition())).collect();
        of_this.dedup();
        days.extend(of_this);
    }
    assert_eq!(days.len(), 200);
}

#[tokio::test]
async fn a_file_that_is_not_live_is_not_taken_for_removed() {
    let mut lab = three_days(FormatVersion::V2).await;
    let stale = lab.replacing(13, &["b"], vec![]).await;
    let draft = lab.replacing(12, &["b"], vec![]).await;
    lab.commit(&draft).await;
    let tip = lab.tip(MAIN_BRANCH).await;
    let refused = Desk::new().assemble_on(&lab.manifests, lab.head(&tip), &stale).await;
    assert!(refused.unwrap_err().message().contains("from a manifest that the head does not have"));
}

#[tokio::test]
async fn a_file_whose_values_are_not_those_of_the_spec_is_refused_and_not_a_panic() {
    let lab = Lab::new(FormatVersion::V2);
    let file = lab.file_in(iceberg::spec::Struct::empty(), "a", 1);
    let draft = Draft { operation: Operation::Append, added: vec![file], ..lab.draft(11) };
    let tip = lab.tip(MAIN_BRANCH).await;
    let refused = Desk::new().assemble_on(&lab.manifests, lab.head(&tip), &draft).await.unwrap_err();
    assert_eq!(refused.message(), "the partition values of a file are not those of its spec");
}
