//! Tables that others have partitioned.

mod children;
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
