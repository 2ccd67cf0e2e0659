//! Staging: rows stream into data files that no version has, guarded and profiled on the way.

use std::collections::BTreeSet;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::profile::ScopeProfiler;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::rows::{CellKind, partition_runs};
use reprocess_core::domain::schema;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::ports::writer::{Intent, StageRequest, Staged};
use reprocess_core::{Error, Result};

use crate::encode::{Encoder, Sink, parts_of};

/// Refuses a request that no lake table could serve.
pub fn check(request: &StageRequest, partitioning: &Partitioning) -> Result<()> {
    for key in request.scope.partitions() {
        partitioning.check_key(&key)?;
    }
    if request.schema == SchemaPolicy::Rebuild
        && !(request.scope.is_whole_table() && request.intent == Intent::Replace)
    {
        return Err(Error::invalid("only a replace of the whole table rebuilds it with other columns"));
    }
    Ok(())
}

/// The columns that the table has after the commit of rows with declared ones, in its order and with its types. Which
/// types a format has is for [`check_types`] to say.
pub fn columns(table: &SchemaRef, declared: &Schema, policy: SchemaPolicy) -> Result<SchemaRef> {
    let fields = declared.fields().iter().map(|field| {
        let known = table.field_with_name(field.name()).ok().filter(|_| policy != SchemaPolicy::Rebuild);
        let data_type = match known {
            Some(known) if same_values(field.data_type(), known.data_type()) => known.data_type().clone(),
            _ => plain(field.data_type()).clone(),
        };
        field.as_ref().clone().with_data_type(data_type)
    });
    schema::resolve(table, &Schema::new(fields.collect::<Vec<_>>()), policy)
}

/// Whether the two types are layouts of the same values.
fn same_values(a: &DataType, b: &DataType) -> bool {
    plain(a) == plain(b)
        || matches!((a, b), (DataType::Timestamp(x, Some(_)), DataType::Timestamp(y, Some(_))) if x == y)
}

/// The type that the table has for a type that is only another layout.
fn plain(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::LargeUtf8 | DataType::Utf8View => &DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => &DataType::Binary,
        DataType::Dictionary(_, values) => plain(values),
        other => other,
    }
}

/// Refuses columns that a format would keep as another type, and those that cannot be compared. `kept_as` answers a column
/// as the table has it after it was written.
pub fn check_types(columns: &Schema, kept_as: impl Fn(&Field) -> Result<Field>) -> Result<()> {
    for field in columns.fields() {
        let kept = kept_as(field)?;
        if kept.data_type() != field.data_type() {
            return Err(Error::invalid(format!(
                "column `{}` is {}, which the table would keep as {}",
                field.name(),
                field.data_type(),
                kept.data_type()
            ))
            .with_advice("cast it before"));
        }
        if CellKind::of(field.data_type()).is_none() {
            return Err(Error::invalid(format!(
                "column `{}` is {}, which cannot be compared",
                field.name(),
                field.data_type()
            )));
        }
    }
    Ok(())
}

/// Guards, profiles and writes all rows, which get the columns of the table. `check` sees them as they are written, and
/// refuses what only the table's own rules refuse.
pub async fn write<F: Send + 'static>(
    request: &StageRequest,
    partitioning: &Partitioning,
    columns: &SchemaRef,
    sink: impl Sink<File = F>,
    mut stream: RowStream,
    check: impl Fn(&RecordBatch) -> Result<()>,
) -> Result<(Staged, Vec<F>)> {
    let mut guard = Guard::new(request, partitioning, columns)?;
    let encoder = Encoder::start(sink);
    let filled = async {
        while let Some(batch) = stream.try_next().await? {
            if batch.num_rows() == 0 {
                guard.pass(&batch)?;
            }
            for part in parts_of(&batch) {
                let part = guard.pass(&part)?;
                check(&part)?;
                encoder.push(&part).await?;
            }
        }
        Ok(())
    }
    .await;
    if let Err(e) = filled {
        encoder.give_up().await;
        return Err(e);
    }
    let files = encoder.finish().await?;
    Ok((request.staged(columns, guard.received, guard.profiler.finish())?, files))
}

/// Looks at every row before it is written.
struct Guard<'a> {
    partitioning: &'a Partitioning,
    columns: &'a SchemaRef,
    profiler: ScopeProfiler,
    received: BTreeSet<PartitionKey>,
}

impl<'a> Guard<'a> {
    fn new(request: &StageRequest, partitioning: &'a Partitioning, columns: &'a SchemaRef) -> Result<Self> {
        let profiler = ScopeProfiler::new(partitioning, &request.scope, columns, &request.profile)?;
        Ok(Self { partitioning, columns, profiler, received: BTreeSet::new() })
    }

    /// The rows with the columns of the table. Refuses those that do not fit, or lie outside the scope.
    fn pass(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        columns(self.columns, &batch.schema(), SchemaPolicy::Refuse)?;
        let batch = schema::conform(batch, self.columns)?;
        schema::check_nulls(self.columns, &batch)?;
        self.profiler.push(&batch)?;
        self.received.extend(partition_runs(self.partitioning, &batch)?.into_iter().map(|(key, _)| key));
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use arrow_array::{ArrayRef, Int64Array};
    use reprocess_core::domain::scope::Scope;

    use super::*;
    use crate::testing::{MON, TUE, batch, by_day, day, lines, request, stream};

    /// Keeps the rows that were written until they are given up.
    #[derive(Clone, Default)]
    struct Rows(Arc<Mutex<Vec<RecordBatch>>>);

    impl Sink for Rows {
        type File = String;

        async fn write(&mut self, rows: &RecordBatch) -> Result<()> {
            self.0.lock().unwrap().push(rows.clone());
            Ok(())
        }

        async fn close(&mut self) -> Result<Vec<String>> {
            Ok(lines(&self.0.lock().unwrap()))
        }

        async fn give_up(self) -> Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }
    }

