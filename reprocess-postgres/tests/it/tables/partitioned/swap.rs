//! Partitions in whose place the staged rows are put.

use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Kept, Slice};
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{Change, CommitEntry, CommitOutcome, Intent, Op, PartitionWriter};

use super::super::support::*;
use super::{ONE, TWO, oid, one, partitioned_by, swapping, texts_of};

/// Everything that belongs to a partition, and names no number.
const SHAPE: &str = "
    SELECT concat_ws(' ', 'index', indexdef) FROM pg_indexes WHERE tablename = 'sales_1' AND schemaname = 'public'
    UNION ALL SELECT concat_ws(' ', 'constraint', conname, pg_get_constraintdef(oid), conislocal, coninhcount,
        conparentid <> 0) FROM pg_constraint WHERE conrelid = 'public.sales_1'::regclass
    UNION ALL SELECT concat_ws(' ', 'column', attname, format_type(atttypid, atttypmod), attnotnull,
        pg_get_expr(adbin, adrelid), attislocal, attinhcount)
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = 'public.sales_1'::regclass AND attnum > 0
    UNION ALL SELECT concat_ws(' ', 'trigger', tgname, tgenabled) FROM pg_trigger
        WHERE tgrelid = 'public.sales_1'::regclass AND NOT tgisinternal
    UNION ALL SELECT concat_ws(' ', 'attached', inhrelid::regclass, inhparent::regclass) FROM pg_inherits
    UNION ALL SELECT concat_ws(' ', 'table', relpersistence, reloptions, relacl, pg_get_expr(relpartbound, oid))
        FROM pg_class WHERE oid = 'public.sales_1'::regclass
    ORDER BY 1";

async fn restore(f: &Fixture, run: &str, scope: &Scope, kept: &Kept) -> CommitOutcome {
    let base = f.table.head(scope).await.unwrap();
    let change = Change::Restore(kept.clone());
    let entry = CommitEntry {
        scope: scope.clone(),
        change,
        stamp: stamp(run, scope, Op::Restore),
        attempt: 1,
        finish: finish(),
    };
    commit(&f.table, &[entry], &base, true).await.unwrap()
}

#[tokio::test]
async fn a_swapped_partition_has_everything_that_the_old_one_had() {
    let f = swapping().await;
    let (old, shape) = (oid(&f, "sales_1").await, texts_of(&f, SHAPE).await);
    assert!(shape.iter().any(|line| line.contains("DESC NULLS LAST")), "{shape:?}");
    let commit = f.replace("r2", &days(&[ONE]), &[(ONE, "FR", 1, 9, 0), (ONE, "FR", 4, 4, 0)]).await;
    assert_ne!(oid(&f, "sales_1").await, old);
    assert_eq!(texts_of(&f, SHAPE).await, shape);
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/9/0", "2026-10-01/FR/4/4/0", "2026-10-02/FR/3/3/0"]);
    assert_eq!(one(&f, "SELECT amount::bigint FROM seen WHERE day = '2026-10-01'").await, 13);
    assert_eq!(one(&f, "SELECT has_table_privilege('public', 'sales', 'SELECT')::int::bigint").await, 1);
    // Versions as after any other commit, and nothing is to be taken on.
    assert_eq!((f.version(day(ONE)).await.as_str(), f.version(day(TWO)).await.as_str()), ("3", "2"));
    assert_eq!(commit.partitions, f.table.head(&days(&[ONE])).await.unwrap());
    // Its foreign key and its triggers work.
    let mut other = f.other().await;
    let refused =
        sqlx::raw_sql("INSERT INTO public.sales_1 VALUES ('2026-10-01', 'XX', 9, 9, 0)").execute(&mut other);
    assert!(refused.await.unwrap_err().to_string().contains("sales_country_fkey"));
    f.sql("INSERT INTO sales_1 VALUES ('2026-10-01', 'DE', 8, 8, 0)").await;
    assert_eq!(f.version(day(ONE)).await.as_str(), "3.1");
    // What is kept hinders nobody.
    f.sql("DELETE FROM sales WHERE country = 'DE'; DELETE FROM countries WHERE code = 'DE'").await;
    // And again.
    f.replace("r3", &days(&[ONE]), &[]).await;
    assert_eq!(texts_of(&f, SHAPE).await, shape);
    assert_eq!(f.rows().await, ["2026-10-02/FR/3/3/0"]);
    assert_eq!(
        texts_of(
            &f,
            "SELECT relname::text FROM pg_class WHERE relname ~ '^(stage_|kept_[0-9]+$|reprocess_new)'"
        )
        .await
        .len(),
        3
    );
}

