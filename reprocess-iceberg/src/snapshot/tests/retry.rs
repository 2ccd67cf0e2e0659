use std::collections::BTreeSet;

use iceberg::spec::{FormatVersion, MAIN_BRANCH};

use super::super::Desk;
use super::lab::Lab;

async fn three_days() -> Lab {
    let mut lab = Lab::new(FormatVersion::V2);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(2, "b", 20), lab.file(3, "c", 30)]).await;
    lab
}

#[tokio::test]
async fn another_attempt_writes_only_the_list_where_others_changed_other_days() {
    let mut lab = three_days().await;
    let mut desk = Desk::new();
    let draft = lab.replacing(21, &["b"], vec![lab.file(2, "d", 5)]).await;
    let lost = lab.assembled(&mut desk, &draft).await;
    let written = lab.written();
    let other = lab.replacing(12, &["a"], vec![lab.file(1, "e", 1)]).await;
    lab.commit(&other).await;
    assert!(lost.requirements.iter().any(|required| required.check(Some(&lab.metadata)).is_err()));

    let before: BTreeSet<_> = lab.written().into_iter().collect();
    let draft = lab.replacing(21, &["b"], vec![lab.file(2, "d", 5)]).await;
    let won = lab.assembled(&mut desk, &draft).await;
    let new: Vec<_> = lab.written().into_iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(new.len(), 1, "{new:?}");
    assert!(new[0].starts_with("reprocess-snap-21-"));
    assert!(written.iter().all(|name| before.contains(name)));

    lab.change(&won);
    assert_eq!(lab.names(MAIN_BRANCH).await, ["c", "d", "e"]);
    assert_eq!(lab.entries().await["d"], (21, 3, None), "the number of the attempt that came through");
    assert_eq!(lab.deleted().await, [("b".to_owned(), 21, 1)]);
    assert_eq!(won.snapshot.parent_snapshot_id(), Some(12));
    let total = &won.snapshot.summary().additional_properties["total-records"];
    assert_eq!(total, "36", "30 of c, 5 of d and 1 of e");

    let unneeded = desk.unneeded(Some(&won));
    assert_eq!(unneeded, [lost.snapshot.manifest_list()]);
}

#[tokio::test]
async fn a_manifest_that_others_wrote_again_is_read_anew_and_the_new_files_stay_written() {
    let mut lab = Lab::new(FormatVersion::V2);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(1, "b", 20), lab.file(1, "c", 30)]).await;
    let mut desk = Desk::new();
    let draft = lab.replacing(21, &["b"], vec![lab.file(2, "d", 5)]).await;
    lab.assembled(&mut desk, &draft).await;
    let other = lab.replacing(12, &["a"], vec![]).await;
    lab.commit(&other).await;

    let before: BTreeSet<_> = lab.written().into_iter().collect();
    let draft = lab.replacing(21, &["b"], vec![lab.file(2, "d", 5)]).await;
    let won = lab.assembled(&mut desk, &draft).await;
    assert_eq!(
        lab.written().into_iter().filter(|name| !before.contains(name)).count(),
        2,
        "a manifest and the list"
    );
    lab.change(&won);
    assert_eq!(lab.names(MAIN_BRANCH).await, ["c", "d"]);
    assert_eq!(desk.unneeded(Some(&won)).len(), 2, "those that were in their place before");
}

#[tokio::test]
async fn after_the_table_was_upgraded_nothing_of_the_older_format_is_taken() {
    let mut lab = Lab::new(FormatVersion::V1);
    lab.append(11, vec![lab.file(1, "a", 10)]).await;
    let mut desk = Desk::new();
    let draft = lab.replacing(21, &["a"], vec![lab.file(1, "b", 5)]).await;
    lab.assembled(&mut desk, &draft).await;
    lab.put(lab.builder_of().upgrade_format_version(FormatVersion::V2).unwrap());
    let draft = lab.replacing(21, &["a"], vec![lab.file(1, "b", 5)]).await;
    let won = lab.assembled(&mut desk, &draft).await;
    lab.change(&won);
    assert_eq!(lab.entries().await["b"], (21, 1, None));
    assert_eq!(desk.unneeded(Some(&won)).len(), 3);
}

#[tokio::test]
async fn where_nothing_was_committed_all_that_was_written_is_unneeded_and_two_desks_share_no_name() {
    let lab = three_days().await;
    let (mut one, mut other) = (Desk::new(), Desk::new());
    let draft = lab.replacing(21, &["b"], vec![lab.file(2, "d", 5)]).await;
    lab.assembled(&mut one, &draft).await;
    lab.assembled(&mut other, &draft).await;
    let (one, other) = (one.unneeded(None), other.unneeded(None));
    assert_eq!((one.len(), other.len()), (3, 3));
    assert!(one.iter().all(|path| !other.contains(path)));
}

#[tokio::test]
async fn metadata_goes_where_the_table_says() {
    let lab = Lab::new(FormatVersion::V2);
    let elsewhere = lab.in_metadata("elsewhere/");
    let lab = Lab::with(FormatVersion::V2, &[("write.metadata.path", &elsewhere)]);
    let draft = lab.replacing(21, &[], vec![lab.file(2, "d", 5)]).await;
    let mut desk = Desk::new();
    lab.assembled(&mut desk, &draft).await;
    assert!(desk.unneeded(None).iter().all(|path| path.starts_with(&elsewhere) && !path.contains("//m")));
}
