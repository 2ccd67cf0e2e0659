//! Rows that are deleted.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int32Array, Int64Array, StringArray};
use iceberg::spec::PrimitiveType;
use reprocess_core::ErrorKind;

use super::{About, Lake, Named, live, optional, schema};

/// Ids of the columns of a file of positions.
const PATH: i32 = 2_147_483_546;
const POSITION: i32 = 2_147_483_545;

fn ints(values: &[Option<i32>]) -> ArrayRef {
    Arc::new(Int32Array::from(values.to_vec()))
}

fn numbers(values: std::ops::Range<i32>) -> ArrayRef {
    Arc::new(Int32Array::from_iter_values(values))
}

fn positions(lake: &Lake, name: &str, gone: &[(&str, i64)]) -> Arc<Named> {
    let paths: ArrayRef =
        Arc::new(StringArray::from_iter_values(gone.iter().map(|(file, _)| lake.path(file))));
    let places: ArrayRef = Arc::new(Int64Array::from_iter_values(gone.iter().map(|(_, place)| *place)));
    lake.write(name, &[(PATH, "file_path", paths), (POSITION, "pos", places)], &About::positions())
}

#[tokio::test]
async fn rows_are_deleted_by_their_places_across_batches_and_files() {
    let lake = Lake::new(vec![optional(1, "id", PrimitiveType::Int)]);
    let a = lake.write("a.parquet", &[(1, "id", numbers(0..20_000))], &About::data());
    let b = lake.write("b.parquet", &[(1, "id", numbers(0..4))], &About::data());
    let one = positions(&lake, "d1.parquet", &[("a.parquet", 0), ("a.parquet", 8_192), ("b.parquet", 3)]);
    // Not in order, one of them again, and one beyond the end.
    let two = positions(
        &lake,
        "d2.parquet",
        &[("a.parquet", 19_999), ("a.parquet", 8_191), ("a.parquet", 0), ("a.parquet", 30_000)],
    );
    let rows = lake.rows(&[live(&a, &[&one, &two]), live(&b, &[&one])]).await;
    let gone = [0, 8_191, 8_192, 19_999];
    let wanted = (0..20_000).filter(|id| !gone.contains(id)).chain(0..3);
    assert_eq!(rows, wanted.map(|id| id.to_string()).collect::<Vec<_>>());
    // A delete that does not apply to a file takes nothing out of it, whatever it says of the file.
    assert_eq!(lake.rows(&[live(&b, &[])]).await.len(), 4);
    // Nothing but the number of rows is asked.
    let nothing = lake.read(&[live(&a, &[&one, &two])], |_| false).await.unwrap();
    assert_eq!(nothing.len(), 19_996);
}

#[tokio::test]
async fn rows_are_deleted_by_their_values_and_null_is_a_value() {
    let lake = Lake::new(vec![
        optional(1, "id", PrimitiveType::Int),
        optional(2, "shop", PrimitiveType::Int),
        optional(3, "note", PrimitiveType::Int),
    ]);
    let columns = [
        (1, "id", ints(&[Some(1), Some(2), None, Some(4), None])),
        (2, "shop", ints(&[Some(9), Some(9), Some(9), None, None])),
    ];
    let file = lake.write("a.parquet", &columns, &About::data());
    let by_id =
        |name: &str, gone: &[Option<i32>]| lake.write(name, &[(1, "id", ints(gone))], &About::values(&[1]));
    for (gone, left) in [
        (
            vec![by_id("d1.parquet", &[Some(1)])],
            vec!["2|9|NULL", "NULL|9|NULL", "4|NULL|NULL", "NULL|NULL|NULL"],
        ),
        (vec![by_id("d2.parquet", &[None, Some(4)])], vec!["1|9|NULL", "2|9|NULL"]),
        // Both of them.
        (
            vec![by_id("d3.parquet", &[Some(1)]), by_id("d4.parquet", &[Some(2)])],
            vec!["NULL|9|NULL", "4|NULL|NULL", "NULL|NULL|NULL"],
        ),
        (
            vec![by_id("d5.parquet", &[])],
            vec!["1|9|NULL", "2|9|NULL", "NULL|9|NULL", "4|NULL|NULL", "NULL|NULL|NULL"],
        ),
    ] {
        assert_eq!(lake.rows(&[live(&file, &gone.iter().collect::<Vec<_>>())]).await, left);
    }
    // The column was added after the file was written, whose rows have NULL there.
    let columns = [(1, "id", ints(&[Some(1), Some(2)])), (3, "note", ints(&[Some(5), None]))];
    let by_both = lake.write("d6.parquet", &columns, &About::values(&[1, 3]));
    let left = lake.rows(&[live(&file, &[&by_both])]).await;
    assert_eq!(left, ["1|9|NULL", "NULL|9|NULL", "4|NULL|NULL", "NULL|NULL|NULL"]);
    let left = lake.read(&[live(&file, &[&by_both])], |name| name == "shop").await.unwrap();
    assert_eq!(left, ["9", "9", "NULL", "NULL"]);
}