#[tokio::test]
async fn what_was_swapped_out_comes_back_and_is_freed() {
    let f = swapping().await;
    let one_day = days(&[ONE]);
    let replaced = f.replace("r2", &one_day, &[(ONE, "FR", 1, 9, 0)]).await.kept.unwrap();
    let undone = committed(restore(&f, "back", &one_day, &replaced).await);
    assert_eq!(f.rows().await, ["2026-10-01/DE/2/2/0", "2026-10-01/FR/1/1/0", "2026-10-02/FR/3/3/0"]);
    committed(restore(&f, "forth", &one_day, &undone.kept.unwrap()).await);
    assert_eq!(f.rows().await[0], "2026-10-01/FR/1/9/0");
    // Below the key that was replaced.
    let german = scope(day(ONE).and("country", "DE"));
    committed(restore(&f, "german", &german, &replaced).await);
    assert_eq!(f.rows().await[..2], ["2026-10-01/DE/2/2/0", "2026-10-01/FR/1/9/0"]);
    f.table.forget(&replaced).await.unwrap();
    f.table.forget(&replaced).await.unwrap();
    let left = "SELECT count(*) FROM reprocess.table_kept_rows WHERE alone";
    assert_eq!(one(&f, left).await, 0);
    // Without kept rows the old table is gone as well.
    let base = f.table.head(&one_day).await.unwrap();
    let staged = f.stage("r3", &one_day, Intent::Replace, &[(ONE, "FR", 1, 7, 0)]).await.unwrap();
    let before = oid(&f, "sales_1").await;
    committed(commit(&f.table, &[apply(&staged)], &base, false).await.unwrap());
    assert_ne!(oid(&f, "sales_1").await, before);
    assert_eq!(one(&f, &format!("SELECT count(*) FROM pg_class WHERE oid = {before}")).await, 0);
    assert_eq!(f.rows().await[0], "2026-10-01/FR/1/7/0");
    assert_eq!(texts_of(&f, "SELECT relname::text FROM pg_class WHERE relname ~ '^stage_'").await, [""; 0]);
}

#[tokio::test]
async fn a_shadow_is_read_and_published_and_several_partitions_at_once() {
    let f = swapping().await;
    let (one_day, two_days) = (days(&[ONE]), days(&[TWO]));
    let both = one_day.union(&two_days);
    let base = f.table.head(&both).await.unwrap();
    let first = f.stage("r2", &one_day, Intent::Replace, &[(ONE, "FR", 1, 7, 0)]).await.unwrap();
    let second = f.stage("r2", &two_days, Intent::Replace, &[(TWO, "DE", 2, 8, 0)]).await.unwrap();
    assert_eq!(f.table.list(&"r2".into()).await.unwrap().len(), 2);
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    let (_, stream) = f.table.read_overlaid(&[first.clone(), second.clone()], &pinned).await.unwrap();
    let shown = texts(stream).await.unwrap();
    assert_eq!(shown, ["2026-10-01/FR/1/7/0", "2026-10-02/DE/2/8/0"]);
    let old = (oid(&f, "sales_1").await, oid(&f, "sales_2").await);
    let entries = [apply(&first), apply(&second)];
    let published = committed(commit(&f.table, &entries, &base, true).await.unwrap());
    let new = (oid(&f, "sales_1").await, oid(&f, "sales_2").await);
    assert!(old.0 != new.0 && old.1 != new.1);
    assert_eq!(f.rows().await, shown);
    let again = commit(&f.table, &entries, &base, true).await.unwrap();
    assert!(matches!(again, CommitOutcome::AlreadyCommitted(_)), "{again:?}");
    // One that was staged before another swap is swapped on the base after it.
    let early = f.stage("r3", &one_day, Intent::Replace, &[(ONE, "FR", 1, 6, 0)]).await.unwrap();
    f.replace("r4", &one_day, &[(ONE, "FR", 1, 5, 0)]).await;
    let (base, before) = (f.table.head(&one_day).await.unwrap(), oid(&f, "sales_1").await);
    committed(commit(&f.table, &[apply(&early)], &base, true).await.unwrap());
    assert_ne!(oid(&f, "sales_1").await, before);
    assert_eq!(f.rows().await[0], "2026-10-01/FR/1/6/0");
    committed(restore(&f, "back", &both, &published.kept.unwrap()).await);
    assert_eq!(f.rows().await, ["2026-10-01/DE/2/2/0", "2026-10-01/FR/1/1/0", "2026-10-02/FR/3/3/0"]);
}

