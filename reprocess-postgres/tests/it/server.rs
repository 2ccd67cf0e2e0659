//! A database of its own for each test, on the server of `REPROCESS_TEST_POSTGRES`.

use std::sync::atomic::{AtomicU32, Ordering};

use reprocess_postgres::{PostgresConfig, PostgresDatabase};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};

/// How often a name that another process took is replaced by the next.
const TRIES: u32 = 1_000;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A database, which goes as the test ends well.
pub(crate) struct TestDatabase {
    name: String,
    address: String,
}

impl TestDatabase {
    pub(crate) async fn fresh() -> Self {
        Self::made_with("").await
    }

    /// One whose texts are in another order than that of their bytes.
    pub(crate) async fn in_order_of_words() -> Self {
        Self::made_with("LOCALE_PROVIDER icu ICU_LOCALE 'en-US'").await
    }

    async fn made_with(options: &str) -> Self {
        let mut server = open(&server()).await;
        for _ in 0..TRIES {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("reprocess_test_{}_{number}", std::process::id());
            let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' {options}");
            match server.execute(AssertSqlSafe(create)).await {
                Ok(_) => return Self { address: in_database(&name), name },
                Err(error) => assert!(error.to_string().contains("already exists"), "{error}"),
            }
        }
        panic!("no name for a database is free");
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The name and password under which these tests connect.
    pub(crate) fn owner(&self) -> (String, String) {
        let (name, password) =
            self.address.split_once("//").unwrap().1.split_once('@').unwrap().0.split_once(':').unwrap();
        (name.to_owned(), password.to_owned())
    }

    /// A handle of its own, as another process would have.
    pub(crate) async fn connect(&self) -> PostgresDatabase {
        self.connect_as(PostgresConfig::new()).await
    }

    pub(crate) async fn connect_as(&self, config: PostgresConfig) -> PostgresDatabase {
        let pooled = pooled(&self.name);
        config.connect(pooled.as_deref().unwrap_or(&self.address)).await.unwrap()
    }

    /// A connection without anything of ours.
    pub(crate) async fn raw(&self) -> PgConnection {
        open(&self.address).await
    }

    /// Runs statements.
    pub(crate) async fn execute(&self, sql: &str) {
        let mut raw = self.raw().await;
        raw.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
        raw.close().await.unwrap();
    }

    /// The address for a new role, of which the statements say `{role}`.
    pub(crate) async fn role(&self, sql: &str) -> String {
        let role = format!("{}_role", self.name);
        self.execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'its word'; {}",
            sql.replace("{role}", &role)
        ))
        .await;
        let options: PgConnectOptions = self.address.parse().unwrap();
        options.username(&role).password("its word").to_url_lossy().to_string()
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the database {} is kept", self.name);
            return;
        }
        let name = self.name.clone();
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut server = open(&server()).await;
                let drop = format!("DROP DATABASE {name} WITH (FORCE); DROP ROLE IF EXISTS {name}_role");
                for statement in drop.split("; ") {
                    server.execute(AssertSqlSafe(statement.to_owned())).await.unwrap();
                }
            });
        });
        dropping.join().unwrap();
    }
}

/// The address of the pooler in front of the server, in transaction mode, where `scripts/test` has started one.
fn pooled(name: &str) -> Option<String> {
    let pooler: PgConnectOptions = std::env::var("REPROCESS_TEST_PGBOUNCER").ok()?.parse().unwrap();
    Some(pooler.database(name).to_url_lossy().to_string())
}

fn server() -> String {
    let address = std::env::var("REPROCESS_TEST_POSTGRES");
    address.expect(
        "REPROCESS_TEST_POSTGRES is not set: `scripts/test postgres` starts a server and runs these tests",
    )
}

/// The address of another database of the server.
pub(crate) fn in_database(name: &str) -> String {
    let options: PgConnectOptions = server().parse().unwrap();
    options.database(name).to_url_lossy().to_string()
}

async fn open(address: &str) -> PgConnection {
    PgConnection::connect(address).await.unwrap()
}

/// How often a test plays its game: so often, times `REPROCESS_ROUNDS`.
pub(crate) fn rounds(of_each_change: u64) -> u64 {
    let times = std::env::var("REPROCESS_ROUNDS").map(|times| times.parse::<u64>().unwrap());
    of_each_change * times.unwrap_or(1)
}
