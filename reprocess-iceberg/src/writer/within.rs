//! Rows by the scope that they lie in.

use arrow_array::{RecordBatch, UInt64Array};
use arrow_select::take::take_record_batch;
use reprocess_core::Result;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::rows::partition_runs;
use reprocess_core::domain::scope::Scope;

use crate::error::broken_promise;

/// The rows that lie in the scope: files of older specs may hold others beside them.
pub(super) fn within(partitioning: &Partitioning, scope: &Scope, rows: &RecordBatch) -> Result<RecordBatch> {
    if scope.is_whole_table() {
        return Ok(rows.clone());
    }
    let runs = partition_runs(partitioning, rows)?;
    let inside = runs.into_iter().filter(|(key, _)| scope.covers(key)).flat_map(|(_, run)| run);
    let inside: Vec<u64> = inside.filter_map(|row| u64::try_from(row).ok()).collect();
    if inside.len() == rows.num_rows() {
        return Ok(rows.clone());
    }
    take_record_batch(rows, &UInt64Array::from(inside))
        .map_err(|e| broken_promise("rows of a scope cannot be taken", e))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, StringArray};
    use reprocess_core::domain::partition::PartitionKey;
    use reprocess_core::domain::value::ValueKind;

    use super::*;

    #[test]
    fn rows_of_other_partitions_are_left_out_and_none_of_the_scope() {
        let countries = StringArray::from(vec![Some("FR"), Some("DE"), None, Some("FR")]);
        let amounts = Int64Array::from(vec![1, 2, 3, 4]);
        let rows = RecordBatch::try_from_iter_with_nullable([
            ("country", Arc::new(countries) as ArrayRef, true),
            ("amount", Arc::new(amounts) as ArrayRef, false),
        ])
        .unwrap();
        let by_country = Partitioning::unpartitioned().with_key("country", ValueKind::Text);
        let amounts = |scope: &Scope| {
            let found = within(&by_country, scope, &rows).unwrap();
            let column = found.column(1).as_any().downcast_ref::<Int64Array>().unwrap().clone();
            column.values().to_vec()
        };
        let france = PartitionKey::of("country", "FR");
        let nowhere = PartitionKey::of("country", reprocess_core::domain::value::Value::Null);
        assert_eq!(amounts(&Scope::key(france.clone()).unwrap()), [1, 4]);
        assert_eq!(amounts(&Scope::keys([france, nowhere]).unwrap()), [1, 3, 4]);
        assert_eq!(amounts(&Scope::key(PartitionKey::of("country", "IT")).unwrap()), [0_i64; 0]);
        assert_eq!(amounts(&Scope::whole_table()), [1, 2, 3, 4]);
    }
}