#[tokio::test]
async fn months_and_single_values_are_swapped_beside_a_default_partition() {
    let f = partitioned_by(
        "LIST (country); CREATE TABLE french PARTITION OF sales FOR VALUES IN ('FR');
         CREATE TABLE none PARTITION OF sales FOR VALUES IN (NULL); CREATE TABLE others PARTITION OF sales DEFAULT;
         CREATE TABLE months (day timestamptz, n bigint) PARTITION BY RANGE (day);
         CREATE TABLE october PARTITION OF months FOR VALUES FROM ('2026-10-01 00:00+02') TO ('2026-11-01 00:00+01')",
    )
    .await;
    let table = f.table.clone().with_swap();
    let f = Fixture { table, ..f };
    f.replace(
        "r1",
        &Scope::whole_table(),
        &[(ONE, "FR", 1, 1, 0), (ONE, "DE", 2, 2, 0), (ONE, "NULL", 3, 3, 0)],
    )
    .await;
    let swapped = async |name: &str, run: &str, key: PartitionKey, rows: &[Row<'_>]| {
        let before = oid(&f, name).await;
        f.replace(run, &scope(key), rows).await;
        oid(&f, name).await != before
    };
    let french = PartitionKey::of("country", "FR");
    assert!(swapped("french", "r2", french, &[(TWO, "FR", 4, 4, 0)]).await);
    let none = PartitionKey::of("country", reprocess_core::domain::value::Value::Null);
    assert!(swapped("none", "r3", none, &[(TWO, "NULL", 5, 5, 0)]).await);
    assert!(!swapped("others", "r4", PartitionKey::of("country", "DE"), &[(TWO, "DE", 6, 6, 0)]).await);
    assert_eq!(f.rows().await, ["2026-10-02/DE/6/6/0", "2026-10-02/FR/4/4/0", "2026-10-02/NULL/5/5/0"]);
    // A row of the default partition that belongs nowhere else stays where it is.
    f.replace("r5", &scope(PartitionKey::of("country", "IT")), &[(ONE, "IT", 7, 7, 0)]).await;
    assert_eq!(one(&f, "SELECT count(*) FROM others").await, 2);

    let monthly = Partitioning::unpartitioned().with_time("day", Grain::Month, chrono_tz::Europe::Paris);
    let months = table_of(&f.db, "months", monthly).await.with_swap();
    months.adopt().await.unwrap();
    let before = oid(&f, "october").await;
    let october = scope(PartitionKey::of("day", date("2026-10-01")));
    let base = months.head(&october).await.unwrap();
    let rows = months.schema().await.unwrap().unwrap();
    let replace = request("r1", &october, Intent::Replace);
    let staged = months.stage(&replace, of(arrow_array::RecordBatch::new_empty(rows))).await.unwrap();
    committed(commit(&months, &[apply(&staged)], &base, true).await.unwrap());
    assert_ne!(oid(&f, "october").await, before);
}
