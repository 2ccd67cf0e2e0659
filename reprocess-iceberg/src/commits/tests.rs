use iceberg::spec::MAIN_BRANCH;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::ports::writer::Op;
use reprocess_lake::record::Entry;
use serde_json::{Value, json};

use super::*;

fn stamp(run: &str) -> StampId {
    let scope_digest = Scope::whole_table().digest();
    StampId { run: run.into(), job: "daily".into(), op: Op::Replace, scope_digest, generation: 1 }
}

fn commit(run: &str, snapshot: i64) -> Commit {
    let version = snapshot.to_string();
    Commit {
        version: version.as_str().into(),
        partitions: Base::new(version.as_str().into(), BTreeMap::new()),
        attempts: vec![(stamp(run), 1)],
        kept: None,
        recorded: false,
        order: 0,
    }
}

fn record(run: &str, snapshot: i64, token: Option<u64>) -> Record {
    let scope = Scope::key(PartitionKey::of("day", run)).unwrap();
    let entry = Entry { stamp: stamp(run), scope, token, made_by: Vec::new() };
    Record { commit: commit(run, snapshot), entries: vec![entry], took_back: Vec::new() }
}

/// A snapshot of somebody else, with its number as the sequence number.
fn of_others(id: i64, parent: Option<i64>) -> Value {
    let mut snapshot = json!({
        "snapshot-id": id, "sequence-number": id, "timestamp-ms": 1_700_000_000_000_i64 + id,
        "manifest-list": format!("/t/metadata/{id}.avro"), "summary": { "operation": "overwrite" }, "schema-id": 0,
    });
    if let Some(parent) = parent {
        snapshot["parent-snapshot-id"] = parent.into();
    }
    snapshot
}

fn of_ours(id: i64, parent: Option<i64>, record: &Record) -> Value {
    let mut snapshot = of_others(id, parent);
    snapshot["summary"][KEY] = serde_json::to_string(record).unwrap().into();
    snapshot
}

/// One snapshot, made under the run that is named by its letter.
fn ours(id: i64, parent: Option<i64>, run: &str) -> Value {
    of_ours(id, parent, &record(run, id, None))
}

fn metadata(head: i64, snapshots: &[Value]) -> TableMetadata {
    serde_json::from_value(json!({
        "format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "/t",
        "last-sequence-number": 99, "last-updated-ms": 1_700_000_001_000_i64, "last-column-id": 1,
        "schemas": [{ "type": "struct", "schema-id": 0, "fields": [
            { "id": 1, "name": "day", "required": false, "type": "string" },
        ] }],
        "current-schema-id": 0, "partition-specs": [{ "spec-id": 0, "fields": [] }], "default-spec-id": 0,
        "last-partition-id": 999, "properties": {}, "sort-orders": [{ "order-id": 0, "fields": [] }],
        "default-sort-order-id": 0, "current-snapshot-id": head, "snapshots": snapshots,
        "refs": { MAIN_BRANCH: { "type": "branch", "snapshot-id": head } },
    }))
    .unwrap()
}

/// The version that the commit said, or the word of what else the search came to.
fn search(metadata: &TableMetadata, run: &str, since: Option<i64>) -> String {
    let head = metadata.current_snapshot_id();
    match Commits::default().find_in(metadata, head, &stamp(run), since).unwrap() {
        Search::Found(commit) => commit.version.to_string(),
        Search::NotThere => "not there".to_owned(),
        Search::Expired => "expired".to_owned(),
    }
}

#[test]
fn a_commit_is_found_among_the_ancestors_of_main() {
    let table = metadata(3, &[ours(1, None, "a"), of_others(2, Some(1)), ours(3, Some(2), "c")]);
    assert_eq!(search(&table, "c", Some(1)), "3");
    assert_eq!(search(&table, "a", None), "1");
    assert_eq!(search(&table, "a", Some(3)), "1", "also by a base that was taken after it");
    assert_eq!(search(&table, "b", None), "not there");
}

