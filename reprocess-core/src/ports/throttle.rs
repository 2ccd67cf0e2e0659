//! Lets rows pass no faster than a limit.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::RecordBatch;
use chrono::{DateTime, Utc};
use governor::clock::Clock as Instants;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

use super::clock::Clock;
use crate::domain::pool::ReadLimit;

/// No more cells than this come in a second: a thousandth of the time between them is a nanosecond.
const CELLS_PER_S: u32 = 1_000_000;

/// What the streams of one table pass through, taken together.
#[derive(Debug)]
pub(crate) struct Throttle {
    clock: Arc<dyn Clock>,
    rows: Option<Limiter>,
    bytes: Option<Limiter>,
}

/// The clock as the limiter wants it: how much time has passed, which a clock that is put back does not take away.
#[derive(Clone, Debug)]
struct Passed(Arc<Mutex<(DateTime<Utc>, Duration)>>, Arc<dyn Clock>);

impl Passed {
    fn since_now(clock: &Arc<dyn Clock>) -> Self {
        Self(Arc::new(Mutex::new((clock.now(), Duration::ZERO))), Arc::clone(clock))
    }
}

impl Instants for Passed {
    type Instant = Duration;

    fn now(&self) -> Duration {
        let now = self.1.now();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (now, last.1 + (now - last.0).to_std().unwrap_or_default());
        last.1
    }
}

/// Cells that come at an even pace. Of what is fast a cell is many rows or bytes, since the time between two cells is a
/// whole number of nanoseconds.
#[derive(Debug)]
struct Limiter {
    in_a_cell: u32,
    at_once: NonZeroU32,
    cells: RateLimiter<NotKeyed, InMemoryState, Passed, NoOpMiddleware<Duration>>,
    /// Streams pass in turn: one of small batches would always be before one that waits for a large one.
    turn: tokio::sync::Mutex<()>,
}

impl Limiter {
    fn new(per_s: NonZeroU32, clock: &Arc<dyn Clock>) -> Self {
        let in_a_cell = per_s.get().div_ceil(CELLS_PER_S).max(1);
        let at_once = NonZeroU32::new(per_s.get() / in_a_cell).unwrap_or(NonZeroU32::MIN);
        let cells = RateLimiter::direct_with_clock(Quota::per_second(at_once), Passed::since_now(clock));
        Self { in_a_cell, at_once, cells, turn: tokio::sync::Mutex::new(()) }
    }

    /// How long to wait before so many cells may pass, which are no more than may pass at once; `None` where they may now.
    fn wait(&self, cells: NonZeroU32) -> Option<Duration> {
        let refused = self.cells.check_n(cells).ok()?.err()?;
        Some(refused.wait_time_from(self.cells.clock().now()))
    }
}

impl Throttle {
    pub(crate) fn new(limit: &ReadLimit, clock: &Arc<dyn Clock>) -> Self {
        let limiter = |per_s| Limiter::new(per_s, clock);
        Self {
            clock: Arc::clone(clock),
            rows: limit.rows_per_s.map(limiter),
            bytes: limit.bytes_per_s.map(limiter),
        }
    }

    /// Waits until the batch may pass.
    pub(crate) async fn pass(&self, batch: &RecordBatch) {
        if let Some(rows) = &self.rows {
            self.spend(rows, batch.num_rows()).await;
        }
        if let Some(bytes) = &self.bytes {
            self.spend(bytes, batch.get_array_memory_size()).await;
        }
    }

    async fn spend(&self, limiter: &Limiter, amount: usize) {
        let mut left = u64::try_from(amount).unwrap_or(u64::MAX).div_ceil(u64::from(limiter.in_a_cell));
        let _turn = limiter.turn.lock().await;
        // A batch of more than a second's worth passes in parts.
        while let Some(part) = part(left, limiter.at_once) {
            while let Some(wait) = limiter.wait(part) {
                self.clock.sleep(wait).await;
            }
            left -= u64::from(part.get());
        }
    }
}

fn part(left: u64, at_once: NonZeroU32) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(left).unwrap_or(u32::MAX).min(at_once.get()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array};

    use super::*;
    use crate::memory::ManualClock;

    fn batch(rows: usize) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1; rows]));
        RecordBatch::try_from_iter([("a", column)]).unwrap()
    }

    /// How long it took until batches of so many rows had passed, in milliseconds.
    async fn passes(limit: ReadLimit, batches: &[usize]) -> i64 {
        let start: DateTime<Utc> = "2026-11-01T00:00:00Z".parse().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(start));
        let throttle = Throttle::new(&limit, &clock);
        for rows in batches {
            throttle.pass(&batch(*rows)).await;
        }
        (clock.now() - start).num_milliseconds()
    }

    fn of(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).unwrap()
    }

    #[tokio::test]
    async fn rows_pass_as_fast_as_the_limit_says() {
        let limit = ReadLimit::rows_per_s(of(1000));
        assert_eq!(passes(limit, &[1000]).await, 0, "a second's worth at once");
        assert_eq!(passes(limit, &[1000, 500]).await, 500);
        assert_eq!(passes(limit, &[4000]).await, 3000, "a batch of more than a second's worth");
        assert_eq!(passes(limit, &[0, 0, 1000]).await, 0);
        assert_eq!(passes(limit, &[100; 100]).await, 9000);
        assert_eq!(passes(ReadLimit::default(), &[100_000; 10]).await, 0);
    }

    #[tokio::test]
    async fn bytes_pass_as_fast_as_the_limit_says_and_the_slower_limit_counts() {
        let bytes = u32::try_from(batch(1000).get_array_memory_size()).unwrap();
        let limit = ReadLimit::bytes_per_s(of(bytes));
        // The time of one byte is rounded down to nanoseconds.
        assert!((1990..=2000).contains(&passes(limit, &[1000, 1000, 1000]).await));
        let both = ReadLimit::rows_per_s(of(500)).with_bytes_per_s(of(bytes));
        assert_eq!(passes(both, &[1000, 1000, 1000]).await, 5000, "3,000 rows, of which 500 at once");
    }

    #[tokio::test]
    async fn what_is_fast_is_as_fast_as_the_limit_says() {
        // Of 600,000,000 bytes in a second, 1 ns for each would be 1,000,000,000.
        let size = batch(100_000).get_array_memory_size();
        let limit = ReadLimit::bytes_per_s(of(600_000_000));
        let took = passes(limit, &[100_000; 3000]).await;
        let expected = i64::try_from(3000 * size).unwrap() / 600_000 - 1000;
        assert!((expected - 10..expected + 20).contains(&took), "{took} ms, expected {expected}");
    }

    #[tokio::test]
    async fn a_clock_that_is_put_back_stops_nobody() {
        let start: DateTime<Utc> = "2026-11-01T00:00:00Z".parse().unwrap();
        let clock = Arc::new(ManualClock::new(start));
        let throttle = Throttle::new(&ReadLimit::rows_per_s(of(1000)), &(clock.clone() as Arc<dyn Clock>));
        throttle.pass(&batch(1000)).await;
        let back = start - chrono::TimeDelta::hours(1);
        clock.set(back);
        throttle.pass(&batch(500)).await;
        assert_eq!((clock.now() - back).num_milliseconds(), 500);
    }
}
