//! The one place where errors of SQLite become errors of reprocess.

use reprocess_core::{Error, ErrorKind, Result};

/// Result codes of SQLite without their extension, see <https://www.sqlite.org/rescode.html>.
mod code {
    pub(super) const PERM: i64 = 3;
    pub(super) const BUSY: i64 = 5;
    pub(super) const LOCKED: i64 = 6;
    pub(super) const READONLY: i64 = 8;
    pub(super) const IOERR: i64 = 10;
    pub(super) const CORRUPT: i64 = 11;
    pub(super) const FULL: i64 = 13;
    pub(super) const CANTOPEN: i64 = 14;
    pub(super) const PROTOCOL: i64 = 15;
    pub(super) const TOOBIG: i64 = 18;
    pub(super) const CONSTRAINT: i64 = 19;
    pub(super) const NOTADB: i64 = 26;
}

/// Says what was being done when SQLite failed.
pub(crate) trait Doing<T> {
    /// Maps the error; `what` reads as in "could not {what}".
    fn doing(self, what: &str) -> Result<T>;
}

impl<T> Doing<T> for Result<T, sqlx::Error> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| map(e, what))
    }
}

/// Maps an error of SQLite.
pub(crate) fn map(error: sqlx::Error, what: &str) -> Error {
    let kind = kind(&error);
    let mapped = Error::new(kind, format!("SQLite could not {what}"));
    let mapped = match (kind, primary_code(&error)) {
        (ErrorKind::Storage, Some(code::FULL)) => {
            mapped.with_advice("free space on the disk, or raise the limit of the file, and try again")
        }
        (ErrorKind::Storage, _) => mapped.with_advice("check the disk and the permissions of the file"),
        (ErrorKind::Corrupt, _) => mapped.with_advice("restore the file from a backup"),
        (ErrorKind::Unavailable, _) => {
            mapped.with_advice("another process holds the database; try again, or look for one that hangs")
        }
        _ => mapped,
    };
    match error {
        // As text: the error and its own source say the same.
        sqlx::Error::Database(error) => mapped.with_source(error.to_string()),
        other => mapped.with_source(other),
    }
}

/// Whether another connection was in the way, so that waiting helps.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::PoolTimedOut)
        || matches!(primary_code(error), Some(code::BUSY | code::LOCKED | code::PROTOCOL))
}

fn kind(error: &sqlx::Error) -> ErrorKind {
    if is_busy(error) {
        return ErrorKind::Unavailable;
    }
    match primary_code(error) {
        Some(code::FULL | code::IOERR | code::READONLY | code::PERM | code::CANTOPEN) => ErrorKind::Storage,
        Some(code::CORRUPT | code::NOTADB) => ErrorKind::Corrupt,
        Some(code::CONSTRAINT | code::TOOBIG) => ErrorKind::Invalid,
        Some(_) => ErrorKind::Internal,
        None => match error {
            sqlx::Error::Io(_) => ErrorKind::Storage,
            sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => ErrorKind::Unavailable,
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => ErrorKind::Corrupt,
            _ => ErrorKind::Internal,
        },
    }
}

/// The lower eight bits are the code proper, the others say more about the same.
fn primary_code(error: &sqlx::Error) -> Option<i64> {
    let code = error.as_database_error()?.code()?;
    code.parse::<i64>().ok().map(|code| code & 0xff)
}
