use serde_json::{Value, json};

use super::*;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// A table whose snapshots 1, 2 and 3 follow each other, a day apart, and whose snapshot 9 nothing leads to.
pub(in crate::reader) fn table(version: u8, properties: &Value, refs: &Value) -> TableMetadata {
    let snapshot = |id: i64, parent: Option<i64>| {
        let mut snapshot = json!({
            "snapshot-id": id, "sequence-number": id, "timestamp-ms": id * DAY_MS,
            "manifest-list": "list.avro", "schema-id": 0, "summary": {"operation": "append"},
        });
        if let (Some(parent), Some(snapshot)) = (parent, snapshot.as_object_mut()) {
            snapshot.insert("parent-snapshot-id".to_owned(), json!(parent));
        }
        snapshot
    };
    let columns = json!({"type": "struct", "schema-id": 0, "fields": []});
    let metadata = json!({
        "format-version": version,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "/lake/orders",
        "last-sequence-number": 9,
        "last-updated-ms": 9 * DAY_MS,
        "last-column-id": 0,
        "schema": columns,
        "schemas": [columns],
        "current-schema-id": 0,
        "partition-spec": [],
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": properties,
        "current-snapshot-id": 3,
        "snapshots": [snapshot(1, None), snapshot(2, Some(1)), snapshot(3, Some(2)), snapshot(9, Some(1))],
        "refs": refs,
    });
    serde_json::from_value(metadata).unwrap()
}

fn days(metadata: &TableMetadata, snapshot: i64) -> Option<i64> {
    let snapshot = metadata.snapshot_by_id(snapshot).unwrap();
    until(metadata, snapshot).unwrap().map(|at| at.timestamp_millis() / DAY_MS)
}

#[test]
fn what_is_not_the_newest_stays_for_five_days_where_the_table_says_nothing() {
    for version in [1, 2] {
        let main = table(version, &json!({}), &json!({"main": {"snapshot-id": 3, "type": "branch"}}));
        assert_eq!([1, 2, 3, 9].map(|id| days(&main, id)), [Some(6), Some(7), None, Some(14)], "{version}");
    }
}

#[test]
fn the_settings_of_the_table_and_of_its_branches_count() {
    let main = json!({"main": {"snapshot-id": 3, "type": "branch"}});
    let aged = table(2, &json!({"history.expire.max-snapshot-age-ms": "86400000"}), &main);
    assert_eq!([1, 2, 3, 9].map(|id| days(&aged, id)), [Some(2), Some(3), None, Some(10)]);
    let kept = table(2, &json!({"history.expire.min-snapshots-to-keep": "2"}), &main);
    assert_eq!([1, 2, 3].map(|id| days(&kept, id)), [Some(6), None, None]);
    let never = table(2, &json!({"gc.enabled": "false"}), &main);
    assert_eq!([1, 2, 3, 9].map(|id| days(&never, id)), [None; 4]);
    let branch = json!({"main": {
        "snapshot-id": 3, "type": "branch", "min-snapshots-to-keep": 2, "max-snapshot-age-ms": 10 * DAY_MS,
    }});
    assert_eq!([1, 2, 3].map(|id| days(&table(2, &json!({}), &branch), id)), [Some(11), None, None]);
}

#[test]
fn tags_and_other_branches_keep_what_they_lead_to() {
    let of = |other: Value| {
        let refs = json!({"main": {"snapshot-id": 3, "type": "branch"}, "other": other});
        table(2, &json!({}), &refs)
    };
    let tag = of(json!({"snapshot-id": 1, "type": "tag"}));
    assert_eq!([1, 2].map(|id| days(&tag, id)), [None, Some(7)]);
    let held = of(json!({"snapshot-id": 1, "type": "tag", "max-ref-age-ms": i64::MAX}));
    assert_eq!(days(&held, 1), None);
    let tag = of(json!({"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 20 * DAY_MS}));
    assert_eq!(days(&tag, 1), Some(21));
    let branch = of(json!({"snapshot-id": 9, "type": "branch", "max-ref-age-ms": 30 * DAY_MS}));
    // The first one is on that branch, too, and no younger there.
    assert_eq!([1, 2, 9].map(|id| days(&branch, id)), [Some(6), Some(7), Some(39)]);
}
