//! What one would write by hand over PostgreSQL: no library, no ledger, no checks.

use bytes::BytesMut;
use pgpq::ArrowToPostgresBinaryEncoder;
use reprocess::arrow::array::RecordBatch;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};

use super::facts::schema;

/// How many bytes are sent at once.
const CHUNK_BYTES: usize = 1 << 20;

/// `DELETE` and `COPY` in one transaction.
pub(crate) async fn replace(pool: &PgPool, table: &str, day: u32, rows: impl Iterator<Item = RecordBatch>) {
    let mut tx = pool.begin().await.unwrap();
    let delete = format!("DELETE FROM {table} WHERE day = date '2026-01-01' + {day}");
    sqlx::query(AssertSqlSafe(delete)).execute(&mut *tx).await.unwrap();
    copy(&mut tx, table, rows).await;
    tx.commit().await.unwrap();
}

/// A new table, and then its key and its index: what rows that are to be indexed take at least.
pub(crate) async fn load(pool: &PgPool, table: &str, rows: impl Iterator<Item = RecordBatch>) {
    let mut tx = pool.begin().await.unwrap();
    let create = format!("CREATE TABLE {table} (LIKE ours INCLUDING DEFAULTS)");
    sqlx::query(AssertSqlSafe(create)).execute(&mut *tx).await.unwrap();
    copy(&mut tx, table, rows).await;
    for index in [
        format!("ALTER TABLE {table} ADD PRIMARY KEY (day, id)"),
        format!("CREATE INDEX ON {table} (customer)"),
    ] {
        sqlx::query(AssertSqlSafe(index)).execute(&mut *tx).await.unwrap();
    }
    tx.commit().await.unwrap();
}

/// A staging table, and one statement from there in the same transaction.
pub(crate) async fn merge(pool: &PgPool, statement: &str, rows: impl Iterator<Item = RecordBatch>) {
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("CREATE TEMP TABLE incoming (LIKE plain) ON COMMIT DROP").execute(&mut *tx).await.unwrap();
    copy(&mut tx, "incoming", rows).await;
    sqlx::query("ANALYZE incoming").execute(&mut *tx).await.unwrap();
    sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
}

/// Adds rows in the binary format.
pub(crate) async fn copy(
    connection: &mut PgConnection,
    table: &str,
    rows: impl Iterator<Item = RecordBatch>,
) {
    let mut encoder = ArrowToPostgresBinaryEncoder::try_new(&schema()).unwrap();
    let mut bytes = BytesMut::new();
    encoder.write_header(&mut bytes).unwrap();
    let names: Vec<_> = schema().fields().iter().map(|field| field.name().clone()).collect();
    let sql = format!("COPY {table} ({}) FROM STDIN (FORMAT binary)", names.join(", "));
    let mut copying = connection.copy_in_raw(&sql).await.unwrap();
    for batch in rows {
        encoder.write_batch(&batch, &mut bytes).unwrap();
        if bytes.len() >= CHUNK_BYTES {
            copying.send(bytes.split().freeze().as_ref()).await.unwrap();
        }
    }
    encoder.write_footer(&mut bytes).unwrap();
    copying.send(bytes.as_ref()).await.unwrap();
    copying.finish().await.unwrap();
}
