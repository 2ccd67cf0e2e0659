//! Tables that others have partitioned.

mod busy;
mod children;
mod fallback;
mod swap;
mod through;

use super::support::*;

pub(super) const ONE: &str = "2026-10-01";
pub(super) const TWO: &str = "2026-10-02";

/// The table `sales`, a partition `sales_1` to `sales_3` for each of the first days of October, taken on.
pub(super) async fn partitioned() -> Fixture {
    partitioned_by(
        "RANGE (day);
         CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2026-10-01') TO ('2026-10-02');
         CREATE TABLE sales_2 PARTITION OF sales FOR VALUES FROM ('2026-10-02') TO ('2026-10-03');
         CREATE TABLE sales_3 PARTITION OF sales FOR VALUES FROM ('2026-10-03') TO ('2026-10-04')",
    )
    .await
}

/// The same, with a key, an index and a foreign key, a view and a grant, and a handle that swaps.
pub(super) async fn swapping() -> Fixture {
    let mut f = partitioned().await;
    f.sql(
        "CREATE TABLE countries (code text PRIMARY KEY); INSERT INTO countries VALUES ('FR'), ('DE');
         ALTER TABLE sales ADD PRIMARY KEY (day, id), ADD CHECK (amount < 1000),
             ADD FOREIGN KEY (country) REFERENCES countries, ALTER rev SET DEFAULT 5;
         CREATE INDEX \"By amount\" ON sales (amount) WHERE rev = 0; CREATE INDEX ON sales_1 (rev DESC NULLS LAST);
         CREATE VIEW seen AS SELECT day, sum(amount) AS amount FROM sales GROUP BY day; GRANT SELECT ON sales TO public",
    )
    .await;
    f.table.adopt().await.unwrap();
    f.table = f.table.with_swap();
    let rows = [(ONE, "FR", 1, 1, 0), (ONE, "DE", 2, 2, 0), (TWO, "FR", 3, 3, 0)];
    f.replace("r1", &days(&[ONE, TWO]), &rows).await;
    f
}

/// Which table is the partition of this name, at the moment.
pub(super) async fn oid(f: &Fixture, name: &str) -> i64 {
    one(f, &format!("SELECT '{name}'::regclass::oid::bigint")).await
}

/// The number that a statement selects.
pub(super) async fn one(f: &Fixture, sql: &str) -> i64 {
    let sql = sqlx::AssertSqlSafe(format!("SET search_path = public; {sql}"));
    let row = sqlx::raw_sql(sql).fetch_all(&mut f.other().await).await.unwrap().pop().unwrap();
    sqlx::Row::get(&row, 0)
}

/// The texts that a statement selects, in order.
pub(super) async fn texts_of(f: &Fixture, sql: &str) -> Vec<String> {
    let rows =
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).fetch_all(&mut f.other().await).await.unwrap();
    rows.iter().map(|row| sqlx::Row::get(row, 0)).collect()
}

/// The table `sales` and its partitions as the statements say.
pub(super) async fn partitioned_by(how: &str) -> Fixture {
    let database = crate::server::TestDatabase::fresh().await;
    let columns = "day date, country text, id bigint, amount bigint, rev bigint";
    database.execute(&format!("CREATE TABLE sales ({columns}) PARTITION BY {how}")).await;
    let db = open(&database).await;
    let table = table_of(&db, "sales", by_day_and_country()).await;
    table.adopt().await.unwrap();
    Fixture { table, db, database }
}
