//! Errors of the databases that catalogs are in.

use reprocess_core::{Error, ErrorKind, Result};
use reprocess_lake::error::mapped;

use super::Doing;

const AGAIN: &str = "try again";
const BUSY: &str = "another process holds the database; try again, or look for one that hangs";

impl<T> Doing<T> for Result<T, sqlx::Error> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| of_sql(e, what))
    }
}

fn of_sql(error: sqlx::Error, what: &str) -> Error {
    let code = error.as_database_error().and_then(|e| e.code()).map(|code| code.into_owned());
    let kind = code.as_deref().map_or_else(|| without_code(&error), of_code);
    match error {
        // As text: the error and its own source say the same. Detail and hint stay out, since they may hold values.
        sqlx::Error::Database(error) => mapped(kind, what).with_source(error.message()),
        other => mapped(kind, what).with_source(other),
    }
}

/// PostgreSQL says five characters, see <https://www.postgresql.org/docs/current/errcodes-appendix.html>; SQLite a number of
/// at most four digits, see <https://www.sqlite.org/rescode.html>, of which the lower eight bits are the code proper.
fn of_code(code: &str) -> (ErrorKind, &'static str) {
    match code.parse::<u32>() {
        Ok(number) if code.len() < 5 => of_sqlite(number & 0xff),
        _ => of_sqlstate(code),
    }
}

fn of_sqlite(code: u32) -> (ErrorKind, &'static str) {
    match code {
        // BUSY, LOCKED, PROTOCOL
        5 | 6 | 15 => (ErrorKind::Unavailable, BUSY),
        // PERM, READONLY, IOERR, FULL, CANTOPEN
        3 | 8 | 10 | 13 | 14 => (ErrorKind::Storage, "check the disk and the permissions of the file"),
        // CORRUPT, NOTADB
        11 | 26 => (ErrorKind::Corrupt, "restore the file from a backup"),
        // TOOBIG, CONSTRAINT
        18 | 19 => (ErrorKind::Invalid, ""),
        _ => (ErrorKind::Internal, ""),
    }
}

fn of_sqlstate(code: &str) -> (ErrorKind, &'static str) {
    match code {
        "55P03" => (ErrorKind::Unavailable, BUSY),
        "40001" | "40P01" | "40003" | "57014" | "25P03" | "25P04" => (ErrorKind::Unavailable, AGAIN),
        "53100" => (ErrorKind::Storage, "free space on the disk of the server"),
        "25006" => (ErrorKind::Storage, "connect to the primary; this server only reads"),
        "42501" => (ErrorKind::Storage, "grant the role of the connection what it needs"),
        "3D000" | "3F000" | "42P01" => (ErrorKind::NotFound, ""),
        "XX001" | "XX002" => (ErrorKind::Corrupt, "restore the database from a backup"),
        _ => match code.get(..2) {
            Some("08" | "53" | "57") => (ErrorKind::Unavailable, AGAIN),
            Some("28") => (ErrorKind::Storage, "check user, password and pg_hba.conf"),
            Some("58") => (ErrorKind::Storage, "look into the log of the server"),
            Some("21" | "22" | "23" | "42" | "44") => (ErrorKind::Invalid, ""),
            Some("0A") => (ErrorKind::Unsupported, ""),
            _ => (ErrorKind::Internal, ""),
        },
    }
}

fn without_code(error: &sqlx::Error) -> (ErrorKind, &'static str) {
    match error {
        sqlx::Error::PoolTimedOut => (ErrorKind::Unavailable, BUSY),
        sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed | sqlx::Error::PoolClosed => {
            (ErrorKind::Unavailable, AGAIN)
        }
        sqlx::Error::Configuration(_) | sqlx::Error::InvalidArgument(_) => (ErrorKind::Invalid, ""),
        sqlx::Error::Tls(_) => (ErrorKind::Storage, "check sslmode and certificates"),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => (ErrorKind::Corrupt, ""),
        _ => (ErrorKind::Internal, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_says_whether_a_retry_can_help() {
        let check = |kind: ErrorKind, codes: &[&str]| {
            for code in codes {
                assert_eq!(of_code(code).0, kind, "{code}");
            }
        };
        check(ErrorKind::Unavailable, &["40001", "40P01", "55P03", "57014", "57P01", "53300", "08006"]);
        check(ErrorKind::Storage, &["53100", "42501", "25006", "28P01", "58030"]);
        check(ErrorKind::Invalid, &["23505", "23502", "22003", "42703"]);
        check(ErrorKind::NotFound, &["42P01", "3D000"]);
        check(ErrorKind::Internal, &["25P02", "XX000", ""]);

        // SQLITE_BUSY, _BUSY_SNAPSHOT, _LOCKED; _FULL, _IOERR_WRITE, _READONLY; _CONSTRAINT_PRIMARYKEY; _NOTADB.
        check(ErrorKind::Unavailable, &["5", "517", "6"]);
        check(ErrorKind::Storage, &["13", "778", "8"]);
        check(ErrorKind::Invalid, &["1555"]);
        check(ErrorKind::Corrupt, &["26"]);
        check(ErrorKind::Internal, &["1"]);
    }
}
