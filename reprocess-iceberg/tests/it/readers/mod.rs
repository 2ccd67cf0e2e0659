//! Tables as readers and writers that are not ours show and change them: PyIceberg, and DuckDB, which shares no code with
//! it. `REPROCESS_TEST_PYTHON` is a Python with both.

mod deletes;
mod formats;
mod spark;
mod states;
mod values;
mod writers;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value as Json, json};

use crate::raw::Raw;
use crate::support::*;

/// The others, in a process of their own over one table.
pub(crate) struct Others {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Others {
    /// `None` where there is no Python for it.
    pub(crate) fn of(raw: &Raw) -> Option<Self> {
        Self::with(raw, &BTreeMap::new())
    }

    /// With settings of the store that the table is in.
    pub(crate) fn with(raw: &Raw, settings: &BTreeMap<String, String>) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/read_back.py");
        let mut child = Command::new(python()?)
            .arg(script)
            .arg(raw.file())
            .arg(raw.name.to_string())
            .arg(json!(settings).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (asks, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Some(Self { child, asks, answers })
    }

    pub(crate) fn ask(&mut self, ask: &Json) -> Json {
        writeln!(self.asks, "{ask}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: no answer to {ask}"))
    }

    /// Rows as PyIceberg and as DuckDB show them, which have to be the same.
    pub(crate) fn rows(&mut self, reference: Option<&str>, state: &str) -> Vec<String> {
        let answer = self.ask(&json!({ "do": "read", "ref": reference }));
        let rows = |reader: &str| -> Vec<String> { serde_json::from_value(answer[reader].clone()).unwrap() };
        assert_eq!(rows("duckdb"), rows("pyiceberg"), "{state}: the readers differ");
        rows("pyiceberg")
    }

    /// Main and what its manifests say are as they should be, for every reader.
    pub(crate) async fn check(&mut self, sales: &Sales, expected: &[String], state: &str) {
        assert_eq!(sales.rows().await, expected, "{state}");
        assert_eq!(self.rows(None, state), expected, "{state}");
        if sales.raw().metadata().await.current_snapshot().is_some() {
            let found = self.ask(&json!({ "do": "inspect" }));
            assert_eq!(found["rows"], expected.len(), "{state}: the totals of the summary");
            assert_eq!(found["files"], sales.raw().files().await.len(), "{state}");
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Rows of sales as a request has them.
pub(crate) fn given(rows: &[Row<'_>]) -> Json {
    let day = |row: &Row<'_>| if row.0.is_empty() { Json::Null } else { json!(row.0) };
    rows.iter().map(|row| json!([day(row), row.1, row.2, row.3])).collect()
}
