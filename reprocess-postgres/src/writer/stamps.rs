//! Stamps: how a commit is recognised later.

use reprocess_core::ports::writer::{Commit, StampId};
use reprocess_core::{Error, Result};
use sqlx::PgConnection;

use super::PostgresTable;
use crate::catalog::{Managed, from_json, to_json};

const WHAT: &str = "look for an earlier commit";

/// A stamp that was committed.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) seq: i64,
    pub(super) attempt: u32,
    pub(super) commit: Commit,
}

/// Names a stamp in an index, however long its run and job are.
pub(crate) fn digest(stamp: &StampId) -> Result<String> {
    Ok(blake3::hash(to_json(stamp)?.as_bytes()).to_hex().to_string())
}

/// What each stamp's commit said, in order.
pub(super) async fn find(
    connection: &mut PgConnection,
    table: &PostgresTable,
    stamps: &[StampId],
) -> Result<Vec<Option<Done>>> {
    let digests = stamps.iter().map(digest).collect::<Result<Vec<_>>>()?;
    let rows: Vec<(i64, i64, i64, String)> = table
        .database()
        .schema()
        .sql(
            "SELECT k.place - 1, s.seq, s.attempt, c.outcome
             FROM unnest($2::text[]) WITH ORDINALITY AS k (digest, place)
             JOIN reprocess.table_registry AS r ON r.table_id = $1
             JOIN reprocess.table_stamp AS s ON s.t = r.t AND s.digest = k.digest
             JOIN reprocess.table_commit AS c ON c.t = s.t AND c.seq = s.seq",
        )
        .bind(table.spec().id.as_str())
        .bind(digests)
        .all(connection, WHAT)
        .await?;
    let mut found = vec![None; stamps.len()];
    for (place, seq, attempt, outcome) in rows {
        let attempt = u32::try_from(attempt).map_err(|_| Error::internal("an attempt is no small number"))?;
        let place = usize::try_from(place).ok().and_then(|place| found.get_mut(place));
        if let Some(place) = place {
            *place = Some(Done { seq, attempt, commit: from_json(&outcome)? });
        }
    }
    Ok(found)
}

/// Writes a commit and the stamps that it completed.
pub(super) async fn write(
    connection: &mut PgConnection,
    table: &Managed,
    seq: i64,
    commit: &Commit,
    completed: &[(StampId, u32)],
) -> Result<()> {
    let what = "write the stamps of a commit";
    table
        .schema
        .sql("INSERT INTO reprocess.table_commit (t, seq, outcome) VALUES ($1, $2, $3)")
        .bind(table.t)
        .bind(seq)
        .bind(to_json(commit)?)
        .execute(connection, what)
        .await?;
    let stamps = completed.iter().map(|(stamp, _)| to_json(stamp)).collect::<Result<Vec<_>>>()?;
    let digests = completed.iter().map(|(stamp, _)| digest(stamp)).collect::<Result<Vec<_>>>()?;
    let attempts: Vec<_> = completed.iter().map(|(_, attempt)| i64::from(*attempt)).collect();
    table
        .schema
        .sql(
            "INSERT INTO reprocess.table_stamp (t, digest, stamp, attempt, seq)
             SELECT $1, k.digest, k.stamp, k.attempt, $2
             FROM unnest($3::text[], $4::text[], $5::bigint[]) AS k (digest, stamp, attempt)",
        )
        .bind(table.t)
        .bind(seq)
        .bind(digests)
        .bind(stamps)
        .bind(attempts)
        .execute(connection, what)
        .await?;
    Ok(())
}

/// What the commits of stamps that are all done said.
pub(super) fn summed(mut done: Vec<Done>) -> Result<Commit> {
    done.sort_by_key(|d| d.seq);
    Commit::sum(done.into_iter().map(|d| d.commit)).ok_or_else(|| Error::internal("nothing was committed"))
}
