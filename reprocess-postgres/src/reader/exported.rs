//! Snapshots that other connections can read in.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use reprocess_core::{Error, Result};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::{PostgresDatabase, Tx};
use crate::sql::Statement;

/// The name of an exported snapshot, like `00000003-0000001B-1`. It stands in statements, where it cannot be bound, so that
/// there is no other form of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SnapshotId(String);

impl SnapshotId {
    /// Whether an error says that a snapshot is no longer there: its name is not known, in the words of each version of
    /// the server, or its transaction ended in this moment.
    pub(crate) fn is_over(error: &Error) -> bool {
        let over = ["22023", "42704", "55000"];
        error.context().any(|(name, value)| name == "sqlstate" && over.contains(&value))
    }
}

impl FromStr for SnapshotId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('-');
        let hexadecimal = |part: Option<&str>| {
            part.is_some_and(|p| p.len() == 8 && p.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F')))
        };
        let number = |part: Option<&str>| {
            part.is_some_and(|p| (1..=10).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit()))
        };
        let well_formed = hexadecimal(parts.next())
            && hexadecimal(parts.next())
            && number(parts.next())
            && parts.next().is_none();
        if well_formed { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One moment of a database, kept so that many connections of this process can read in it.
///
/// It is for one run. As long as it is there the server removes no row versions that are younger, in the whole database:
/// a snapshot of hours makes tables and indexes grow. It ends when it is dropped, with its process and with its
/// connection, and what was pinned in it cannot be read any more. A partition that others detach, swap or truncate
/// meanwhile is read as it is then, which breaks the pin.
///
/// It holds one connection, of the server too where a pooler in transaction mode stands between: its transaction stays
/// open, and those that read in it have to reach the same server through the same database of the pooler.
#[derive(Debug)]
pub struct ExportedSnapshot {
    database: PostgresDatabase,
    id: SnapshotId,
    stop: oneshot::Sender<()>,
    keeper: JoinHandle<Result<()>>,
}

impl ExportedSnapshot {
    /// The moment now. Needs a runtime as long as it is there.
    pub async fn export(database: &PostgresDatabase) -> Result<Self> {
        let mut tx = database.begin_read().await?;
        let (text,): (String,) =
            Statement::new("SELECT pg_export_snapshot()").one(&mut tx, "export a snapshot").await?;
        let id = text.parse().map_err(|()| {
            Error::internal(format!("the server calls a snapshot `{}`", text.escape_debug()))
        })?;
        let (stop, stopped) = oneshot::channel();
        let keeper = tokio::spawn(keep(tx, beat(database.config().idle_timeout_ms), stopped));
        Ok(Self { database: database.clone(), id, stop, keeper })
    }

    /// The database of the snapshot.
    pub fn database(&self) -> &PostgresDatabase {
        &self.database
    }

    /// Ends it. An error says that it ended before, and why.
    pub async fn end(self) -> Result<()> {
        drop(self.stop);
        self.keeper.await.map_err(|e| Error::internal("a snapshot has no keeper").with_source(e))?
    }

    pub(crate) fn id(&self) -> &SnapshotId {
        &self.id
    }
}

/// Keeps the transaction open, and busy often enough that the server does not take its client for one that hangs.
async fn keep(mut tx: Tx, beat: Duration, mut stopped: oneshot::Receiver<()>) -> Result<()> {
    loop {
        tokio::select! {
            _ = &mut stopped => return tx.rollback().await,
            () = tokio::time::sleep(beat) => {}
        }
        if let Err(error) = Statement::new("SELECT 1").execute(&mut tx, "keep a snapshot").await {
            tracing::warn!(%error, "an exported snapshot has ended");
            return Err(error);
        }
    }
}

fn beat(idle_timeout_ms: u32) -> Duration {
    const MOST_MS: u32 = 30_000;
    let beat_ms = if idle_timeout_ms == 0 { MOST_MS } else { (idle_timeout_ms / 3).clamp(1, MOST_MS) };
    Duration::from_millis(beat_ms.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_nothing_else() {
        assert_eq!("00000003-0000001B-1".parse::<SnapshotId>().unwrap().to_string(), "00000003-0000001B-1");
        for text in [
            "",
            "00000003-0000001B",
            "00000003-0000001B-",
            "00000003-0000001b-1",
            "00000003-0000001B-1'",
            "00000003-0000001B-1; DROP TABLE t",
            "00000003-0000001B-1-1",
            "../00003-0000001B-1",
            "00000003-0000001B-1\n",
        ] {
            assert!(text.parse::<SnapshotId>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_keeper_is_faster_than_the_server() {
        assert_eq!([0, 1, 20_000, 600_000].map(|ms| beat(ms).as_millis()), [30_000, 1, 6_666, 30_000]);
    }
}
