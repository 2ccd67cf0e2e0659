//! What a crash of the server leaves.

use std::path::{Path, PathBuf};
use std::process::Command;

use reprocess_core::ports::reader::SnapshotReader;
use reprocess_postgres::{PostgresConfig, PostgresSource};
use sqlx::{Connection, Executor, PgConnection};

use super::support::*;

/// A server of this test alone.
struct Server {
    folder: PathBuf,
    address: String,
}

fn script(arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/postgres");
    let output = Command::new(script).args(arguments).env("FSYNC", "on").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Server {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("reprocess-crash-{}", std::process::id()));
        let address = script(&["start", folder.to_str().unwrap()]);
        Self { folder, address }
    }

    /// Kills one of the server's processes, upon which it kills all others, and starts again from what was logged. That it
    /// was a crash is seen by the table `control`, which is not logged.
    async fn crash(&self) {
        let mut raw = PgConnection::connect(&self.address).await.unwrap();
        raw.execute("COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID'").await.unwrap_err();
        while self.controls().await.ok() != Some(0) {
            tokio::task::yield_now().await;
        }
    }

    async fn controls(&self) -> Result<i64, sqlx::Error> {
        let mut raw = PgConnection::connect(&self.address).await?;
        let (rows,) = sqlx::query_as("SELECT count(*) FROM control").fetch_one(&mut raw).await?;
        raw.close().await?;
        Ok(rows)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        script(&["stop", self.folder.to_str().unwrap()]);
        std::fs::remove_file(self.folder.with_extension("log")).unwrap();
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

#[tokio::test]
async fn a_copy_survives_a_crash_of_the_server() {
    let server = Server::start();
    let connect = || PostgresConfig::new().with_batch_rows(2).connect(&server.address);
    let mut raw = PgConnection::connect(&server.address).await.unwrap();
    raw.execute(EVENTS).await.unwrap();
    raw.execute("CREATE UNLOGGED TABLE control AS SELECT 1 AS n").await.unwrap();
    let source = PostgresSource::mutable(connect().await.unwrap(), events()).unwrap().with_columns(columns());
    let pinned = pin(&source, the_day()).await.unwrap();
    source.hold(std::slice::from_ref(&pinned)).await.unwrap();
    raw.execute("TRUNCATE events").await.unwrap();
    raw.close().await.unwrap();
    assert_eq!(server.controls().await.unwrap(), 1);
    server.crash().await;
    let again = PostgresSource::mutable(connect().await.unwrap(), events()).unwrap();
    assert_eq!(numbers(&again, &pinned).await, [2, 3]);
}
