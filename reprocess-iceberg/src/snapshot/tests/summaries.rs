use std::collections::BTreeMap;

use iceberg::spec::{FormatVersion, Operation, Summary};

use super::super::Draft;
use super::super::summary::Changes;
use super::lab::Lab;

const TOTALS: [&str; 6] =
    ["data-files", "records", "files-size", "delete-files", "position-deletes", "equality-deletes"];

fn told(summary: &Summary) -> BTreeMap<&str, &str> {
    summary.additional_properties.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

fn totals(summary: &Summary) -> Vec<&str> {
    TOTALS.iter().map(|key| summary.additional_properties[&format!("total-{key}")].as_str()).collect()
}

#[tokio::test]
async fn totals_are_what_was_there_and_what_came_without_what_went() {
    for format in [FormatVersion::V1, FormatVersion::V2, FormatVersion::V3] {
        let mut lab = Lab::new(format);
        let first =
            lab.append(11, vec![lab.file(1, "a", 10), lab.file(2, "b", 20), lab.file(3, "c", 30)]).await;
        assert_eq!(totals(first.snapshot.summary()), ["3", "60", "600", "0", "0", "0"]);
        let draft = lab.replacing(12, &["b", "c"], vec![lab.file(2, "d", 5)]).await;
        let second = lab.commit(&draft).await;
        assert_eq!(second.snapshot.summary().operation, Operation::Overwrite);
        assert_eq!(totals(second.snapshot.summary()), ["2", "15", "150", "0", "0", "0"]);
        let second = told(second.snapshot.summary());
        let counts = ["added-data-files", "added-records", "added-files-size"].map(|key| second[key]);
        assert_eq!(counts, ["1", "5", "50"]);
        let counts = ["deleted-data-files", "deleted-records", "removed-files-size"].map(|key| second[key]);
        assert_eq!(counts, ["2", "50", "500"]);
        assert_eq!(second["changed-partition-count"], "2");
        assert!(!second.contains_key("removed-delete-files"), "what is nothing is not told");
        assert!(
            second.keys().all(|key| !key.starts_with("partition")),
            "nor by partition, unless it is asked for"
        );
    }
}

#[tokio::test]
async fn files_of_deletes_are_counted_apart() {
    let mut lab = Lab::new(FormatVersion::V2);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(2, "b", 20)]).await;
    lab.append_deletes(12, &[lab.deletes(1, "x", 2), lab.deletes(2, "y", 3)]).await;
    let current = lab.metadata.current_snapshot().unwrap();
    assert_eq!(totals(current.summary()), ["2", "30", "350", "2", "5", "0"]);
    let draft = lab.replacing(13, &["b", "y"], vec![]).await;
    let third = lab.commit(&draft).await;
    assert_eq!(totals(third.snapshot.summary()), ["1", "10", "120", "1", "2", "0"]);
    assert_eq!(told(third.snapshot.summary())["removed-position-delete-files"], "1");
}

#[tokio::test]
async fn a_total_that_the_parent_does_not_tell_or_tells_wrong_stays_out() {
    let lab = Lab::new(FormatVersion::V2);
    let changes = Changes::of(
        &Draft { added: vec![lab.file(1, "a", 10)], ..lab.draft(11) },
        lab.metadata.current_schema(),
    );
    let parent = |told: &[(&str, &str)]| Summary {
        operation: Operation::Append,
        additional_properties: told.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
    };
    let parent = parent(&[("total-records", "7"), ("total-data-files", "many")]);
    let mut draft = lab.draft(11);
    draft.summary.insert("total-files-size".into(), "1".into());
    let summary = changes.summary(&draft, &lab.metadata, Some(&parent));
    let told = told(&summary);
    assert_eq!(told["total-records"], "17");
    assert!(!told.contains_key("total-data-files"));
    assert!(!told.contains_key("total-files-size"), "nor does it come from elsewhere");
}

#[tokio::test]
async fn a_total_that_would_fall_below_nothing_stays_out() {
    let mut lab = Lab::new(FormatVersion::V2);
    lab.append(11, vec![lab.file(1, "a", 10)]).await;
    let draft = lab.replacing(12, &["a"], vec![]).await;
    let parent = Summary {
        operation: Operation::Append,
        additional_properties: [("total-records".to_owned(), "9".to_owned())].into_iter().collect(),
    };
    let summary =
        Changes::of(&draft, lab.metadata.current_schema()).summary(&draft, &lab.metadata, Some(&parent));
    assert!(!told(&summary).contains_key("total-records"));
}

#[tokio::test]
async fn partitions_are_told_one_by_one_up_to_the_limit_of_the_table() {
    let mut lab = Lab::with(FormatVersion::V2, &[("write.summary.partition-limit", "2")]);
    let three = lab.append(11, vec![lab.file(1, "a", 10), lab.file(2, "b", 20), lab.file(3, "c", 30)]).await;
    assert!(!told(three.snapshot.summary()).contains_key("partition-summaries-included"));
    let draft = lab.replacing(12, &["b"], vec![lab.file(2, "d", 5), lab.file(4, "e", 1)]).await;
    let two = lab.commit(&draft).await;
    let two = told(two.snapshot.summary());
    assert_eq!(two["partition-summaries-included"], "true");
    assert_eq!(two["partitions.day=4"], "added-data-files=1,added-records=1,added-files-size=10");
    assert_eq!(
        two["partitions.day=2"],
        "added-data-files=1,added-records=5,added-files-size=50,\
         deleted-data-files=1,deleted-records=20,removed-files-size=200"
    );
}

#[tokio::test]
async fn what_is_counted_goes_before_what_the_draft_says() {
    let lab = Lab::new(FormatVersion::V2);
    let mut draft = Draft { added: vec![lab.file(1, "a", 10)], ..lab.draft(11) };
    draft.summary = [("added-records", "99"), ("reprocess", "{}")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let summary = Changes::of(&draft, lab.metadata.current_schema()).summary(&draft, &lab.metadata, None);
    let told = told(&summary);
    assert_eq!((told["added-records"], told["reprocess"]), ("10", "{}"));
}
