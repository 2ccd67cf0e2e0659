//! The one place where errors of PostgreSQL become errors of reprocess.

use reprocess_core::{Error, ErrorKind, Result};
use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

/// Says what was being done when PostgreSQL failed.
pub(crate) trait Doing<T> {
    /// Maps the error; `what` reads as in "could not {what}".
    fn doing(self, what: &str) -> Result<T>;
}

impl<T> Doing<T> for Result<T, sqlx::Error> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| map(e, what))
    }
}

/// Maps an error of PostgreSQL.
pub(crate) fn map(error: sqlx::Error, what: &str) -> Error {
    let code = code(&error);
    let (kind, advice) = code.as_deref().map_or_else(|| without_code(&error), of_code);
    let mapped = Error::new(kind, format!("PostgreSQL could not {what}"));
    let mapped = match code {
        Some(code) => mapped.with_context("sqlstate", code),
        None => mapped,
    };
    let mapped = if advice.is_empty() { mapped } else { mapped.with_advice(advice) };
    match error {
        // As text: the error and its own source say the same. Detail and hint stay out, since they may hold values of
        // rows; what depends on something holds none.
        sqlx::Error::Database(error) => mapped.with_source(shown(&*error)),
        other => mapped.with_source(other),
    }
}

/// The SQLSTATE of an error, where the server said one.
pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

fn shown(error: &dyn DatabaseError) -> String {
    let dependants = error.try_downcast_ref::<PgDatabaseError>().filter(|error| error.code() == "2BP01");
    match (error.constraint(), dependants.and_then(PgDatabaseError::detail)) {
        (_, Some(dependants)) => format!("{}: {dependants}", error.message()),
        (Some(constraint), _) if !error.message().contains(constraint) => {
            format!("{} (constraint {constraint})", error.message())
        }
        _ => error.message().to_owned(),
    }
}

/// Kind and advice of a SQLSTATE, see <https://www.postgresql.org/docs/current/errcodes-appendix.html>. What is
/// `Unavailable` may succeed when it is tried again.
fn of_code(code: &str) -> (ErrorKind, &'static str) {
    const AGAIN: &str = "try again";
    match code {
        "40001" | "40P01" => (ErrorKind::Unavailable, AGAIN),
        "55P03" => (
            ErrorKind::Unavailable,
            "another transaction holds the lock; try again, or look for one that hangs in pg_stat_activity",
        ),
        "57014" => (ErrorKind::Unavailable, "if it took too long, raise `statement_timeout_ms`"),
        "25P03" => (ErrorKind::Unavailable, "the client was silent for longer than `idle_timeout_ms`"),
        "25P04" | "40003" | "53200" | "53300" | "53400" | "57P01" | "57P02" | "57P03" | "57P05" => {
            (ErrorKind::Unavailable, AGAIN)
        }
        "53100" => (ErrorKind::Storage, "free space on the disk of the server"),
        "42501" => (ErrorKind::Storage, "grant the role of the connection what it needs"),
        "2BP01" => (ErrorKind::Invalid, "drop what depends on it, or leave what it depends on"),
        "25006" => (ErrorKind::Storage, "connect to the primary; this server only reads"),
        "28000" | "28P01" => (ErrorKind::Storage, "check user, password and pg_hba.conf"),
        "3D000" | "3F000" | "42P01" => (ErrorKind::NotFound, ""),
        "0A000" => (ErrorKind::Unsupported, ""),
        "XX001" | "XX002" => (ErrorKind::Corrupt, "restore the database from a backup"),
        _ => match code.get(..2) {
            Some("08") => (ErrorKind::Unavailable, AGAIN),
            Some("53" | "58") => (ErrorKind::Storage, "look into the log of the server"),
            Some("21" | "22" | "23" | "42" | "44") => (ErrorKind::Invalid, ""),
            _ => (ErrorKind::Internal, ""),
        },
    }
}

fn without_code(error: &sqlx::Error) -> (ErrorKind, &'static str) {
    match error {
        sqlx::Error::PoolTimedOut => (
            ErrorKind::Unavailable,
            "the server does not answer, or all connections are in use: see `connect_timeout_ms` and `connections`",
        ),
        sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed | sqlx::Error::PoolClosed => {
            (ErrorKind::Unavailable, "")
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
        check(
            ErrorKind::Unavailable,
            &["40001", "40P01", "55P03", "57014", "57P01", "57P03", "53300", "08006", "25P03"],
        );
        check(ErrorKind::Storage, &["53100", "42501", "25006", "28P01", "58030"]);
        check(ErrorKind::Invalid, &["23505", "23502", "22003", "21000", "42703", "2BP01"]);
        check(ErrorKind::NotFound, &["42P01", "3D000"]);
        check(ErrorKind::Internal, &["25P02", "XX000", ""]);
    }
}