#[test]
fn what_the_table_has_forgotten_is_not_said_to_be_absent() {
    let table = metadata(4, &[ours(3, Some(2), "c"), of_others(4, Some(3))]);
    assert_eq!(search(&table, "x", None), "expired");
    assert_eq!(search(&table, "x", Some(1)), "expired");
    assert_eq!(
        search(&table, "x", Some(2)),
        "not there",
        "the base is gone itself, and all after it is there"
    );
    assert_eq!(search(&table, "x", Some(3)), "not there");
    assert_eq!(search(&table, "c", Some(1)), "3");
}

#[test]
fn a_base_that_main_has_left_still_bounds_the_search() {
    // Main went from 2 over 3 back to 2, and on to 4; what came before 2 is forgotten.
    let table = metadata(4, &[of_others(2, Some(1)), ours(3, Some(2), "c"), of_others(4, Some(2))]);
    assert_eq!(search(&table, "x", Some(3)), "not there");
    assert_eq!(search(&table, "c", Some(2)), "3", "it was committed, whatever became of it");
}

#[test]
fn a_commit_that_was_taken_back_is_told_by_the_one_that_did() {
    let first = metadata(3, &[of_others(1, None), ours(2, Some(1), "b"), ours(3, Some(2), "c")]);
    let took_back = left_behind(&first, Some(3), 1).unwrap();
    let versions: Vec<_> = took_back.iter().map(|took| took.commit.version.as_str()).collect();
    assert_eq!(versions, ["3", "2"]);
    let undo = Record { took_back, ..record("undo", 4, None) };
    let second = metadata(4, &[of_others(1, None), of_ours(4, Some(1), &undo)]);
    assert_eq!(search(&second, "b", Some(1)), "2");
    assert_eq!(search(&second, "undo", Some(1)), "4");
    // Taken back itself, it leaves behind what is not in the history again.
    let all = [of_others(1, None), ours(2, Some(1), "b"), of_ours(4, Some(1), &undo)];
    let left = left_behind(&metadata(4, &all), Some(4), 2).unwrap();
    assert_eq!(left.iter().map(|took| took.commit.version.as_str()).collect::<Vec<_>>(), ["4", "3"]);
}

#[test]
fn snapshots_are_learned_as_they_come_and_forgotten_with_their_table() {
    let commits = Commits::default();
    let find = |table: &TableMetadata, run: &str| {
        let found = commits.find_in(table, table.current_snapshot_id(), &stamp(run), None).unwrap();
        matches!(found, Search::Found(_))
    };
    let first = metadata(1, &[ours(1, None, "a")]);
    let second = metadata(2, &[ours(1, None, "a"), ours(2, Some(1), "b")]);
    assert!(find(&first, "a") && !find(&first, "b") && find(&second, "b"));
    let mut again = serde_json::to_value(metadata(1, &[ours(1, None, "c")])).unwrap();
    again["table-uuid"] = "11111111-03fe-4693-9a96-a0705ddf69c1".into();
    let again: TableMetadata = serde_json::from_value(again).unwrap();
    assert!(find(&again, "c") && !find(&again, "a"));
}

#[test]
fn a_later_lease_is_one_with_a_greater_token_over_the_same_rows() {
    let table = metadata(2, &[of_others(1, None), of_ours(2, Some(1), &record("a", 2, Some(7)))]);
    let monday = Scope::key(PartitionKey::of("day", "a")).unwrap();
    let tuesday = Scope::key(PartitionKey::of("day", "b")).unwrap();
    let later = |scope: &Scope, since, token| later_lease_in(&table, Some(2), scope, since, token).unwrap();
    assert!(later(&monday, Some(1), 6));
    assert!(!later(&monday, Some(1), 7), "its own");
    assert!(!later(&tuesday, Some(1), 6));
    assert!(!later(&monday, Some(2), 6), "from before the base");
}

#[test]
fn a_record_that_cannot_be_read_is_not_passed_over() {
    let mut snapshot = of_others(1, None);
    snapshot["summary"][KEY] = "{}".into();
    let table = metadata(1, &[snapshot]);
    let error = Commits::default().find_in(&table, Some(1), &stamp("a"), None).unwrap_err();
    assert_eq!(error.kind(), reprocess_core::ErrorKind::Corrupt);
}
