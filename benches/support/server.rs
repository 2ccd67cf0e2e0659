//! A PostgreSQL server of the bench's own, whose commits survive a crash as those of a real one do.

use std::path::PathBuf;
use std::process::Command;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, PgPool};

use super::cached;

/// Stopped, and its data removed, when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    folder: PathBuf,
    address: String,
}

impl Server {
    /// With as much memory as a small server has. `BENCH_POSTGRES` is the address of another one to use.
    pub(crate) fn start() -> Self {
        let folder = cached(&format!("postgres.{}", std::process::id()));
        if let Ok(address) = std::env::var("BENCH_POSTGRES") {
            return Self { folder, address };
        }
        let started = script()
            .envs([("FSYNC", "on"), ("SHARED_BUFFERS", "1GB"), ("MAX_WAL_SIZE", "8GB")])
            .arg("start")
            .arg(&folder)
            .output()
            .unwrap();
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        Self { folder, address: String::from_utf8(started.stdout).unwrap().trim().to_owned() }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The address of a new database.
    pub(crate) async fn database(&self, name: &str) -> String {
        let mut connection = PgConnection::connect(&self.address).await.unwrap();
        let create = format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}");
        for statement in create.split("; ") {
            connection.execute(AssertSqlSafe(statement.to_owned())).await.unwrap();
        }
        let options: PgConnectOptions = self.address.parse().unwrap();
        options.database(name).to_url_lossy().to_string()
    }

    pub(crate) async fn pool(&self) -> PgPool {
        let options: PgConnectOptions = self.address.parse().unwrap();
        // The role may have the name of the library's schema, into which its tables would go.
        let options = options.options([("search_path", "public"), ("maintenance_work_mem", "256MB")]);
        PgPoolOptions::new().max_connections(4).connect_with(options).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::env::var("BENCH_POSTGRES").is_err() {
            script().arg("stop").arg(&self.folder).status().unwrap();
            std::fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

fn script() -> Command {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/postgres"))
}

/// Runs statements one by one, which are divided by `;`.
pub(crate) async fn run(pool: &PgPool, sql: String) {
    for statement in sql.split(';') {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(pool).await.unwrap();
    }
}

/// How many bytes the server has written to its log.
pub(crate) async fn wal(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
        .fetch_one(pool)
        .await
        .unwrap()
}
