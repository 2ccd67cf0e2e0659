use iceberg::TableRequirement;
use iceberg::spec::{FormatVersion, MAIN_BRANCH, Operation, SnapshotReference, SnapshotRetention};
use reprocess_core::ErrorKind;

use super::super::assemble::Head;
use super::super::{Desk, Draft, RefChange, change_refs};
use super::lab::{Lab, schema};

fn asserted(requirements: &[TableRequirement]) -> Vec<(String, Option<i64>)> {
    let refs = requirements.iter().filter_map(|required| match required {
        TableRequirement::RefSnapshotIdMatch { r#ref, snapshot_id } => Some((r#ref.clone(), *snapshot_id)),
        _ => None,
    });
    refs.collect()
}

async fn two_days() -> Lab {
    let mut lab = Lab::new(FormatVersion::V2);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(2, "b", 20)]).await;
    lab
}

/// Puts a replacement of the second day on the branch `shadow`, which begins at the head of main.
async fn on_a_branch(lab: &mut Lab, id: i64) {
    let draft = lab.replacing(id, &["b"], vec![lab.file(2, "s", 5)]).await;
    let draft = Draft { branch: "shadow".into(), ..draft };
    let tip = lab.tip(MAIN_BRANCH).await;
    let assembled = Desk::new().assemble_on(&lab.manifests, lab.head(&tip), &draft).await.unwrap();
    lab.change(&assembled);
}

#[tokio::test]
async fn the_first_commit_asks_that_there_is_none_and_later_ones_that_the_head_is_the_parent() {
    let mut lab = Lab::new(FormatVersion::V2);
    let first = lab.append(11, vec![lab.file(1, "a", 10)]).await;
    assert_eq!(asserted(&first.requirements), [("main".to_owned(), None)]);
    assert_eq!(first.snapshot.parent_snapshot_id(), None);
    let second = lab.append(12, vec![lab.file(1, "b", 10)]).await;
    assert_eq!(asserted(&second.requirements), [("main".to_owned(), Some(11))]);
    assert!(second.requirements.contains(&TableRequirement::UuidMatch { uuid: lab.metadata.uuid() }));
    assert!(second.requirements.contains(&TableRequirement::DefaultSpecIdMatch { default_spec_id: 0 }));
}

#[tokio::test]
async fn a_branch_begins_at_the_head_of_main_and_asks_nothing_of_main() {
    let mut lab = two_days().await;
    let draft = lab.replacing(21, &["b"], vec![lab.file(2, "s", 5)]).await;
    let draft = Draft { branch: "shadow".into(), ..draft };
    let tip = lab.tip(MAIN_BRANCH).await;
    let assembled = Desk::new().assemble_on(&lab.manifests, lab.head(&tip), &draft).await.unwrap();
    assert_eq!(assembled.snapshot.parent_snapshot_id(), Some(11));
    assert_eq!(asserted(&assembled.requirements), [("shadow".to_owned(), None)]);
    lab.change(&assembled);
    assert_eq!(lab.names(MAIN_BRANCH).await, ["a", "b"]);
    assert_eq!(lab.names("shadow").await, ["a", "s"]);
    assert_eq!(lab.metadata.current_snapshot_id(), Some(11));
}

#[tokio::test]
async fn columns_of_a_branch_are_not_yet_those_of_the_table() {
    let mut lab = two_days().await;
    let columns = schema(&[(1, "day"), (2, "amount"), (3, "note")]);
    let draft = Draft { branch: "shadow".into(), columns: Some(columns), ..lab.draft(21) };
    let tip = lab.tip(MAIN_BRANCH).await;
    let assembled = Desk::new().assemble_on(&lab.manifests, lab.head(&tip), &draft).await.unwrap();
    lab.change(&assembled);
    assert_eq!(assembled.snapshot.schema_id(), Some(1));
    assert!(lab.metadata.schema_by_id(1).is_some());
    assert_eq!(lab.metadata.current_schema_id(), 0);
}

#[tokio::test]
async fn a_branch_is_begun_anew_from_where_it_began() {
    let mut lab = two_days().await;
    on_a_branch(&mut lab, 21).await;
    let main = lab.tip(MAIN_BRANCH).await;
    let draft = Draft { branch: "shadow".into(), added: vec![lab.file(3, "t", 1)], ..lab.draft(22) };
    let again = Desk::new().assemble_on(&lab.manifests, lab.head(&main), &draft).await.unwrap();
    assert_eq!(again.snapshot.parent_snapshot_id(), Some(11));
    assert_eq!(asserted(&again.requirements), [("shadow".to_owned(), Some(21))]);
    lab.change(&again);
    assert_eq!(lab.names("shadow").await, ["a", "b", "t"]);
}

#[tokio::test]
async fn a_branch_becomes_main_with_a_snapshot_of_the_same_files_that_says_so() {
    let mut lab = two_days().await;
    on_a_branch(&mut lab, 21).await;
    let (main, branch) = (lab.tip(MAIN_BRANCH).await, lab.tip("shadow").await);
    let mut draft = Draft { refs: vec![RefChange::Remove { name: "shadow".into() }], ..lab.draft(22) };
    draft.summary.insert("published-wap-id".into(), "run".into());
    let forward = Desk::new().forward_on(lab.head(&main), lab.head(&branch), &draft).await.unwrap();
    let refs = asserted(&forward.requirements);
    assert_eq!(refs, [("main".to_owned(), Some(11)), ("shadow".to_owned(), Some(21))]);
    lab.change(&forward);
    assert_eq!(lab.names(MAIN_BRANCH).await, ["a", "s"]);
    assert!(lab.metadata.snapshot_for_ref("shadow").is_none());
    let head = lab.metadata.current_snapshot().unwrap();
    assert_eq!((head.snapshot_id(), head.parent_snapshot_id()), (22, Some(21)));
    let told = &head.summary().additional_properties;
    assert_eq!((told["published-wap-id"].as_str(), told["total-records"].as_str()), ("run", "15"));
    assert!(!told.contains_key("added-records"), "the snapshots of the branch tell what came");
    assert_eq!(lab.entries().await["s"], (21, 2, None));
}

