//! Commits beside other commits, and beside transactions of others that are under way.

use reprocess_core::ErrorKind;
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Slice};
use reprocess_core::ports::reader::{PinnedInput, SnapshotReader};
use reprocess_core::ports::staged::StagedReader;
use reprocess_core::ports::writer::{CommitEntry, CommitOutcome, Intent, PartitionWriter, Query, Rows};
use reprocess_postgres::PostgresTable;
use sqlx::{Connection, Executor, PgConnection};
use tokio::task::JoinHandle;

use super::support::*;

const ONE: &str = "2026-10-01";
const TWO: &str = "2026-10-02";

async fn filled() -> Fixture {
    let f = fixture().await;
    f.replace("r1", &days(&[ONE, TWO]), &[(ONE, "FR", 1, 1, 0), (TWO, "FR", 2, 2, 0)]).await;
    f
}

/// A transaction of others that has run statements and not ended.
async fn open_transaction(f: &Fixture, sql: &'static str) -> PgConnection {
    let mut other = f.other().await;
    other.execute("SET search_path = public; BEGIN").await.unwrap();
    other.execute(sql).await.unwrap();
    other
}

/// A commit on its way, and the moment at which it waits for a lock.
async fn waiting(
    f: &Fixture,
    table: &PostgresTable,
    entry: CommitEntry,
    base: Base,
) -> JoinHandle<CommitOutcome> {
    let table = table.clone();
    let going = tokio::spawn(async move { commit(&table, &[entry], &base, true).await.unwrap() });
    let mut look = f.other().await;
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 OR (NOT granted AND locktype IN ('transactionid', 'tuple'))";
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(&mut look).await.unwrap() == 0 {
        assert!(!going.is_finished(), "the commit did not wait");
        tokio::task::yield_now().await;
    }
    look.close().await.unwrap();
    going
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_commit_while_rows_are_written_conflicts() {
    let f = filled().await;
    let one = days(&[ONE]);
    let base = f.table.head(&one).await.unwrap();
    let staged = f.stage("r2", &one, Intent::Replace, &[(ONE, "FR", 9, 9, 0)]).await.unwrap();
    let mut other = open_transaction(&f, "UPDATE sales SET amount = 7 WHERE id = 1").await;
    let going = waiting(&f, &f.table, apply(&staged), base).await;
    other.execute("COMMIT").await.unwrap();
    let outcome = going.await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");
    assert_eq!(f.rows().await, ["2026-10-01/FR/1/7/0", "2026-10-02/FR/2/2/0"]);
    let base = f.table.head(&one).await.unwrap();
    committed(commit(&f.table, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/9/9/0", "2026-10-02/FR/2/2/0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_locks_the_table_waits_for_rows_that_it_could_not_see() {
    let f = filled().await;
    let one = days(&[ONE]);
    let table = f.table.clone().with_locked_table();
    let base = table.head(&one).await.unwrap();
    let staged = f.stage("r2", &one, Intent::Replace, &[]).await.unwrap();
    let mut other = open_transaction(&f, "INSERT INTO sales VALUES ('2026-10-01', 'DE', 3, 3, 0)").await;
    let going = waiting(&f, &table, apply(&staged), base).await;
    other.execute("COMMIT").await.unwrap();
    let outcome = going.await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "{outcome:?}");
    assert_eq!(f.rows().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_to_other_partitions_do_not_wait_and_numbers_follow_the_commits() {
    let f = filled().await;
    let (one, two) = (days(&[ONE]), days(&[TWO]));
    let base = f.table.head(&one).await.unwrap();
    let staged = f.stage("r2", &one, Intent::Replace, &[(ONE, "FR", 9, 9, 0)]).await.unwrap();
    let mut other = open_transaction(&f, "SELECT * FROM sales WHERE id = 1 FOR UPDATE").await;
    let going = waiting(&f, &f.table, apply(&staged), base).await;
    let quick = f.replace("r3", &two, &[(TWO, "FR", 2, 3, 0)]).await;
    assert_eq!((quick.version.as_str(), quick.order), ("2", 2));
    assert_eq!(f.table.head(&one).await.unwrap().partitions[&day(ONE)].as_str(), "1");
    other.execute("ROLLBACK").await.unwrap();
    let slow = committed(going.await.unwrap());
    assert_eq!((slow.version.as_str(), slow.order), ("3", 3));
    assert_eq!(slow.partitions, f.table.head(&one).await.unwrap());
    assert_eq!(f.rows().await, ["2026-10-01/FR/9/9/0", "2026-10-02/FR/2/3/0"]);
}

#[tokio::test]
async fn changes_of_others_that_are_put_together_are_the_same_versions() {
    let f = filled().await;
    let pinned = pin(&f.table, Slice::All).await.unwrap();
    // Alone, since a transaction around it could not be ended inside.
    f.database
        .execute(
            "DO 'BEGIN FOR n IN 1..600 LOOP
               INSERT INTO public.sales VALUES (''2026-10-01'', ''DE'', n, n, 0); COMMIT; END LOOP; END'",
        )
        .await;
    let keys = [day(ONE), day(TWO), day(ONE).and("country", "DE"), PartitionKey::whole()];
    let versions = async || {
        let mut versions = Vec::new();
        for key in &keys {
            versions.push(f.version(key.clone()).await.as_str().to_owned());
        }
        versions
    };
    assert_eq!(versions().await, ["1.600", "1", "1.600", "1.600"]);
    // At a moment at which no transaction is open anywhere on the server, so that it tells old from new.
    let between = loop {
        let now = f.table.current().await.unwrap();
        if now.as_str().ends_with(':') {
            break now;
        }
    };
    // A transaction that is open anywhere on the server, as in another test, has them left for the next commit.
    let left = "SELECT count(*) FROM reprocess.table_foreign";
    let mut commits = 1;
    while sqlx::query_scalar::<_, i64>(left).fetch_one(&mut f.other().await).await.unwrap() > 1 {
        commits += 1;
        assert!(commits < 500, "the log is never put together");
        f.replace(&format!("r{commits}"), &days(&["2026-10-05"]), &[]).await;
    }
    assert!(commits > 1);
    assert_eq!(versions().await, ["1.600", "1", "1.600", &format!("{commits}.600")]);
    // A moment after all of them and one before any of them are told as before.
    let one = [Slice::Partitions([day(ONE)].into())];
    let at = async |version| f.table.slice_versions(version, &one).await.unwrap()[0].as_str().to_owned();
    assert_eq!(at(&between).await, "1.600");
    assert_eq!(at(&pinned.version).await, "1");
}

#[tokio::test]
async fn staged_rows_that_a_crash_took_are_not_committed() {
    let f = filled().await;
    let one = days(&[ONE]);
    let base = f.table.head(&one).await.unwrap();
    let staged = f.stage("r2", &one, Intent::Replace, &[(ONE, "FR", 9, 9, 0)]).await.unwrap();
    let empty = f.stage("r3", &days(&[TWO]), Intent::Replace, &[]).await.unwrap();
    f.sql(
        "DO 'DECLARE name text; BEGIN FOR name IN SELECT relname FROM pg_class WHERE relpersistence = ''u'' AND relkind = ''r''
             LOOP EXECUTE ''TRUNCATE reprocess.'' || name; END LOOP; END'",
    )
    .await;
    assert_eq!(f.table.open(&staged.id).await.unwrap(), None);
    assert_eq!(f.table.list(&"r2".into()).await.unwrap(), []);
    assert_eq!(f.table.open(&empty.id).await.unwrap(), Some(empty));
    let error = refused(commit(&f.table, &[apply(&staged)], &base, true).await, &["gone"]);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(f.rows().await.len(), 2);
}

#[tokio::test]
async fn a_key_of_others_lets_only_the_difference_be_written() {
    let f = fixture().await;
    f.sql(
        "CREATE TABLE theirs (day date, id bigint PRIMARY KEY, amount double precision, note text);
         INSERT INTO theirs SELECT '2026-10-01', n, n, 'n' FROM generate_series(1, 20) AS n;
         INSERT INTO theirs VALUES ('2026-10-02', 99, 1, 'stays');
         CREATE TABLE written (what text, id bigint);
         CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN INSERT INTO public.written VALUES (TG_OP, coalesce(new.id, old.id)); RETURN NULL; END';
         CREATE TRIGGER watch AFTER INSERT OR UPDATE OR DELETE ON theirs FOR EACH ROW EXECUTE FUNCTION watch()",
    )
    .await;
    let by_day = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let table = table_of(&f.db, "theirs", by_day).await;
    table.adopt().await.unwrap();
    let one = days(&[ONE]);
    let replace = async |run: &str, rows: &str| {
        let pin = pin(&table, Slice::All).await.unwrap();
        let input =
            PinnedInput { pin, reader: std::sync::Arc::new(table.clone()), staged: vec![], writer: None };
        let rows = Rows::Query(Query {
            sql: rows.to_owned(),
            params: [].into(),
            inputs: [("theirs".to_owned(), input)].into(),
        });
        let base = table.head(&one).await.unwrap();
        let staged = table.stage(&request(run, &one, Intent::Replace), rows).await?;
        committed(commit(&table, &[apply(&staged)], &base, true).await?);
        let written: Vec<(String,)> = sqlx::query_as(
            "WITH gone AS (DELETE FROM public.written RETURNING what, id)
             SELECT what || ' ' || id FROM gone ORDER BY 1",
        )
        .fetch_all(&mut f.other().await)
        .await
        .unwrap();
        Ok::<_, reprocess_core::Error>(written.into_iter().map(|(what,)| what).collect::<Vec<_>>())
    };
    // A zero of another sign is another value; 3 goes, 21 comes.
    let sql = "SELECT day, id, CASE id WHEN 1 THEN '-0'::float8 ELSE amount END AS amount, note FROM theirs
               WHERE day = '2026-10-01' AND id <> 3 UNION ALL SELECT '2026-10-01', 21, 21, 'n'";
    assert_eq!(replace("r1", sql).await.unwrap(), ["DELETE 3", "INSERT 21", "UPDATE 1"]);
    assert_eq!(replace("r2", "SELECT * FROM theirs WHERE day = '2026-10-01'").await.unwrap(), [""; 0]);
    let all = "SELECT day, id, amount + 1 AS amount, note FROM theirs WHERE day = '2026-10-01'";
    assert_eq!(replace("r3", all).await.unwrap().len(), 40, "where all differs it is deleted and inserted");
    let twice = "SELECT t.* FROM theirs AS t, generate_series(1, 2) WHERE day = '2026-10-01'";
    refused(replace("r4", twice).await, &["the same keys in 40 rows", "id=1 (2)"]);
    // Of many rows some are looked at first.
    f.sql(
        "INSERT INTO theirs SELECT '2026-10-01', n, n, 'n' FROM generate_series(1001, 11000) AS n;
         DELETE FROM written",
    )
    .await;
    let one_of_many = "SELECT day, id, CASE id WHEN 1001 THEN 0 ELSE amount END AS amount, note FROM theirs
                       WHERE day = '2026-10-01'";
    assert_eq!(replace("few of many", one_of_many).await.unwrap(), ["UPDATE 1001"]);
    assert_eq!(replace("all of many", all).await.unwrap().len(), 20_040);
    // A key that is unique over partitions is another row's there.
    let elsewhere = "SELECT '2026-10-01'::date AS day, 99::bigint AS id, 1::float8 AS amount, '' AS note";
    assert_eq!(refused(replace("r5", elsewhere).await, &["23505"]).kind(), ErrorKind::Invalid);
    assert_eq!(rows(&table).await.len(), 10_021);
}

#[tokio::test]
async fn rows_that_others_hide_or_hang_on_are_not_replaced_unseen() {
    let f = filled().await;
    let one = days(&[ONE]);
    f.sql("ALTER TABLE sales ADD UNIQUE (id); CREATE TABLE lines (sale bigint REFERENCES sales (id) ON DELETE CASCADE)")
        .await;
    let base = f.table.head(&one).await.unwrap();
    let staged = f.stage("r2", &one, Intent::Replace, &[]).await.unwrap();
    let error =
        refused(commit(&f.table, &[apply(&staged)], &base, true).await, &["lines", "lines_sale_fkey"]);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    f.sql("DROP TABLE lines; CREATE RULE none AS ON INSERT TO sales WHERE new.id = 9 DO INSTEAD NOTHING")
        .await;
    let staged = f.stage("r3", &one, Intent::Replace, &[(ONE, "FR", 9, 9, 0)]).await.unwrap();
    refused(
        commit(&f.table, &[apply(&staged)], &base, true).await,
        &["0 rows are there after the commit of 1"],
    );
    let hidden = "ALTER TABLE sales ENABLE ROW LEVEL SECURITY; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role};
                  GRANT USAGE ON SCHEMA reprocess TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA reprocess TO {role}";
    let role = f.database.role(&hidden.replace("sales", "public.sales")).await;
    let db = reprocess_postgres::PostgresDatabase::connect(&role).await.unwrap();
    let table = table_of(&db, "sales", by_day_and_country()).await;
    let pinned = pin(&table, Slice::All).await.unwrap();
    refused(read(&table, &pinned).await, &["42501"]);
    assert_eq!(f.rows().await.len(), 2);
}

#[tokio::test]
async fn a_merge_into_a_table_of_others_needs_its_key() {
    let f = fixture().await;
    f.sql(
        "CREATE TABLE theirs (day date, country text, id bigint NOT NULL, amount bigint, rev bigint);
         CREATE UNIQUE INDEX part ON theirs (id) WHERE amount > 0; CREATE INDEX plain ON theirs (id)",
    )
    .await;
    let table = table_of(&f.db, "theirs", by_day_and_country()).await;
    table.adopt().await.unwrap();
    let merge = request("r1", &Scope::whole_table(), Intent::Merge(by_id()));
    let given = || of(batch(&[(ONE, "FR", 1, 1, 0)]));
    refused(table.stage(&merge, given()).await, &["unique key", "id"]);
    f.sql("ALTER TABLE theirs ADD UNIQUE (id)").await;
    let base = table.head(&Scope::whole_table()).await.unwrap();
    let staged = table.stage(&merge, given()).await.unwrap();
    committed(commit(&table, &[apply(&staged)], &base, true).await.unwrap());
    assert_eq!(rows(&table).await, ["2026-10-01/FR/1/1/0"]);
}
