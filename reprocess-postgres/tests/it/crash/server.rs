//! A server of its own, whose commits survive its death.

use std::path::PathBuf;
use std::process::Command;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};

pub(super) struct Server {
    folder: tempfile::TempDir,
    address: String,
}

impl Server {
    pub(super) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The server's own user has to pass through.
        let opened = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(folder.path(), opened).unwrap();
        let address = script("start", &folder);
        Self { folder, address }
    }

    /// A new database; answers its address.
    pub(super) async fn database(&self, name: &str) -> String {
        let mut server = PgConnection::connect(&self.address).await.unwrap();
        server.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        server.close().await.unwrap();
        let options: PgConnectOptions = self.address.parse().unwrap();
        options.database(name).to_url_lossy().to_string()
    }

    /// Dies in the midst of what it does, and starts again.
    pub(super) fn crash(&self) {
        script("crash", &self.folder);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        script("stop", &self.folder);
    }
}

fn script(action: &str, folder: &tempfile::TempDir) -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scripts/postgres");
    let mut command = Command::new(script);
    let output = command.arg(action).arg(folder.path().join("server")).env("FSYNC", "on").output().unwrap();
    assert!(output.status.success(), "{action}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
