//! The tables of the ledger, and how they get their present form.

use reprocess_core::{Error, ErrorKind, Result};
use sqlx::SqliteConnection;

use super::row::corrupt;
use crate::config::SqliteDatabase;
use crate::error::Doing;

/// What leads from each form to the next; the first from nothing. Never change one that was released.
const FORMS: [&str; 1] = [include_str!("v1.sql")];

const VERSION_TABLE: &str = "
    CREATE TABLE IF NOT EXISTS reprocess_ledger_version (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        version  INTEGER NOT NULL CHECK (version >= 1)
    ) STRICT";

/// Brings the ledger of a file to the present form, all in one transaction. Refuses one of a newer form.
pub(super) async fn prepare(db: &SqliteDatabase) -> Result<()> {
    // A ledger of the present form is opened without the write lock, which may be held for long.
    if missing_forms(&mut *db.begin_read().await?).await?.is_empty() {
        return Ok(());
    }
    let mut tx = db.begin_write().await?;
    for form in missing_forms(&mut tx).await? {
        sqlx::raw_sql(*form).execute(&mut *tx).await.doing("create the tables of the ledger")?;
    }
    sqlx::raw_sql(VERSION_TABLE).execute(&mut *tx).await.doing("create the tables of the ledger")?;
    sqlx::query("INSERT OR REPLACE INTO reprocess_ledger_version (only_row, version) VALUES (1, ?)")
        .bind(i64::try_from(FORMS.len()).unwrap_or(i64::MAX))
        .execute(&mut *tx)
        .await
        .doing("write the version of the ledger")?;
    tx.commit().await.doing("create the tables of the ledger")
}

async fn missing_forms(conn: &mut SqliteConnection) -> Result<&'static [&'static str]> {
    let version = version(conn).await?;
    usize::try_from(version).ok().and_then(|version| FORMS.get(version..)).ok_or_else(|| {
        let newest = FORMS.len();
        Error::new(
            ErrorKind::Corrupt,
            format!("the ledger has form {version}, and this version knows forms up to {newest}"),
        )
        .with_advice("use the version of reprocess that wrote it, or a newer one")
    })
}

/// 0 where there is no ledger.
async fn version(conn: &mut SqliteConnection) -> Result<i64> {
    let exists: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'reprocess_ledger_version')",
    )
    .fetch_one(&mut *conn)
    .await
    .doing("look for a ledger")?;
    if !exists {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT version FROM reprocess_ledger_version")
        .fetch_optional(conn)
        .await
        .doing("read the version of the ledger")?
        .ok_or_else(|| corrupt("the ledger has lost its version"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprocess_core::ports::ledger::{BackfillState, TaskState};

    #[test]
    fn the_tables_know_the_states_of_core() {
        let listed = |names: Vec<&str>| names.iter().map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ");
        let squeezed = FORMS.concat().split_whitespace().collect::<Vec<_>>().join(" ");
        let check = |names| {
            let list = listed(names);
            assert!(
                squeezed.contains(&format!("(state IN ( {list}))"))
                    || squeezed.contains(&format!("(state IN ({list}))")),
                "{list}"
            );
        };
        check(BackfillState::ALL.map(BackfillState::name).to_vec());
        check(TaskState::ALL.map(TaskState::name).to_vec());
        check(TaskState::ALL.into_iter().filter(|s| s.is_success()).map(TaskState::name).collect());
    }
}