    fn schema(fields: &[(&str, DataType)]) -> SchemaRef {
        Arc::new(Schema::new(
            fields.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect::<Vec<_>>(),
        ))
    }

    fn monday() -> StageRequest {
        request("r1", Scope::key(day(MON)).unwrap(), Intent::Replace)
    }

    async fn written(rows: Vec<RecordBatch>) -> Result<(Staged, Vec<String>)> {
        let no_seven = |batch: &RecordBatch| match lines(std::slice::from_ref(batch)) {
            lines if lines.iter().any(|line| line.contains(" 7 ")) => Err(Error::invalid("a rule is broken")),
            _ => Ok(()),
        };
        let sink = Rows::default();
        let columns = crate::testing::columns();
        let answer = write(&monday(), &by_day(), &columns, sink.clone(), stream(rows), no_seven).await;
        assert_eq!(answer.is_err(), sink.0.lock().unwrap().is_empty(), "what is refused leaves nothing");
        answer
    }

    #[tokio::test]
    async fn rows_are_written_with_the_columns_of_the_table() {
        let turned = batch(&[(MON, 2, Some("b"))]).project(&[2, 0, 1]).unwrap();
        let (staged, files) = written(vec![batch(&[(MON, 1, None)]), turned]).await.unwrap();
        assert_eq!(files, ["2026-10-05 1 -", "2026-10-05 2 b"]);
        assert_eq!((staged.rows(), staged.received), (2, [day(MON)].into()));
    }

    #[tokio::test]
    async fn what_the_table_does_not_take_is_refused() {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![None]));
        let row = batch(&[(MON, 1, None)]);
        let nameless = RecordBatch::try_from_iter_with_nullable([
            ("day", Arc::clone(row.column(0)), true),
            ("id", ids, true),
            ("name", Arc::clone(row.column(2)), true),
        ]);
        for (rows, word) in [
            (batch(&[(TUE, 1, None)]), TUE),
            (batch(&[(MON, 7, None)]), "a rule is broken"),
            (nameless.unwrap(), "do not fit the columns"),
            (batch(&[(MON, 1, None)]).project(&[0, 1]).unwrap(), "`name` is missing"),
            (batch(&[]).project(&[0, 1]).unwrap(), "`name` is missing"),
        ] {
            let error = written(vec![batch(&[(MON, 1, None)]), rows]).await.unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn another_layout_of_the_same_values_gets_the_type_of_the_table() {
        let zone = |zone: &str| DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, Some(zone.into()));
        let table = schema(&[("name", DataType::Utf8View), ("at", zone("UTC"))]);
        let texts = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::LargeUtf8));
        let rows = schema(&[("at", zone("+00:00")), ("name", texts), ("new", DataType::LargeBinary)]);
        let after = columns(&table, &rows, SchemaPolicy::AddNullable).unwrap();
        let wanted = [("name", DataType::Utf8View), ("at", zone("UTC")), ("new", DataType::Binary)];
        assert_eq!(after, schema(&wanted));
        assert!(columns(&table, &rows, SchemaPolicy::Refuse).is_err());
        let rebuilt = columns(&table, &rows, SchemaPolicy::Rebuild).unwrap();
        assert_eq!(rebuilt.field_with_name("name").unwrap().data_type(), &DataType::Utf8);
    }

    #[test]
    fn types_that_would_be_kept_as_others_are_refused() {
        let as_it_is = |field: &Field| Ok(field.clone());
        let wider = |field: &Field| Ok(field.clone().with_data_type(DataType::Int64));
        let integers = schema(&[("n", DataType::Int8)]);
        check_types(&integers, as_it_is).unwrap();
        let error = check_types(&integers, wider).unwrap_err();
        assert!(error.to_string().contains("`n` is Int8, which the table would keep as Int64"), "{error}");
        let maps = schema(&[("n", DataType::Null)]);
        let refused = check_types(&maps, as_it_is).err().map(|e| e.to_string());
        let wanted = CellKind::of(&DataType::Null).is_none();
        assert_eq!(refused.is_some_and(|e| e.contains("cannot be compared")), wanted);
    }

    #[test]
    fn only_a_replace_of_the_whole_table_rebuilds_it() {
        let rebuild =
            |scope, intent| StageRequest { schema: SchemaPolicy::Rebuild, ..request("r", scope, intent) };
        check(&rebuild(Scope::whole_table(), Intent::Replace), &by_day()).unwrap();
        check(&rebuild(Scope::whole_table(), Intent::ReplaceDynamic), &by_day()).unwrap_err();
        check(&rebuild(Scope::key(day(MON)).unwrap(), Intent::Replace), &by_day()).unwrap_err();
        check(&monday(), &Partitioning::unpartitioned()).unwrap_err();
    }
}
