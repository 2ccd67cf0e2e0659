//! A database of its own for each test, on the server of `REPROCESS_TEST_POSTGRES`.
#![allow(dead_code, reason = "each of those who share it uses a part")]

use std::sync::atomic::{AtomicU32, Ordering};

use reprocess_postgres::PostgresDatabase;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};

/// How often a name that another process took is replaced by the next.
const TRIES: u32 = 1_000;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A database, which goes as the test ends well.
pub(crate) struct TestDatabase {
    server: String,
    name: String,
    address: String,
}

impl TestDatabase {
    /// `None` where there is no server, which fails the test where everything has to be tested. `scripts/test` starts one.
    pub(crate) async fn fresh() -> Option<Self> {
        let server = std::env::var("REPROCESS_TEST_POSTGRES").ok();
        assert!(
            server.is_some() || std::env::var("CI").is_err(),
            "set REPROCESS_TEST_POSTGRES, or run scripts/test"
        );
        let server = server?;
        let mut connection = PgConnection::connect(&server).await.unwrap();
        for _ in 0..TRIES {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("reprocess_iceberg_{}_{number}", std::process::id());
            let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'");
            match connection.execute(AssertSqlSafe(create)).await {
                Ok(_) => {
                    let options: PgConnectOptions = server.parse().unwrap();
                    let address = options.database(&name).to_url_lossy().to_string();
                    return Some(Self { server, name, address });
                }
                Err(error) => assert!(error.to_string().contains("already exists"), "{error}"),
            }
        }
        panic!("no name for a database is free");
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A handle of its own, as another process would have.
    pub(crate) async fn connect(&self) -> PostgresDatabase {
        PostgresDatabase::connect(&self.address).await.unwrap()
    }

    /// A connection without anything of ours.
    pub(crate) async fn raw(&self) -> PgConnection {
        PgConnection::connect(&self.address).await.unwrap()
    }

    /// Runs statements.
    pub(crate) async fn execute(&self, sql: &str) {
        let mut raw = self.raw().await;
        raw.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
        raw.close().await.unwrap();
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the database {} is kept", self.name);
            return;
        }
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut server = PgConnection::connect(&server).await.unwrap();
                let drop = format!("DROP DATABASE {name} WITH (FORCE)");
                server.execute(AssertSqlSafe(drop)).await.unwrap();
            });
        });
        dropping.join().unwrap();
    }
}
