//! Where partitions cannot be swapped the rows are deleted and inserted.

use reprocess_core::ErrorKind;
use reprocess_core::domain::scope::Scope;
use reprocess_core::ports::writer::{CommitOutcome, Intent, PartitionWriter};
use reprocess_postgres::PostgresDatabase;

use super::super::support::*;
use super::{ONE, TWO, oid, one, swapping};

/// Whether a replace of the first day is swapped after the statements, which their end undoes.
async fn swaps_after(f: &Fixture, place: usize, change: &str, undo: &str) -> bool {
    f.sql(change).await;
    let before = oid(f, "sales_1").await;
    let amount = i64::try_from(place).unwrap() + 10;
    f.replace(&format!("run {place}"), &days(&[ONE]), &[(ONE, "FR", 1, amount, 0)]).await;
    assert_eq!(f.rows().await[0], format!("2026-10-01/FR/1/{amount}/0"), "{change}");
    let swapped = oid(f, "sales_1").await != before;
    f.sql(undo).await;
    swapped
}

#[tokio::test]
async fn what_would_not_come_along_keeps_a_partition_from_being_swapped() {
    let f = swapping().await;
    for (place, (change, undo)) in [
        (
            "GRANT SELECT ON sales_1 TO public",
            "UPDATE pg_class SET relacl = NULL WHERE oid = 'sales_1'::regclass",
        ),
        ("ALTER TABLE sales_1 SET (fillfactor = 70)", "ALTER TABLE sales_1 RESET (fillfactor)"),
        ("ALTER TABLE sales_1 REPLICA IDENTITY FULL", "ALTER TABLE sales_1 REPLICA IDENTITY DEFAULT"),
        ("CREATE POLICY p ON sales_1 USING (true)", "DROP POLICY p ON sales_1"),
        ("CREATE PUBLICATION p FOR TABLE sales_1", "DROP PUBLICATION p"),
        ("CREATE PUBLICATION p FOR TABLES IN SCHEMA public", "DROP PUBLICATION p"),
        ("CREATE VIEW direct AS SELECT * FROM sales_1", "DROP VIEW direct"),
        ("CREATE STATISTICS s ON country, rev FROM sales_1", "DROP STATISTICS s"),
        ("COMMENT ON TABLE sales_1 IS 'x'", "COMMENT ON TABLE sales_1 IS NULL"),
        (
            "CREATE TABLE lines (day date, sale bigint, FOREIGN KEY (day, sale) REFERENCES sales (day, id))",
            "DROP TABLE lines",
        ),
        (
            "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER nothing AFTER DELETE ON sales FOR EACH STATEMENT EXECUTE FUNCTION nothing()",
            "DROP FUNCTION nothing CASCADE",
        ),
        (
            "CREATE ROLE reprocess_other_owner; ALTER TABLE sales_1 OWNER TO reprocess_other_owner",
            "ALTER TABLE sales_1 OWNER TO CURRENT_USER; DROP ROLE reprocess_other_owner",
        ),
        ("CREATE TABLE rest PARTITION OF sales DEFAULT PARTITION BY LIST (day)", "DROP TABLE rest"),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(!swaps_after(&f, 2 * place, change, undo).await, "{change}");
        assert!(swaps_after(&f, 2 * place + 1, "", "").await, "after {undo}");
    }
}

#[tokio::test]
async fn a_partition_that_changes_after_the_rows_were_staged_is_not_swapped() {
    let f = swapping().await;
    for (place, change) in [
        "CREATE INDEX ON sales_1 (country)",
        "ALTER TABLE sales_1 ADD CHECK (id < 100)",
        "ALTER TABLE sales_1 ALTER amount SET DEFAULT 3",
        "CREATE VIEW direct AS SELECT * FROM sales_1",
    ]
    .into_iter()
    .enumerate()
    {
        let base = f.table.head(&days(&[ONE])).await.unwrap();
        let amount = i64::try_from(place).unwrap() + 10;
        let rows = [(ONE, "FR", 1, amount, 0)];
        let staged = f.stage(&format!("run {place}"), &days(&[ONE]), Intent::Replace, &rows).await.unwrap();
        let before = oid(&f, "sales_1").await;
        f.sql(change).await;
        committed(commit(&f.table, &[apply(&staged)], &base, true).await.unwrap());
        assert_eq!(oid(&f, "sales_1").await, before, "{change}");
        assert_eq!(f.rows().await[0], format!("2026-10-01/FR/1/{amount}/0"));
    }
    assert_eq!(one(&f, "SELECT count(*) FROM pg_class WHERE relname ~ '^stage_'").await, 0);
}

