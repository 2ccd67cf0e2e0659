//! Transactions that leave no trace where they are dropped.

use std::ops::{Deref, DerefMut};

use reprocess_core::{ErrorKind, Result};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, raw_sql};

use crate::error::Doing;

/// A transaction of a [`PostgresDatabase`](crate::PostgresDatabase), to run statements in. Where it is dropped before its
/// end, at whatever await or outside of any, its connection is closed, so that the server rolls it back.
///
/// Those of sqlx give the connection back: a `begin` that is dropped leaves the next user in a transaction whose writes
/// are never committed (<https://github.com/launchbadge/sqlx/issues/4393>), and a COPY that is dropped leaves answers
/// which the next user takes for his own.
#[derive(Debug)]
pub struct PostgresTransaction {
    /// There until it is dropped.
    connection: Option<PoolConnection<Postgres>>,
    open: bool,
}

impl PostgresTransaction {
    /// Begins with these statements.
    pub(super) async fn begin(pool: &PgPool, statements: &str) -> Result<Self> {
        let connection = pool.acquire().await.doing("connect")?;
        let mut tx = Self { connection: Some(connection), open: true };
        tx.run(statements.to_owned()).await.doing("begin a transaction")?;
        Ok(tx)
    }

    /// Ends it with all that was done in it. An error does not say that nothing was committed: the answer may have been
    /// lost.
    pub async fn commit(mut self) -> Result<()> {
        // A COMMIT after a statement that failed rolls back and answers as if all was well; another statement fails.
        let committed = self.run("SELECT 1; COMMIT".to_owned()).await.doing("commit");
        committed.map_err(|error| match error.kind() {
            ErrorKind::Unavailable => {
                error.with_advice("it may have been committed: look before you try again")
            }
            _ => error,
        })?;
        self.open = false;
        Ok(())
    }

    /// Ends it with nothing done.
    pub async fn rollback(mut self) -> Result<()> {
        self.run("ROLLBACK".to_owned()).await.doing("roll back")?;
        self.open = false;
        Ok(())
    }

    async fn run(&mut self, statements: String) -> Result<(), sqlx::Error> {
        raw_sql(AssertSqlSafe(statements)).execute(&mut **self).await.map(|_| ())
    }
}

impl Drop for PostgresTransaction {
    fn drop(&mut self) {
        // Closes the socket at once; a farewell would need a runtime, and there may be none.
        if let (true, Some(connection)) = (self.open, self.connection.take()) {
            drop(connection.detach());
        }
    }
}

const THERE: &str = "a connection stays until it is dropped";

impl Deref for PostgresTransaction {
    type Target = PgConnection;

    #[allow(clippy::expect_used, reason = "it is taken as it is dropped, and nowhere else")]
    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect(THERE)
    }
}

impl DerefMut for PostgresTransaction {
    #[allow(clippy::expect_used, reason = "it is taken as it is dropped, and nowhere else")]
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect(THERE)
    }
}

#[cfg(test)]
mod tests;
