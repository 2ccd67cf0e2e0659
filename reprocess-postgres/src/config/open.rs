//! Connecting: what the server must be, and how every transaction begins.

use std::sync::Arc;
use std::time::Duration;

use reprocess_core::{Error, ErrorKind, Result};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgPool};

use super::{Identity, Inner, PostgresConfig, PostgresDatabase, Tx};
use crate::schema::Schema;
use crate::sql::Statement;

/// As `server_version_num` has it.
const OLDEST_SERVER: i32 = 150_000;

/// How often a server looks whether the client of a statement is still there. A future that is dropped closes its
/// connection, and its statement should not go on for nobody.
const LOOK_FOR_CLIENT: &str = "SET LOCAL client_connection_check_interval = '2s'";

/// To compile the statements of a commit takes longer than to run them.
const NOT_COMPILED: &str = "SET LOCAL jit = off";

/// What was answered must survive a crash: a claim that is given twice under one number is none.
const DURABLE: &str =
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'";

/// So that the rows of a partition are compared in memory.
const ROOM: &str =
    "SELECT set_config('work_mem', '64MB', true) WHERE pg_size_bytes(current_setting('work_mem')) < 67108864";

pub(super) async fn database(config: PostgresConfig, options: PgConnectOptions) -> Result<PostgresDatabase> {
    let schema = Schema::new(&config.schema)?;
    // Poolers refuse settings at the start of a connection that they do not know. Statements are prepared anew each time.
    let options = options.extra_float_digits(None).statement_cache_capacity(0).disable_statement_logging();
    let pool = PgPoolOptions::new()
        .max_connections(config.connections)
        .acquire_timeout(Duration::from_millis(config.connect_timeout_ms))
        .idle_timeout(Duration::from_secs(60))
        .connect_lazy_with(options);
    let identity = identify(&pool).await?;
    let settings = settings(&config, looks_for_clients(&pool).await);
    // Without a statement that looks at anything: what a reader locks first is of the moment that it sees then.
    let begin_read = format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {settings}");
    // The levels are said, since the defaults of server, database or role may be others.
    let inner = Inner {
        begin: format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {settings}; {NOT_COMPILED}; {DURABLE}; {ROOM}"
        ),
        begin_read,
        settings,
        config,
        schema,
        pool,
        identity,
    };
    Ok(PostgresDatabase { inner: Arc::new(inner) })
}

/// What no transaction takes from the defaults of server, database or role: how long it waits, and how values are
/// written as text. For the life of the transaction only, since connections may be shared with others.
fn settings(config: &PostgresConfig, looks_for_clients: bool) -> String {
    let mut settings = vec![
        format!("SET LOCAL statement_timeout = {}", config.statement_timeout_ms),
        format!("SET LOCAL lock_timeout = {}", config.lock_timeout_ms),
        format!("SET LOCAL idle_in_transaction_session_timeout = {}", config.idle_timeout_ms),
        "SET LOCAL TimeZone = 'UTC'".to_owned(),
        "SET LOCAL DateStyle = 'ISO, YMD'".to_owned(),
        "SET LOCAL IntervalStyle = 'postgres'".to_owned(),
        "SET LOCAL extra_float_digits = 1".to_owned(),
        "SET LOCAL bytea_output = 'hex'".to_owned(),
        // Rows that a policy would hide from us are an error, not rows that are not there.
        "SET LOCAL row_security = off".to_owned(),
    ];
    if looks_for_clients {
        settings.push(LOOK_FOR_CLIENT.to_owned());
    }
    settings.join("; ")
}

async fn identify(pool: &PgPool) -> Result<Identity> {
    let mut tx = Tx::begin(pool, "BEGIN").await?;
    let (version, shown, encoding): (i32, String, String) = Statement::new(
        "SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
                pg_encoding_to_char(encoding)::text
         FROM pg_database WHERE datname = current_database()",
    )
    .one(&mut tx, "ask for the version of the server")
    .await?;
    if version < OLDEST_SERVER {
        let message = format!("the server is PostgreSQL {shown}, and 15 or later is needed");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if encoding != "UTF8" {
        let message = format!("the database is encoded in {encoding}, and UTF8 is needed");
        return Err(Error::new(ErrorKind::Unsupported, message)
            .with_advice("make a database with ENCODING 'UTF8' TEMPLATE template0"));
    }
    let (system, database, name) = Statement::new(
        "SELECT (pg_control_system()).system_identifier, oid::bigint, datname::text
         FROM pg_database WHERE datname = current_database()",
    )
    .one(&mut tx, "ask which database it is")
    .await?;
    tx.rollback().await?;
    Ok(Identity { system, database, name })
}

/// Servers on some systems cannot.
async fn looks_for_clients(pool: &PgPool) -> bool {
    match Tx::begin(pool, &format!("BEGIN; {LOOK_FOR_CLIENT}")).await {
        Ok(tx) => tx.rollback().await.is_ok(),
        Err(_) => false,
    }
}
