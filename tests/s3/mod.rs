//! A server that speaks the protocol of S3, for tests of tables in such stores.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// The server of one test, with the bucket `tables`; it ends as it is dropped.
pub(crate) struct Store {
    server: Child,
    port: u16,
}

impl Store {
    pub(crate) fn start(python: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/s3/server.py");
        let mut server = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { server, port: line.trim().parse().expect("the server did not start") }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}