#[tokio::test]
async fn a_delete_by_a_column_that_was_widened_or_dropped_since_still_applies() {
    let lake =
        Lake::new(vec![optional(1, "id", PrimitiveType::Long), optional(3, "code", PrimitiveType::Int)]);
    // Its name is that of another column now.
    let then = schema(vec![optional(1, "id", PrimitiveType::Int), optional(2, "code", PrimitiveType::Int)]);
    let columns = [(1, "id", numbers(1..4)), (2, "code", numbers(11..14))];
    let file = lake.write("a.parquet", &columns, &About { schema: Some(Arc::clone(&then)), ..About::data() });
    let about = |ids: &[i32]| About { schema: Some(Arc::clone(&then)), ..About::values(ids) };
    let by_id = lake.write("d1.parquet", &[(1, "id", ints(&[Some(2)]))], &about(&[1]));
    let by_code = lake.write("d2.parquet", &[(2, "code", ints(&[Some(13)]))], &about(&[2]));
    assert_eq!(lake.rows(&[live(&file, &[&by_id, &by_code])]).await, ["1|NULL"]);
    assert_eq!(lake.rows(&[live(&file, &[&by_code])]).await, ["1|NULL", "2|NULL"]);
}

#[tokio::test]
async fn places_and_values_apply_together() {
    let lake = Lake::new(vec![optional(1, "share", PrimitiveType::Double)]);
    let shares = |values: &[f64]| -> ArrayRef { Arc::new(Float64Array::from(values.to_vec())) };
    let file = lake.write("a.parquet", &[(1, "share", shares(&[0.5, f64::NAN, 1.5, 0.5]))], &About::data());
    let by_place = positions(&lake, "d1.parquet", &[("a.parquet", 3)]);
    let by_value = lake.write("d2.parquet", &[(1, "share", shares(&[f64::NAN]))], &About::values(&[1]));
    assert_eq!(lake.rows(&[live(&file, &[&by_place, &by_value])]).await, ["0.5", "1.5"]);
}

#[tokio::test]
async fn a_delete_that_does_not_say_by_which_columns_is_refused_by_name() {
    let lake = Lake::new(vec![optional(1, "id", PrimitiveType::Int)]);
    let file = lake.write("a.parquet", &[(1, "id", numbers(0..2))], &About::data());
    for (ids, kind) in [(vec![], ErrorKind::Corrupt), (vec![77], ErrorKind::Unsupported)] {
        let delete = lake.write("d.parquet", &[(1, "id", numbers(0..1))], &About::values(&ids));
        let error = lake.read(&[live(&file, &[&delete])], |_| true).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(format!("{error:?}").contains("d.parquet"), "{error:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_gone_is_an_error_and_no_rows() {
    let lake = Lake::new(vec![optional(1, "id", PrimitiveType::Int)]);
    let file = lake.write("a.parquet", &[(1, "id", numbers(0..2))], &About::data());
    std::fs::remove_file(lake.path("a.parquet")).unwrap();
    let error = lake.read(&[live(&file, &[])], |_| true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
}