#[tokio::test]
async fn keys_without_a_partition_of_their_own_are_inserted() {
    let f = swapping().await;
    let before = (oid(&f, "sales_1").await, oid(&f, "sales_2").await);
    f.replace("r2", &scope(day(ONE).and("country", "DE")), &[(ONE, "DE", 2, 5, 0)]).await;
    f.replace("r3", &days(&[ONE, TWO]), &[(ONE, "FR", 1, 6, 0)]).await;
    f.replace("r4", &Scope::whole_table(), &[(TWO, "FR", 1, 6, 0)]).await;
    let merge = reprocess_core::ports::writer::MergeKeys { keys: vec!["day".into(), "id".into()], ..by_id() };
    f.write("r5", &days(&[ONE]), Intent::Merge(merge), &[(ONE, "FR", 1, 7, 0)]).await;
    f.write("r6", &days(&[TWO]), Intent::ReplaceDynamic, &[(TWO, "FR", 1, 8, 0)]).await;
    assert_eq!((oid(&f, "sales_1").await, oid(&f, "sales_2").await), before);
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/7/0", "2026-10-02/FR/1/8/0"]);
}

#[tokio::test]
async fn rows_that_break_a_rule_of_the_partition_are_refused() {
    let f = swapping().await;
    let check = async |rows: &[Row<'_>], words: &[&str]| {
        let staged = f.stage("r2", &days(&[ONE]), Intent::Replace, rows).await;
        assert_eq!(refused(staged, words).kind(), ErrorKind::Invalid);
    };
    check(&[(ONE, "FR", 1, 1000, 0)], &["sales_amount_check"]).await;
    check(&[(ONE, "FR", 1, 1, 0), (ONE, "FR", 1, 2, 0)], &["same keys", "id=1"]).await;
    check(&[(TWO, "FR", 1, 1, 0)], &["2026-10-02"]).await;
    // A foreign key is looked at by the commit.
    let base = f.table.head(&days(&[ONE])).await.unwrap();
    let staged = f.stage("r3", &days(&[ONE]), Intent::Replace, &[(ONE, "XX", 1, 1, 0)]).await.unwrap();
    let error = refused(commit(&f.table, &[apply(&staged)], &base, true).await, &["sales_country_fkey"]);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(f.rows().await.len(), 3);
    let leftover =
        "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND connamespace = 'reprocess'::regnamespace
                    AND confrelid = 'countries'::regclass";
    assert_eq!(one(&f, leftover).await, 0, "staged rows hold nothing that they refer to");
}

#[tokio::test]
async fn a_role_that_cannot_see_others_does_not_swap() {
    let f = swapping().await;
    let grants = "ALTER SCHEMA reprocess OWNER TO {role}; GRANT CREATE ON SCHEMA public TO {role};
                  GRANT ALL ON ALL SEQUENCES IN SCHEMA reprocess TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA reprocess TO {role};
                  ALTER TABLE public.sales OWNER TO {role}; ALTER TABLE public.sales_1 OWNER TO {role};
                  GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reprocess TO {role}; GRANT ALL ON public.countries TO {role}";
    let role = f.database.role(grants).await;
    let db = PostgresDatabase::connect(&role).await.unwrap();
    let table = table_of(&db, "sales", by_day_and_country()).await.with_swap();
    let before = oid(&f, "sales_1").await;
    let replace = async |run: &str, amount| {
        let base = table.head(&days(&[ONE])).await.unwrap();
        let rows = of(batch(&[(ONE, "FR", 1, amount, 0)]));
        let staged = table.stage(&request(run, &days(&[ONE]), Intent::Replace), rows).await.unwrap();
        committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
    };
    replace("r2", 7).await;
    assert_eq!(oid(&f, "sales_1").await, before);
    f.sql(&format!("GRANT pg_read_all_stats TO {}_role", f.database.name())).await;
    replace("r3", 8).await;
    assert_ne!(oid(&f, "sales_1").await, before);
    assert_eq!(f.rows().await[0], "2026-10-01/FR/1/8/0");
}

#[tokio::test]
async fn a_handle_that_does_not_swap_commits_what_was_staged_to_be() {
    let f = swapping().await;
    let base = f.table.head(&days(&[ONE])).await.unwrap();
    let staged = f.stage("r2", &days(&[ONE]), Intent::Replace, &[(ONE, "FR", 1, 7, 0)]).await.unwrap();
    let plain = table_of(&f.db, "sales", by_day_and_country()).await;
    let before = oid(&f, "sales_1").await;
    committed(commit(&plain, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(oid(&f, "sales_1").await, before);
    assert_eq!(f.rows().await[0], "2026-10-01/FR/1/7/0");
    // One that was staged without is inserted.
    let base = f.table.head(&days(&[ONE])).await.unwrap();
    let rows = of(batch(&[(ONE, "FR", 1, 8, 0)]));
    let staged = plain.stage(&request("r3", &days(&[ONE]), Intent::Replace), rows).await.unwrap();
    let outcome = commit(&f.table, &[apply(&staged)], &base, true).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Committed(_)));
    assert_eq!(oid(&f, "sales_1").await, before);
}
