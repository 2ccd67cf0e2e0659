//! What the tests of several modules need: a table by day, with the columns `day`, `id` and `name`.

use std::sync::Arc;

use arrow_array::types::Date32Type;
use arrow_array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::profile::ProfileSpec;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::rows::Columns;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Base;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::{Intent, Op, StageRequest, StagedId, StampId, Visibility};

use crate::folder::Folder;

pub(crate) const MON: &str = "2026-10-05";
pub(crate) const TUE: &str = "2026-10-06";

pub(crate) fn folder() -> Folder {
    Folder::new(Arc::new(InMemory::new()))
}

pub(crate) fn stamp(run: &str) -> StampId {
    StampId {
        run: run.into(),
        job: "sales".into(),
        op: Op::Replace,
        scope_digest: "all".to_owned(),
        generation: 0,
    }
}

pub(crate) fn id(run: &str, attempt: u32) -> StagedId {
    StagedId { stamp: stamp(run), attempt }
}

pub(crate) fn by_day() -> Partitioning {
    Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC)
}

pub(crate) fn day(text: &str) -> PartitionKey {
    PartitionKey::of("day", Value::Date(text.parse().unwrap()))
}

pub(crate) fn request(run: &str, scope: Scope, intent: Intent) -> StageRequest {
    StageRequest {
        id: id(run, 1),
        scope,
        intent,
        visibility: Visibility::Direct,
        profile: ProfileSpec::new(),
        schema: SchemaPolicy::Refuse,
        base: Base::new("none".into(), [].into()),
    }
}

pub(crate) fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("day", DataType::Date32, true),
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8, true),
    ]))
}

pub(crate) type Row<'a> = (&'a str, i64, Option<&'a str>);

pub(crate) fn batch(rows: &[Row<'_>]) -> RecordBatch {
    let days = rows.iter().map(|row| Some(Date32Type::from_naive_date(row.0.parse().unwrap())));
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(days.collect::<Date32Array>()),
        Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| row.2).collect::<StringArray>()),
    ];
    RecordBatch::try_new(columns(), arrays).unwrap()
}

pub(crate) fn stream(batches: Vec<RecordBatch>) -> RowStream {
    futures::stream::iter(batches).map(Ok).boxed()
}

/// Each row as a line, the cells in the order of the columns and NULL as `-`; the lines in order.
pub(crate) fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let mut lines = Vec::new();
    for batch in batches {
        let columns = Columns::new(batch).unwrap();
        for row in 0..batch.num_rows() {
            let cell = |name: &str| columns.get(name).unwrap().cell(row).text();
            let schema = batch.schema();
            let cells = schema.fields().iter().map(|f| cell(f.name()).unwrap_or_else(|| "-".to_owned()));
            lines.push(cells.collect::<Vec<_>>().join(" "));
        }
    }
    lines.sort();
    lines
}

pub(crate) async fn lines_of(rows: RowStream) -> Vec<String> {
    lines(&rows.try_collect::<Vec<_>>().await.unwrap())
}
