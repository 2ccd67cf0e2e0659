//! Stamps: how a commit is recognised later.

use reprocess_core::domain::job::TableSpec;
use reprocess_core::ports::writer::{Commit, StampId};
use reprocess_core::{Error, Result};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use crate::catalog::{from_json, to_json};
use crate::error::Doing;
use crate::sql::Sql;

const WHAT: &str = "look for an earlier commit";

/// A stamp that was committed.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) seq: i64,
    pub(super) attempt: u32,
    pub(super) commit: Commit,
}

/// What each stamp's commit said, in order.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    spec: &TableSpec,
    stamps: &[StampId],
) -> Result<Vec<Option<Done>>> {
    let mut found = Vec::with_capacity(stamps.len());
    for stamp in stamps {
        let row = Sql::new(
            "SELECT s.seq, s.attempt, c.outcome FROM main.reprocess_table AS r
             JOIN main.reprocess_stamp AS s ON s.t = r.t
             JOIN main.reprocess_commit AS c ON c.t = s.t AND c.seq = s.seq
             WHERE r.table_id = ",
        )
        .bind(spec.id.as_str())
        .text(" AND s.stamp = ")
        .bind(to_json(stamp)?)
        .first(connection, WHAT)
        .await?;
        found.push(match row {
            Some(row) => Some(Done {
                seq: row.try_get(0).doing(WHAT)?,
                attempt: row.try_get(1).doing(WHAT)?,
                commit: from_json(&row.try_get::<String, _>(2).doing(WHAT)?)?,
            }),
            None => None,
        });
    }
    Ok(found)
}

/// The attempt of a stamp that was committed.
pub(super) async fn committed_attempt(
    connection: &mut SqliteConnection,
    spec: &TableSpec,
    stamp: &StampId,
) -> Result<Option<u32>> {
    let found = find(connection, spec, std::slice::from_ref(stamp)).await?;
    Ok(found.into_iter().flatten().next().map(|done| done.attempt))
}

/// Writes a commit and the stamps that it completed.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    t: i64,
    seq: i64,
    commit: &Commit,
    completed: &[(StampId, u32)],
) -> Result<()> {
    let what = "write the stamps of a commit";
    Sql::new("INSERT INTO main.reprocess_commit (t, seq, outcome) VALUES (")
        .bind(t)
        .text(", ")
        .bind(seq)
        .text(", ")
        .bind(to_json(commit)?)
        .text(")")
        .execute(connection, what)
        .await?;
    let mut rows = Vec::with_capacity(completed.len());
    for (stamp, attempt) in completed {
        rows.push((to_json(stamp)?, attempt));
    }
    Sql::new("INSERT INTO main.reprocess_stamp (t, stamp, attempt, seq) SELECT ")
        .bind(t)
        .text(", value ->> 0, value ->> 1, ")
        .bind(seq)
        .text(" FROM json_each(")
        .bind(to_json(&rows)?)
        .text(")")
        .execute(connection, what)
        .await?;
    Ok(())
}

/// What the commits of stamps that are all done said.
pub(super) fn summed(mut done: Vec<Done>) -> Result<Commit> {
    done.sort_by_key(|d| d.seq);
    Commit::sum(done.into_iter().map(|d| d.commit)).ok_or_else(|| Error::internal("nothing was committed"))
}
