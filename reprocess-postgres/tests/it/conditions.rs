//! What went wrong elsewhere, in public reports, and the test or law that it does not go wrong here.
//!
//! | | condition | held by |
//! |---|---|---|
//! | 1 | [two runs at once of an empty interval](https://github.com/SQLMesh/sqlmesh/issues/3866) | `concurrency::matrix`, law `of_racing_commits_to_one_empty_partition_one_wins` |
//! | 2 | [one-day batches with equal start and end, rows of midnight](https://github.com/SQLMesh/sqlmesh/issues/5739) | `midnight_belongs_to_the_day_that_begins`; core `a_range_includes_its_first_and_last_partition` |
//! | 3 | [inputs of the first build not filtered](https://github.com/dbt-labs/dbt-core/issues/10924) | `crash::rounds`, whose clean run is a first build; law `a_stray_row_is_refused_naming_its_partition` |
//! | 4 | [predicate evaluated again between delete and insert](https://github.com/dbt-labs/dbt-core/issues/138) | does not apply: a scope is values, fixed with the plan; no predicate of users is evaluated |
//! | 5 | [NULL in the unique key](https://github.com/dbt-labs/dbt-core/issues/5691) | law `null_and_repeated_merge_keys_are_refused_naming_them` |
//! | 6 | [delete and insert as two commits](https://github.com/dbt-labs/dbt-adapters/pull/1931) | `concurrency::readers` |
//! | 7 | [inserts beside a swap of the table](https://github.com/duckdb/dbt-duckdb/issues/533) | `tables::partitioned::busy::a_commit_of_rows_beside_a_swap_of_the_same_partition_is_not_doubled` |
//! | 8 | [delete in another zone than the select](https://github.com/dbt-labs/dbt-core/issues/11417) | `the_zone_of_the_server_decides_no_border` |
//! | 9 | [partition deleted, upload in a second transaction](https://github.com/dagster-io/dagster/issues/14091) | `concurrency::readers` |
//! | 10 | [partition never deleted, doubled when run again](https://github.com/dagster-io/dagster/issues/21278) | `the_same_rows_again_and_again_are_there_once` |
//! | 11 | [load killed, stage not emptied](https://github.com/dlt-hub/dlt/issues/3023) | `crash::rounds`, law `staging_an_id_again_replaces_what_was_staged` |
//! | 12 | [merge without a key](https://github.com/dlt-hub/dlt/issues/1005) | law `null_and_repeated_merge_keys_are_refused_naming_them`; `tables::beside::a_merge_into_a_table_of_others_needs_its_key` |
//! | 13 | [a row committed late with an earlier timestamp](https://github.com/dlt-hub/dlt/issues/2269) | `source::append_only::condition_13_…` |
//! | 14 | [a long transaction commits below the cursor](https://github.com/airbytehq/airbyte/issues/9668) | `source::append_only::condition_14_…`, `source::engine::condition_14_…` |
//! | 15 | [rows with a cursor equal to the last](https://github.com/airbytehq/airbyte/issues/80152) | `source::high_water_mark::condition_15_…`, `source::engine::condition_15_…` |
//! | 16 | [xmin on a cluster that wrapped around](https://github.com/PostHog/posthog/pull/85687) | `source::append_only::condition_16_…` |
//! | 17 | [concurrent upserts of new keys](https://github.com/ash-project/ash_postgres/issues/844) | `concurrency::merge`, whose first round is into an empty table |
//! | 18 | [the upsert changed the stage](https://github.com/MeltanoLabs/target-postgres/issues/169) | `tables::merge::rows_are_matched_by_key_and_others_stay` |
//! | 19 | [one key twice in the stage](https://github.com/bruin-data/ingestr/pull/639) | law `null_and_repeated_merge_keys_are_refused_naming_them` |
//! | 20 | [a delete that waited misses the row that came](https://github.com/Kinto/kinto/issues/1396) | `a_row_that_came_while_its_deletion_waited_is_not_left_beside_the_new_ones` |
//! | 21 | [read, then insert, without a unique constraint](https://github.com/lobu-ai/lobu/pull/1286) | `concurrency::matrix` without an index, `concurrency::merge` into tables of ours |
//! | 22 | [a lost watermark appends all again](https://github.com/rocky-data/rocky/issues/1179) | `source::engine::condition_22_…` |
//! | 23 | [changes between the marks of a snapshot](https://github.com/apache/seatunnel/pull/11556) | `source::append_only::condition_23_…`, `source::mutable::condition_23_…` |
//! | 24 | [rows in the default partition](https://github.com/pgpartman/pg_partman/issues/287) | `tables::partitioned::through::rows_of_a_default_partition_are_replaced_like_others` |
//! | 25 | [views dropped by cascade](https://github.com/dbt-labs/dbt-adapters/issues/1714) | `views_of_the_table_stay_and_are_never_dropped` |
//! | 26 | [replace and merge at once](https://github.com/duckdb/ducklake/pull/906) | `a_replace_and_a_merge_at_once_leave_no_row_twice` |
//! | 27 | [every other overwrite leaves nothing](https://github.com/airbytehq/airbyte/issues/42468) | `the_same_rows_again_and_again_are_there_once` |
//! | 28 | [a begin that is cancelled](https://github.com/transact-rs/sqlx/issues/4393), [and its writes](https://github.com/transact-rs/sqlx/issues/4385) | unit `a_begin_that_is_dropped_at_any_await_leaves_the_next_transaction_whole` |
//! | 29 | [statements mixed up](https://github.com/oven-sh/bun/pull/27952) [behind a pooler](https://github.com/transact-rs/sqlx/issues/67) | `pooled` |
//! | 30 | [a COPY that failed was not rolled back](https://github.com/porsager/postgres/issues/1173) | `a_copy_that_failed_leaves_its_connection_whole` |
//! | 31 | [complete before its runs exist](https://github.com/apache/airflow/pull/62561) | `crash::rounds` counts the runs as the backfill says that it is published |
//! | | a write between the making of a shadow and its publication | `tables::foreign::a_commit_conflicts_with_foreign_rows_and_a_pin_breaks` |
//!
//! Slow deletes by a join of keys ([one](https://github.com/dbt-labs/dbt-adapters/issues/2039),
//! [another](https://github.com/dbt-labs/dbt-adapters/issues/150)) are a matter of the benches.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use reprocess_core::ErrorKind;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{Intent, PartitionWriter};
use reprocess_postgres::{PostgresConfig, PostgresTable};

