use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::Field;
use datafusion::datasource::MemTable;
use reprocess_core::ErrorKind;

use super::*;
use crate::testing::lines_of;

/// Key, amount, when, owner.
type Row<'a> = (Option<i64>, Option<i64>, Option<i64>, Option<&'a str>);

fn columns() -> SchemaRef {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    let integer = || DataType::Int64;
    Arc::new(Schema::new(vec![
        field("id", integer()),
        field("Amount \"now\"", integer()),
        field("seen", integer()),
        field("owner", DataType::Utf8),
    ]))
}

fn batch(rows: &[Row<'_>]) -> RecordBatch {
    let integers = |of: fn(&Row<'_>) -> Option<i64>| Arc::new(rows.iter().map(of).collect::<Int64Array>());
    let owner: ArrayRef = Arc::new(rows.iter().map(|row| row.3).collect::<StringArray>());
    let arrays: Vec<ArrayRef> =
        vec![integers(|row| row.0), integers(|row| row.1), integers(|row| row.2), owner];
    RecordBatch::try_new(columns(), arrays).unwrap()
}

fn table(batches: Vec<RecordBatch>) -> Arc<dyn TableProvider> {
    let schema = batches.first().map_or_else(columns, RecordBatch::schema);
    Arc::new(MemTable::try_new(schema, vec![batches]).unwrap())
}

/// Files of rows, with their names.
fn files(files: &[(&str, &[Row<'_>])]) -> Arc<dyn TableProvider> {
    let with_name = |(name, rows): &(&str, &[Row<'_>])| {
        let rows = batch(rows);
        let names: ArrayRef = Arc::new(StringArray::from(vec![*name; rows.num_rows()]));
        let (columns, name) = (columns(), Arc::new(Field::new(FILE, DataType::Utf8, false)));
        let fields = columns.fields().iter().cloned().chain([name]);
        let schema = Schema::new(fields.collect::<Vec<_>>());
        RecordBatch::try_new(Arc::new(schema), rows.columns().iter().cloned().chain([names]).collect())
            .unwrap()
    };
    table(files.iter().map(with_name).collect())
}

fn by_id() -> MergeKeys {
    MergeKeys { keys: vec!["id".to_owned()], newer: None, delete_vanished: None }
}

fn newer() -> MergeKeys {
    MergeKeys { newer: Some("seen".to_owned()), ..by_id() }
}

fn owned_by(owner: Value) -> MergeKeys {
    MergeKeys { delete_vanished: Some([("owner".to_owned(), owner)].into()), ..by_id() }
}

/// What becomes of files: which are written again, and the rows that are written.
async fn merged(
    by: &MergeKeys,
    there: &[(&str, &[Row<'_>])],
    incoming: &[Row<'_>],
) -> (Vec<String>, Vec<String>) {
    let (session, columns) = (SessionContext::new(), columns());
    let mut answers = Vec::new();
    for spills in [false, true] {
        let merge = Merge::new(&session, by, &columns, table(vec![batch(incoming)]), spills).unwrap();
        merge.check_keys().await.unwrap();
        let mut touched = BTreeSet::new();
        if !there.is_empty() {
            merge.there(files(there)).unwrap();
            touched = merge.touched().await.unwrap();
        }
        let again: Vec<_> = there.iter().filter(|(name, _)| touched.contains(*name)).copied().collect();
        if !again.is_empty() {
            merge.again(files(&again)).unwrap();
        }
        let mut rows = lines_of(merge.staying(again.is_empty()).await.unwrap()).await;
        rows.extend(lines_of(merge.coming(there.is_empty()).await.unwrap()).await);
        answers.push((touched.into_iter().collect(), rows));
    }
    assert_eq!(answers.first(), answers.last(), "however the join is made");
    answers.remove(0)
}

const A: Option<&str> = Some("a");

#[tokio::test]
async fn only_files_in_which_a_row_changes_are_written_again() {
    let there: [(&str, &[Row<'_>]); 3] = [
        ("f1", &[(Some(1), Some(10), None, A), (Some(2), Some(20), None, A)]),
        ("f2", &[(Some(3), None, None, A)]),
        ("f3", &[(None, Some(40), None, A)]),
    ];
    let incoming = [(Some(2), Some(21), None, A), (Some(3), None, None, A), (Some(4), Some(40), None, None)];
    let (touched, rows) = merged(&by_id(), &there, &incoming).await;
    assert_eq!(touched, ["f1"]);
    assert_eq!(rows, ["1 10 - a", "2 21 - a", "4 40 - -"], "3 is the same, NULL meets nothing");
}

#[tokio::test]
async fn a_value_and_null_differ() {
    let there: [(&str, &[Row<'_>]); 1] = [("f1", &[(Some(1), None, None, A)])];
    assert_eq!(merged(&by_id(), &there, &[(Some(1), Some(0), None, A)]).await.1, ["1 0 - a"]);
    assert_eq!(merged(&by_id(), &there, &[(Some(1), None, None, None)]).await.1, ["1 - - -"]);
    assert!(merged(&by_id(), &there, &[(Some(1), None, None, A)]).await.0.is_empty());
}

#[tokio::test]
async fn an_older_or_equally_old_row_takes_no_place() {
    let there: [(&str, &[Row<'_>]); 1] = [(
        "f1",
        &[
            (Some(1), Some(10), Some(5), A),
            (Some(2), Some(20), Some(5), A),
            (Some(3), Some(30), Some(5), A),
            (Some(4), Some(40), None, A),
            (Some(5), Some(50), Some(5), A),
            (Some(6), Some(60), None, A),
        ],
    )];
    let incoming = [
        (Some(1), Some(11), Some(4), A),
        (Some(2), Some(21), Some(5), A),
        (Some(3), Some(31), Some(6), A),
        (Some(4), Some(41), Some(1), A),
        (Some(5), Some(51), None, A),
        (Some(6), Some(61), None, A),
    ];
    let (_, rows) = merged(&newer(), &there, &incoming).await;
    assert_eq!(rows, ["1 10 5 a", "2 20 5 a", "5 50 5 a", "6 60 - a", "3 31 6 a", "4 41 1 a"]);
}

/// A key that is there twice, once older: the incoming row stays out as long as one is not older, and what it beats goes.
#[tokio::test]
async fn of_a_key_that_is_there_twice_none_may_be_newer() {
    let there: [(&str, &[Row<'_>]); 2] =
        [("f1", &[(Some(1), Some(10), Some(1), A)]), ("f2", &[(Some(1), Some(20), Some(9), A)])];
    let (touched, rows) = merged(&newer(), &there, &[(Some(1), Some(15), Some(5), A)]).await;
    assert_eq!((touched, rows), (vec!["f1".to_owned()], vec![]));
    let (touched, rows) = merged(&by_id(), &there, &[(Some(1), Some(15), Some(5), A)]).await;
    assert_eq!((touched.len(), rows), (2, vec!["1 15 5 a".to_owned()]));
}

#[tokio::test]
async fn rows_of_the_owner_whose_key_vanished_go() {
    let there: [(&str, &[Row<'_>]); 3] = [
        ("f1", &[(Some(1), Some(10), None, A), (Some(2), Some(20), None, Some("b"))]),
        ("f2", &[(Some(3), Some(30), None, None), (Some(4), Some(40), None, Some("b"))]),
        ("f3", &[(Some(5), Some(50), None, A)]),
    ];
    let incoming = [(Some(5), Some(50), None, A), (Some(6), Some(60), None, A)];
    let (touched, rows) = merged(&owned_by("a".into()), &there, &incoming).await;
    assert_eq!((touched, rows), (vec!["f1".to_owned()], vec!["2 20 - b".to_owned(), "6 60 - a".to_owned()]));
    let (touched, rows) = merged(&owned_by(Value::Null), &there, &incoming).await;
    assert_eq!((touched, rows), (vec!["f2".to_owned()], vec!["4 40 - b".to_owned(), "6 60 - a".to_owned()]));
    let everybody = MergeKeys { delete_vanished: Some(BTreeMap::new()), ..by_id() };
    let (touched, rows) = merged(&everybody, &there, &[]).await;
    assert_eq!((touched.len(), rows.len()), (3, 0));
}

#[tokio::test]
async fn where_nothing_is_there_all_rows_come() {
    let (touched, rows) = merged(&by_id(), &[], &[(Some(1), None, None, A)]).await;
    assert_eq!((touched, rows), (vec![], vec!["1 - - a".to_owned()]));
}

#[tokio::test]
async fn columns_that_files_lack_are_null() {
    let (session, columns, by) = (SessionContext::new(), columns(), by_id());
    let incoming = table(vec![batch(&[(Some(1), None, None, A), (Some(2), None, None, A)])]);
    let merge = Merge::new(&session, &by, &columns, incoming, false).unwrap();
    let there = files(&[("f1", &[(Some(1), None, None, A), (Some(3), None, None, A)])]);
    let narrow = || {
        let frame = SessionContext::new().read_table(Arc::clone(&there)).unwrap();
        frame.select_columns(&["id", FILE]).unwrap().into_view()
    };
    merge.there(narrow()).unwrap();
    assert_eq!(merge.touched().await.unwrap(), BTreeSet::from(["f1".to_owned()]));
    merge.again(narrow()).unwrap();
    assert_eq!(lines_of(merge.staying(false).await.unwrap()).await, ["3 - - -"]);
    assert_eq!(lines_of(merge.coming(false).await.unwrap()).await, ["1 - - a", "2 - - a"]);
}

#[tokio::test]
async fn keys_that_are_null_or_repeated_are_named() {
    let (session, columns, by) = (SessionContext::new(), columns(), by_id());
    for (rows, message) in [
        (vec![(None, None, None, A), (None, None, None, A)], "merge key `id` is NULL in 2 rows"),
        (
            vec![(Some(7), None, None, A), (Some(7), Some(1), None, A)],
            "1 merge key is repeated: id=7 (2 rows)",
        ),
    ] {
        let merge = Merge::new(&session, &by, &columns, table(vec![batch(&rows)]), false).unwrap();
        let error = merge.check_keys().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[tokio::test]
async fn the_ends_of_the_keys_are_told_unless_any_file_can_be_touched() {
    let (session, columns) = (SessionContext::new(), columns());
    let ends = async |by: MergeKeys, rows: &[Row<'_>]| {
        let merge = Merge::new(&session, &by, &columns, table(vec![batch(rows)]), false).unwrap();
        merge.ends().await.unwrap()
    };
    let two = MergeKeys { keys: vec!["owner".to_owned(), "id".to_owned()], ..by_id() };
    let rows = [(Some(3), None, None, Some("b")), (Some(-1), None, None, A)];
    let integer = |i| ScalarValue::Int64(Some(i));
    let found = ends(two, &rows).await;
    assert_eq!(found.get("id"), Some(&(integer(-1), integer(3))));
    assert_eq!(found.get("owner"), Some(&(ScalarValue::from("a"), ScalarValue::from("b"))));
    assert!(ends(by_id(), &[]).await.is_empty());
    assert!(ends(owned_by("a".into()), &rows).await.is_empty());
}

#[test]
fn columns_that_are_not_there_are_refused() {
    let columns = columns();
    check(&owned_by("a".into()), &columns).unwrap();
    let none = MergeKeys { keys: vec![], ..by_id() };
    let other = MergeKeys { newer: Some("later".to_owned()), ..by_id() };
    for (by, word) in [(none, "needs the columns"), (other, "`later`")] {
        let error = check(&by, &columns).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn incoming_rows_are_larger_in_memory_than_in_their_files() {
    assert!(spills(1 << 20, 1 << 20) && !spills(1 << 20, 1 << 24) && spills(u64::MAX, 1 << 24));
}
