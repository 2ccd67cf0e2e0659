//! Waiting for those who would miss the rows.

use reprocess_core::Result;

use super::backoff;
use crate::sql::Statement;
use crate::writer::PostgresTable;

const WHAT: &str = "look for transactions that began before the rows were staged";

/// Backends whose snapshot may be from before one of the transactions `$1`, standby servers that say so among them. Those
/// that began later count too, where an older transaction was open as they began: what they see cannot be asked.
const OLDER: &str = "
    SELECT pid::bigint AS pid, coalesce(xact_start, backend_start)::text AS since
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
      AND (datname = current_database() OR backend_type = 'walsender')
      AND backend_xmin IS NOT NULL AND age(backend_xmin) >= (SELECT min(age(x::xid8::xid)) FROM unnest($1::text[]) AS x)";

/// Waits until everyone who began before the transactions has ended. Answers why not, where it does not come to that.
pub(super) async fn for_older_readers(table: &PostgresTable, built: Vec<String>) -> Result<Option<String>> {
    let mut tx = table.database().begin().await?;
    let (sees_all,): (bool,) =
        Statement::new("SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')")
            .one(&mut tx, WHAT)
            .await?;
    if !sees_all {
        tx.rollback().await?;
        return Ok(Some("the role cannot see transactions of others: grant it pg_read_all_stats".to_owned()));
    }
    // Who begins later sees the rows, however old the oldest transaction is that it waits for itself.
    let mut older: Vec<(i64, String)> = Statement::new(OLDER).bind(built.clone()).all(&mut tx, WHAT).await?;
    tx.rollback().await?;
    let mut delays = backoff(table);
    while !older.is_empty() {
        let Some(delay) = delays.next() else {
            let pids: Vec<_> = older.iter().map(|(pid, _)| pid.to_string()).collect();
            return Ok(Some(format!("transactions that began earlier are still open: {}", pids.join(", "))));
        };
        tokio::time::sleep(delay).await;
        let (pids, since): (Vec<i64>, Vec<String>) = older.into_iter().unzip();
        let mut tx = table.database().begin().await?;
        older = Statement::new(format!(
            "SELECT o.pid, o.since FROM ({OLDER}) AS o
             JOIN unnest($2::bigint[], $3::text[]) AS k (pid, since) ON k.pid = o.pid AND k.since = o.since"
        ))
        .bind(built.clone())
        .bind(pids)
        .bind(since)
        .all(&mut tx, WHAT)
        .await?;
        tx.rollback().await?;
    }
    Ok(None)
}