use crate::concurrency::race::{Racer, race, race_past};
use crate::tables::support::*;

const DAY: &str = "2026-10-01";

/// Events by the days of UTC, at so many microseconds since 1 October 2026.
async fn events(f: &Fixture) -> PostgresTable {
    let by_day = Partitioning::unpartitioned().with_time("at", Grain::Day, chrono_tz::UTC);
    table_of(&f.db, "events", by_day).await
}

async fn replace_events(table: &PostgresTable, run: &str, day: &str, micros: &[i64]) {
    let first = date(DAY).and_hms_opt(0, 0, 0).unwrap().and_utc().timestamp_micros();
    let at = TimestampMicrosecondArray::from_iter_values(micros.iter().map(|micros| first + micros));
    let at: ArrayRef = Arc::new(at.with_timezone("UTC"));
    let rows = RecordBatch::try_from_iter_with_nullable([("at", at, true)]).unwrap();
    let scope = scope(PartitionKey::of("at", date(day)));
    let base = table.head(&scope).await.unwrap();
    let staged = table.stage(&request(run, &scope, Intent::Replace), of(rows)).await.unwrap();
    committed(commit(table, &[apply(&staged)], &base, true).await.unwrap());
}

/// The last microsecond of 30 September, and the first and the last of the two days after it.
const DAY_MICROS: i64 = 86_400_000_000;
const EDGES: [i64; 5] = [-1, 0, DAY_MICROS - 1, DAY_MICROS, 2 * DAY_MICROS - 1];

async fn edges_of_three_days(f: &Fixture) -> PostgresTable {
    let table = events(f).await;
    // Twice, since what is lost or doubled shows with the second time.
    for run in ["r1", "r2"] {
        replace_events(&table, &format!("{run}.0"), "2026-09-30", &EDGES[..1]).await;
        replace_events(&table, &format!("{run}.1"), "2026-10-01", &EDGES[1..3]).await;
        replace_events(&table, &format!("{run}.2"), "2026-10-02", &EDGES[3..]).await;
    }
    table
}

#[tokio::test]
async fn midnight_belongs_to_the_day_that_begins() {
    let f = fixture().await;
    let table = edges_of_three_days(&f).await;
    assert_eq!(rows(&table).await.len(), 5);
    replace_events(&table, "r3", "2026-10-01", &[]).await;
    let left = rows(&table).await;
    let day = |text: &String| text.split([' ', 'T']).next().unwrap().to_owned();
    assert_eq!(left.iter().map(day).collect::<Vec<_>>(), ["2026-09-30", "2026-10-02", "2026-10-02"]);
}

#[tokio::test]
async fn the_zone_of_the_server_decides_no_border() {
    let mut f = fixture().await;
    f.sql(&format!("ALTER DATABASE {} SET timezone = 'America/New_York'", f.database.name())).await;
    f.db = f.database.connect().await;
    let table = edges_of_three_days(&f).await;
    let here = rows(&table).await;
    assert_eq!(here.len(), 5);
    let elsewhere = fixture().await;
    assert_eq!(here, rows(&edges_of_three_days(&elsewhere).await).await);
}

#[tokio::test]
async fn the_same_rows_again_and_again_are_there_once() {
    let f = fixture().await;
    for run in 0..4 {
        f.replace(&format!("r{run}"), &days(&[DAY]), &[(DAY, "FR", 1, 1, 0), (DAY, "FR", 2, 2, 0)]).await;
        assert_eq!(f.rows().await, ["2026-10-01/FR/1/1/0", "2026-10-01/FR/2/2/0"], "run {run}");
    }
}

