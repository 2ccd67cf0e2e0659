//! The rows of pins.

use arrow_array::UInt64Array;
use arrow_select::take::take_record_batch;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use reprocess_core::domain::effective::EffectiveRows;
use reprocess_core::domain::slice::{AsOfSlice, Pin, Slice};
use reprocess_core::ports::reader::RowStream;
use reprocess_core::{Error, ErrorKind, Result};

use crate::error::broken_promise;

/// By which dates rows are chosen, where a slice does not hold whole partitions.
pub fn as_of(slice: &Slice) -> Option<&AsOfSlice> {
    match slice {
        Slice::AsOf(slice) => Some(slice),
        _ => None,
    }
}

/// Of all rows those that are effective, or all where no dates are named. `all` is asked twice where the table has no
/// column for the end of a row, and has to give the same rows in any order.
pub async fn effective<'a>(
    dates: Option<&AsOfSlice>,
    all: impl Fn() -> BoxFuture<'a, Result<RowStream>>,
) -> Result<RowStream> {
    let Some(dates) = dates else { return all().await };
    let mut effective = EffectiveRows::new(dates);
    if effective.needs_observation() {
        let mut rows = all().await?;
        while let Some(batch) = rows.try_next().await? {
            effective.observe(&batch)?;
        }
    }
    let rows = all().await?.map(move |batch| {
        let batch = batch?;
        let places = effective.rows(&batch)?.into_iter().filter_map(|row| u64::try_from(row).ok());
        let rows = take_record_batch(&batch, &places.collect::<UInt64Array>());
        rows.map_err(|e| broken_promise("rows cannot be taken", e))
    });
    Ok(rows.boxed())
}

/// A pin that names what is no longer there.
pub fn broken(pin: &Pin, why: &str) -> Error {
    Error::new(ErrorKind::PinBroken, why)
        .with_context("table", &pin.table)
        .with_context("slice", &pin.slice)
        .with_context("version", &pin.version)
        .with_advice("plan again with the current inputs")
}

#[cfg(test)]
mod tests {
    use chrono::{NaiveDate, NaiveTime};
    use futures::FutureExt;

    use super::*;
    use crate::testing::{MON, TUE, batch, lines_of, stream};

    fn on(date: &str, to: Option<&str>) -> AsOfSlice {
        let date: NaiveDate = date.parse().unwrap();
        AsOfSlice {
            from: "day".to_owned(),
            to: to.map(ToOwned::to_owned),
            entity: vec!["id".to_owned()],
            date,
            instant: date.and_time(NaiveTime::MIN).and_utc(),
        }
    }

    async fn rows(dates: Option<&AsOfSlice>) -> Vec<String> {
        let all = || {
            let rows = [(MON, 1, Some("old")), (TUE, 1, Some("new")), (TUE, 2, None)];
            async move { Ok(stream(rows.map(|row| batch(&[row])).to_vec())) }.boxed()
        };
        lines_of(effective(dates, all).await.unwrap()).await
    }

    #[tokio::test]
    async fn the_latest_row_of_each_entity_is_effective_across_batches() {
        assert_eq!(rows(Some(&on(MON, None))).await, ["2026-10-05 1 old"]);
        assert_eq!(rows(Some(&on("2026-10-09", None))).await, ["2026-10-06 1 new", "2026-10-06 2 -"]);
        assert_eq!(rows(None).await.len(), 3);
    }

    #[tokio::test]
    async fn a_column_for_the_end_that_is_not_there_is_refused() {
        let dates = on(MON, Some("until"));
        let all = || async { Ok(stream(vec![batch(&[(MON, 1, None)])])) }.boxed();
        let read = effective(Some(&dates), all).await.unwrap().try_collect::<Vec<_>>().await;
        assert!(read.unwrap_err().to_string().contains("until"));
    }
}
