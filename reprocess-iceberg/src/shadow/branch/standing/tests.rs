use iceberg::spec::MAIN_BRANCH;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{Op, StampId};
use serde_json::{Value, json};

use super::*;

fn id(run: &str, attempt: u32) -> StagedId {
    let scope_digest = Scope::whole_table().digest();
    let stamp =
        StampId { run: run.into(), job: "daily".into(), op: Op::Replace, scope_digest, generation: 1 };
    StagedId { stamp, attempt }
}

fn of(run: &str) -> Mark {
    Mark { id: id(run, 1), digest: "digest".into(), files: "files".into() }
}

fn snapshot(number: i64, parent: Option<i64>, shows: Option<(&str, &[Mark])>) -> Value {
    let mut snapshot = json!({
        "snapshot-id": number, "sequence-number": number, "timestamp-ms": 1_700_000_000_000_i64 + number,
        "manifest-list": format!("/t/metadata/{number}.avro"), "summary": { "operation": "overwrite" }, "schema-id": 0,
    });
    if let Some(parent) = parent {
        snapshot["parent-snapshot-id"] = parent.into();
    }
    for (key, value) in shows.into_iter().flat_map(|(of, marks)| says(&of.into(), marks).unwrap()) {
        snapshot["summary"][key] = value.into();
    }
    snapshot
}

fn metadata(snapshots: &[Value], refs: &[(&str, i64)]) -> TableMetadata {
    let main = refs.iter().find(|(name, _)| *name == MAIN_BRANCH).map(|(_, id)| *id);
    let refs = refs.iter().map(|(name, id)| {
        let kind = if name.contains("held") { "tag" } else { "branch" };
        ((*name).to_owned(), json!({ "type": kind, "snapshot-id": id }))
    });
    serde_json::from_value(json!({
        "format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "/t",
        "last-sequence-number": 99, "last-updated-ms": 1_700_000_001_000_i64, "last-column-id": 1,
        "schemas": [{ "type": "struct", "schema-id": 0, "fields": [
            { "id": 1, "name": "day", "required": false, "type": "string" },
        ] }],
        "current-schema-id": 0, "partition-specs": [{ "spec-id": 0, "fields": [] }], "default-spec-id": 0,
        "last-partition-id": 999, "properties": {}, "sort-orders": [{ "order-id": 0, "fields": [] }],
        "default-sort-order-id": 0, "current-snapshot-id": main, "snapshots": snapshots,
        "refs": refs.collect::<serde_json::Map<_, _>>(),
    }))
    .unwrap()
}

fn shown_of(metadata: &TableMetadata) -> (Option<Option<i64>>, Vec<Mark>) {
    let shown = shown(metadata, &"fix".into()).unwrap();
    (shown.fork, shown.marks)
}

#[test]
fn a_branch_shows_what_its_snapshots_say_from_where_it_left_main() {
    let all = [
        snapshot(1, None, None),
        snapshot(2, Some(1), Some(("fix", &[of("a"), of("b")]))),
        snapshot(3, Some(2), Some(("fix", &[of("c")]))),
    ];
    let table = metadata(&all, &[("main", 1), ("reprocess-fix", 3)]);
    assert_eq!(shown_of(&table), (Some(Some(1)), vec![of("a"), of("b"), of("c")]));
    assert!(shown(&table, &"other".into()).is_none());
    let shown = shown(&table, &"fix".into()).unwrap();
    assert!(shown.shows_just(&[of("c"), of("a"), of("b")]));
    assert!(!shown.shows_just(&[of("a"), of("b")]));
    let again = Mark { files: "others".into(), ..of("c") };
    assert!(!shown.shows_just(&[of("a"), of("b"), again]), "a merge was computed again");
}

#[test]
fn a_branch_may_begin_before_there_is_anything() {
    let table = metadata(&[snapshot(2, None, Some(("fix", &[of("a")])))], &[("reprocess-fix", 2)]);
    assert_eq!(shown_of(&table), (Some(None), vec![of("a")]));
}

#[test]
fn where_a_branch_began_may_be_forgotten() {
    let table = metadata(&[snapshot(3, Some(2), Some(("fix", &[of("c")])))], &[("reprocess-fix", 3)]);
    assert_eq!(shown_of(&table), (None, vec![of("c")]));
}

#[test]
fn what_others_put_on_a_branch_is_not_ours() {
    let all = [
        snapshot(1, None, None),
        snapshot(2, Some(1), Some(("fix", &[of("a")]))),
        snapshot(3, Some(2), None),
        snapshot(4, Some(2), Some(("other", &[of("b")]))),
    ];
    for head in [3, 4] {
        let table = metadata(&all, &[("main", 1), ("reprocess-fix", head)]);
        assert_eq!(shown_of(&table), (Some(Some(head)), vec![]));
        assert_eq!(abandoned(&table, &shown(&table, &"fix".into()).unwrap()).unwrap(), [0_i64; 0]);
    }
}

#[test]
fn snapshots_that_another_branch_or_a_tag_reaches_are_not_abandoned() {
    let all = [
        snapshot(1, None, None),
        snapshot(2, Some(1), Some(("fix", &[of("a")]))),
        snapshot(3, Some(2), Some(("fix", &[of("b")]))),
    ];
    let gone = |refs: &[(&str, i64)]| {
        let table = metadata(&all, refs);
        abandoned(&table, &shown(&table, &"fix".into()).unwrap()).unwrap()
    };
    assert_eq!(gone(&[("main", 1), ("reprocess-fix", 3)]), [3, 2]);
    assert_eq!(gone(&[("main", 1), ("reprocess-fix", 3), ("held-by-a-person", 2)]), [3]);
    assert_eq!(gone(&[("main", 3), ("reprocess-fix", 3)]), [0_i64; 0]);
}

#[test]
fn the_name_of_a_branch_is_safe_and_no_tag_of_ours() {
    assert_eq!(name(&"fix-2026.10_a".into()), "reprocess-fix-2026.10_a");
    for odd in ["a b", "a/b", "", "é", "kept-1", "held-1", &"x".repeat(65)] {
        let name = name(&odd.into());
        assert_eq!(name.len(), "reprocess-".len() + 32, "{odd}");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{odd}");
    }
}