async fn racer(f: &Fixture, run: &str, intent: Intent, rows: &[Row<'_>]) -> Racer {
    let scope = days(&[DAY]);
    let base = f.table.head(&scope).await.unwrap();
    Racer { table: f.table.clone(), staged: f.stage(run, &scope, intent, rows).await.unwrap(), base }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_came_while_its_deletion_waited_is_not_left_beside_the_new_ones() {
    let f = fixture().await;
    f.replace("r1", &days(&[DAY]), &[(DAY, "FR", 1, 1, 0)]).await;
    let others = "DELETE FROM public.sales; INSERT INTO public.sales VALUES ('2026-10-01', 'FR', 1, 7, 0)";
    let replace = racer(&f, "r2", Intent::Replace, &[(DAY, "FR", 1, 9, 0)]).await;
    assert_eq!(race_past(&f.database, others, vec![replace]).await, [1]);
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/9/0"]);
    // Where a key lets no second row in, that too is a conflict and not an error.
    f.sql("CREATE UNIQUE INDEX one ON sales (day, id)").await;
    let replace = racer(&f, "r3", Intent::Replace, &[(DAY, "FR", 1, 10, 0)]).await;
    assert_eq!(race_past(&f.database, others, vec![replace]).await, [1]);
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/10/0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replace_and_a_merge_at_once_leave_no_row_twice() {
    let f = fixture().await;
    f.replace("r1", &days(&[DAY]), &[(DAY, "FR", 1, 1, 0)]).await;
    let replace = racer(&f, "r2", Intent::Replace, &[(DAY, "FR", 1, 2, 0), (DAY, "FR", 2, 2, 0)]).await;
    let merge = racer(&f, "r3", Intent::Merge(by_id()), &[(DAY, "FR", 1, 3, 0), (DAY, "FR", 3, 3, 0)]).await;
    let left: &[&str] = match race(&f.database, "sales", vec![replace, merge]).await.as_slice() {
        [1, 0] => &["2026-10-01/FR/1/2/0", "2026-10-01/FR/2/2/0"],
        [0, 1] => &["2026-10-01/FR/1/3/0", "2026-10-01/FR/2/2/0", "2026-10-01/FR/3/3/0"],
        other => panic!("conflicts {other:?}"),
    };
    assert_eq!(f.rows().await, left);
}

#[tokio::test]
async fn views_of_the_table_stay_and_are_never_dropped() {
    let f = fixture().await;
    f.sql("CREATE VIEW totals AS SELECT day, sum(amount)::bigint AS total FROM sales GROUP BY day").await;
    f.replace("r1", &days(&[DAY]), &[(DAY, "FR", 1, 1, 0), (DAY, "FR", 2, 2, 0)]).await;
    let total = async || {
        let sql = "SELECT total FROM public.totals";
        sqlx::query_scalar::<_, i64>(sql).fetch_all(&mut f.other().await).await.unwrap()
    };
    assert_eq!(total().await, [3]);
    // Without the column that the view adds up.
    let all = Scope::whole_table();
    let mut without = request("r2", &all, Intent::Replace);
    without.schema = SchemaPolicy::Rebuild;
    let rows = batch(&[(DAY, "FR", 1, 1, 0)]).project(&[0, 1, 2, 4]).unwrap();
    let staged = f.table.stage(&without, of(rows)).await.unwrap();
    let base = f.table.head(&all).await.unwrap();
    let error = refused(commit(&f.table, &[apply(&staged)], &base, true).await, &["totals"]);
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Invalid, false), "{error}");
    assert_eq!((total().await, f.rows().await.len()), (vec![3], 2));
}

#[tokio::test]
async fn a_copy_that_failed_leaves_its_connection_whole() {
    let f = fixture().await;
    f.sql("CREATE DOMAIN small AS bigint CHECK (VALUE < 10); CREATE TABLE short (day date, n small)").await;
    let one = PostgresConfig::new().with_connections(1).connect(f.database.address()).await.unwrap();
    let by_day = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let table = table_of(&one, "short", by_day).await;
    table.adopt().await.unwrap();
    let row = |n: i64| {
        let day = batch(&[(DAY, "FR", 1, 1, 0)]).column(0).clone();
        let n: ArrayRef = Arc::new(Int64Array::from(vec![n]));
        RecordBatch::try_from_iter_with_nullable([("day", day, true), ("n", n, true)]).unwrap()
    };
    for run in 0..3 {
        let long = request(&format!("r{run}"), &days(&[DAY]), Intent::Replace);
        refused(table.stage(&long, of(row(10))).await, &["23514"]);
    }
    let idle = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(sqlx::query_scalar::<_, i64>(idle).fetch_one(&mut f.other().await).await.unwrap(), 0);
    let base = table.head(&days(&[DAY])).await.unwrap();
    let good = table.stage(&request("good", &days(&[DAY]), Intent::Replace), of(row(9))).await.unwrap();
    committed(commit(&table, &[apply(&good)], &base, true).await.unwrap());
    assert_eq!(rows(&table).await, ["2026-10-01/9"]);
}