#[tokio::test]
async fn a_branch_that_main_has_left_behind_does_not_become_main() {
    let mut lab = two_days().await;
    on_a_branch(&mut lab, 21).await;
    lab.append(12, vec![lab.file(3, "c", 1)]).await;
    let (main, branch) = (lab.tip(MAIN_BRANCH).await, lab.tip("shadow").await);
    let draft = Draft { refs: vec![RefChange::Remove { name: "shadow".into() }], ..lab.draft(22) };
    assert!(Desk::new().forward_on(lab.head(&main), lab.head(&branch), &draft).await.is_err());
}

#[tokio::test]
async fn main_goes_back_to_a_snapshot_with_one_on_top_that_says_so() {
    for format in [FormatVersion::V1, FormatVersion::V2, FormatVersion::V3] {
        let mut lab = Lab::new(format);
        lab.append(11, vec![lab.file(1, "a", 10), lab.file(2, "b", 20)]).await;
        let draft = lab.replacing(12, &["a"], vec![lab.file(1, "n", 1)]).await;
        lab.commit(&draft).await;
        lab.append(13, vec![lab.file(3, "c", 5)]).await;
        let then = lab.at(lab.metadata.snapshot_by_id(11).cloned()).await;
        let head = lab.head(&then);
        let back = Desk::new().same_files(Head { ..head }, &lab.draft(14)).await.unwrap();
        assert_eq!(asserted(&back.requirements), [("main".to_owned(), Some(13))]);
        let before = lab.metadata.current_snapshot().unwrap().timestamp_ms();
        lab.change(&back);
        assert_eq!(lab.names(MAIN_BRANCH).await, ["a", "b"]);
        let head = lab.metadata.current_snapshot().unwrap();
        assert_eq!((head.snapshot_id(), head.parent_snapshot_id()), (14, Some(11)));
        assert_eq!(head.summary().additional_properties["total-records"], "30");
        assert!(head.timestamp_ms() > before, "the order of snapshots is that of their times");
        assert_eq!(head.sequence_number(), if format == FormatVersion::V1 { 0 } else { 4 });
    }
}

#[tokio::test]
async fn snapshots_that_follow_each_other_have_growing_times() {
    let mut lab = Lab::new(FormatVersion::V1);
    let mut before = 0;
    for id in 1..6 {
        let time = lab.append(id, vec![lab.file(id, &format!("f{id}"), 1)]).await.snapshot.timestamp_ms();
        assert!(time > before);
        before = time;
    }
}

#[tokio::test]
async fn tags_are_set_and_removed_in_the_change_of_the_snapshot() {
    let mut lab = two_days().await;
    let tag = RefChange::Tag { name: "kept".into(), snapshot: 11 };
    lab.commit(&Draft { refs: vec![tag], ..lab.draft(12) }).await;
    assert_eq!(lab.metadata.snapshot_for_ref("kept").unwrap().snapshot_id(), 11);
    let gone = ["kept", "unknown"].map(|name| RefChange::Remove { name: name.into() });
    let last = lab.commit(&Draft { refs: gone.into(), ..lab.draft(13) }).await;
    assert!(lab.metadata.snapshot_for_ref("kept").is_none());
    assert_eq!(asserted(&last.requirements), [("main".to_owned(), Some(12)), ("kept".to_owned(), Some(11))]);
}

#[tokio::test]
async fn refs_change_without_a_snapshot_and_only_where_they_are_not_so_already() {
    let mut lab = two_days().await;
    let tag = [RefChange::Tag { name: "held".into(), snapshot: 11 }];
    let (requirements, updates) = change_refs(&lab.metadata, &tag).unwrap();
    assert_eq!(asserted(&requirements), []);
    let mut builder = lab.builder_of();
    for update in updates {
        builder = update.apply(builder).unwrap();
    }
    lab.put(builder);
    assert_eq!(change_refs(&lab.metadata, &tag).unwrap().1, []);
    let gone = ["held", "unknown"].map(|name| RefChange::Remove { name: name.into() });
    let (requirements, updates) = change_refs(&lab.metadata, &gone).unwrap();
    assert_eq!((asserted(&requirements), updates.len()), (vec![("held".to_owned(), Some(11))], 1));
    let unknown = [RefChange::Tag { name: "held".into(), snapshot: 99 }];
    assert_eq!(change_refs(&lab.metadata, &unknown).unwrap_err().kind(), ErrorKind::State);
}

#[tokio::test]
async fn what_main_says_of_retention_stays() {
    let mut lab = two_days().await;
    let retention = SnapshotRetention::branch(Some(7), Some(1_000), None);
    let main = SnapshotReference::new(11, retention.clone());
    lab.put(lab.builder_of().set_ref(MAIN_BRANCH, main).unwrap());
    lab.append(12, vec![lab.file(3, "c", 1)]).await;
    let text = serde_json::to_value(lab.metadata.as_ref()).unwrap();
    let main: SnapshotReference = serde_json::from_value(text["refs"]["main"].clone()).unwrap();
    assert_eq!(main, SnapshotReference::new(12, retention));
}

#[tokio::test]
async fn a_commit_of_only_new_files_says_append() {
    let mut lab = two_days().await;
    let appended = lab.append(12, vec![lab.file(3, "c", 1)]).await;
    assert_eq!(appended.snapshot.summary().operation, Operation::Append);
}
