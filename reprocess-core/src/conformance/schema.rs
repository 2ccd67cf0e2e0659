//! Laws of other columns than the table has.

use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};

use super::fixture::Fixture;
use super::world::*;
use crate::ErrorKind;
use crate::domain::request::SchemaPolicy;
use crate::domain::scope::Scope;
use crate::ports::writer::{CommitEntry, CommitOutcome, Intent, StageRequest, Staged};

/// The rows with a further column.
fn taxed(rows: &[Row], tax: i64) -> RecordBatch {
    let mut fields: Vec<_> = columns().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new("tax", DataType::Int64, true)));
    let mut arrays = batch(rows).columns().to_vec();
    arrays.push(Arc::new(Int64Array::from(vec![tax; rows.len()])));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

async fn stage(w: &World, run: &str, scope: &Scope, schema: SchemaPolicy, rows: RecordBatch) -> Staged {
    let request = StageRequest { schema, ..w.request(run, scope, Intent::Replace).await };
    w.writer().stage(&request, rows.into()).await.unwrap()
}

/// "Schema policy: … add nullable columns over the whole range": partitions beside it have NULL there and do not move
/// (DESIGN 4; FIELD 8).
pub(super) async fn a_new_column_is_null_elsewhere_and_moves_nothing_there(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let before = w.head(&days(&[TUE])).await;
    let rows = taxed(&[(MON, Some("FR"), 1, 10)], 2);
    w.committed(&apply(&stage(&w, "r1", &days(&[MON]), SchemaPolicy::AddNullable, rows).await)).await;
    assert_eq!(w.rows().await, ["2026-10-05/FR/1/10/2", "2026-10-06/FR/2/20/NULL"]);
    assert_eq!(w.head(&days(&[TUE])).await.partitions, before.partitions);
}

/// "Old partitions cannot be overwritten once a column was added": they can, with the new columns (FIELD 8).
pub(super) async fn old_partitions_are_replaced_with_the_new_columns(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    for (run, text, tax) in [("r1", MON, 1), ("r2", TUE, 2)] {
        let rows = taxed(&[(text, Some("FR"), 9, 90)], tax);
        w.committed(&apply(&stage(&w, run, &days(&[text]), SchemaPolicy::AddNullable, rows).await)).await;
    }
    assert_eq!(w.rows().await, ["2026-10-05/FR/9/90/1", "2026-10-06/FR/9/90/2"]);
}

/// "A branch has no schema of its own: a shadow run that adds a column changes production" (FIELD 38).
pub(super) async fn staging_a_new_column_leaves_production_as_it_is(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let rows = taxed(&[(MON, Some("FR"), 1, 10)], 2);
    let staged = stage(&w, "r1", &days(&[MON]), SchemaPolicy::AddNullable, rows).await;
    assert_eq!(w.writer().schema().await.unwrap(), Some(columns()));
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10)]));
    w.writer().discard(&staged.id).await.unwrap();
    assert_eq!(w.writer().schema().await.unwrap(), Some(columns()));
}

/// "The table's columns are no longer those that the rows were staged for; nothing was written"
/// (`CommitOutcome::SchemaChanged`).
pub(super) async fn rows_staged_for_other_columns_are_not_committed(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10)]).await;
    let narrow: CommitEntry = w.entry("r2", &days(&[TUE]), &[(TUE, Some("FR"), 2, 20)]).await;
    let rows = taxed(&[(MON, Some("FR"), 1, 10)], 2);
    w.committed(&apply(&stage(&w, "r1", &days(&[MON]), SchemaPolicy::AddNullable, rows).await)).await;
    let base = w.head(&narrow.scope).await;
    assert_eq!(w.commit(&[narrow], &base).await, CommitOutcome::SchemaChanged);
    assert_eq!(w.rows().await, ["2026-10-05/FR/1/10/2"]);
}

/// "Rebuild with the new schema": of the whole table, by its own name (DESIGN 4).
pub(super) async fn a_rebuild_changes_the_columns_of_the_whole_table_only(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let rows = batch(&[(MON, Some("FR"), 1, 10)]).project(&[0, 1, 2]).unwrap();
    let schema = SchemaPolicy::Rebuild;
    let part = StageRequest { schema, ..w.request("r1", &days(&[MON]), Intent::Replace).await };
    refused(w.writer().stage(&part, rows.clone().into()).await, ErrorKind::Invalid, &["whole table"]);
    w.committed(&apply(&stage(&w, "r2", &Scope::whole_table(), schema, rows).await)).await;
    assert_eq!(w.rows().await, ["2026-10-05/FR/1"]);
}

/// What a rebuild replaced comes back with the columns that it had.
pub(super) async fn a_rebuild_is_taken_back_with_its_columns(f: &dyn Fixture) {
    let w = World::with(f, &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let rows = batch(&[(MON, Some("FR"), 1, 10)]).project(&[0, 1, 2]).unwrap();
    let staged = stage(&w, "r1", &Scope::whole_table(), SchemaPolicy::Rebuild, rows).await;
    let kept = w.committed(&apply(&staged)).await.kept.expect("the replaced rows were asked to be kept");
    let base = w.head(&days(&[MON])).await;
    let part = w.commit(&[restore("part", &days(&[MON]), &kept)], &base).await;
    assert_eq!(part, CommitOutcome::SchemaChanged, "a part cannot bring its columns back");
    w.committed(&restore("undo", &Scope::whole_table(), &kept)).await;
    assert_eq!(w.rows().await, lines(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]));
    assert_eq!(w.writer().schema().await.unwrap(), Some(columns()));
}
