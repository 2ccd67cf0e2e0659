//! Tables as the library in Java shows and changes them, through Spark and a REST catalog. `REPROCESS_TEST_SPARK` is a Python
//! with both; without it nothing is tested here, also where everything has to be: `scripts/test spark` makes one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Kept, Pin, Slice};
use reprocess_core::domain::value::Value;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_core::ports::writer::{
    Change, Commit, CommitEntry, CommitOutcome, CommitRequest, Intent, MergeKeys, Op, PartitionWriter,
    StageRequest, Staged, StampId, Visibility,
};
use reprocess_iceberg::{IcebergCatalog, IcebergTable, RestConfig};
use serde_json::json;
use tempfile::TempDir;

use super::values::ODD;
use crate::rest_server::RestServer;
use crate::support::*;

const BRANCH: &str = "reprocess-fix";

struct Spark {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Spark {
    fn over(uri: &str) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/spark.py");
        let mut child = Command::new(std::env::var("REPROCESS_TEST_SPARK").ok()?)
            .arg(script)
            .arg(uri)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (asks, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Some(Self { child, asks, answers })
    }

    fn sql(&mut self, sql: &str) -> Vec<String> {
        writeln!(self.asks, "{}", json!({ "sql": sql })).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: no answer to {sql}"))
    }
}

impl Drop for Spark {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// One table for both.
struct Shared {
    spark: Spark,
    table: IcebergTable,
    _server: RestServer,
    _folder: TempDir,
}

impl Shared {
    async fn new() -> Option<Self> {
        let shared = Self::without_table().await?;
        shared.table.create(&columns()).await.unwrap();
        Some(shared)
    }

    async fn without_table() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let server = RestServer::start(&folder.path().join("warehouse")).await;
        // It waits for Spark with a thread of its own, so that the server can answer.
        let uri = server.uri();
        let spark = tokio::task::spawn_blocking(move || Spark::over(&uri)).await.unwrap()?;
        let catalog = IcebergCatalog::rest(RestConfig::new(server.uri())).await.unwrap();
        let table = IcebergTable::open(&catalog, NAME, spec()).unwrap();
        Some(Self { spark, table, _server: server, _folder: folder })
    }

    fn sql(&mut self, sql: &str) -> Vec<String> {
        tokio::task::block_in_place(|| self.spark.sql(sql))
    }

    /// Both see the same rows.
    async fn check(&mut self, rows: &[Row<'_>], state: &str) {
        assert_eq!(self.ours().await, texts(rows), "{state}: ours");
        assert_eq!(self.sql("SELECT * FROM lake.shop.sales"), texts(rows), "{state}: Spark's");
        let files = "SELECT coalesce(sum(record_count), 0) FROM lake.shop.sales.files WHERE content = 0";
        assert_eq!(self.sql(files), [rows.len().to_string()], "{state}: what manifests say");
    }

    async fn pin(&self) -> Pin {
        let version = self.table.current().await.unwrap();
        let content = self.table.slice_versions(&version, &[Slice::All]).await.unwrap().remove(0);
        Pin { table: spec().id, version, slice: Slice::All, content }
    }

    async fn ours(&self) -> Vec<String> {
        lines_of(self.table.read(&self.pin().await).await.unwrap().1).await.unwrap()
    }

    async fn write(&self, run: &str, scope: &Scope, intent: Intent, rows: &[Row<'_>]) -> Commit {
        let staged = stage(&self.table, run, scope, intent, batch(rows)).await.unwrap();
        self.commit(&[apply(&staged)], scope).await
    }

    async fn replace(&self, run: &str, scope: &Scope, rows: &[Row<'_>]) -> Commit {
        self.write(run, scope, Intent::Replace, rows).await
    }

    /// Keeps nothing, as tables of format 1 cannot.
    async fn replace_only(&self, run: &str, scope: &Scope, rows: &[Row<'_>]) {
        let entries = [apply(&stage(&self.table, run, scope, Intent::Replace, batch(rows)).await.unwrap())];
        let base = &self.table.head(scope).await.unwrap();
        let request =
            CommitRequest { entries: &entries, base, since: base, fence: None, keep: false, ledger: None };
        done(self.table.commit(request).await.unwrap());
    }

    async fn commit(&self, entries: &[CommitEntry], scope: &Scope) -> Commit {
        let base = self.table.head(scope).await.unwrap();
        done(commit(&self.table, entries, &base).await.unwrap())
    }

    async fn restore(&self, run: &str, scope: &Scope, kept: Kept) {
        let stamp = StampId { op: Op::Restore, ..stamp(run, scope, &Intent::Replace) };
        self.commit(&[entry(stamp, scope, Change::Restore(kept))], scope).await;
    }

    async fn shadow(&self, run: &str, text: &str, rows: &[Row<'_>]) -> Staged {
        let scope = days(&[text]);
        let request = StageRequest {
            visibility: Visibility::Shadow("fix".into()),
            ..request(&self.table, run, &scope, Intent::Replace).await
        };
        self.table.stage(&request, batch(rows).into()).await.unwrap()
    }

    /// The rows of all snapshots but the last of each branch and tag go, as housekeeping does it.
    fn expire(&mut self) {
        self.sql(
            "CALL lake.system.expire_snapshots(table => 'shop.sales', older_than => TIMESTAMP '2999-01-01 00:00:00',
             retain_last => 1)",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_state_is_read_and_its_live_files_outlive_expiry() {
    let Some(mut shared) = Shared::new().await else { return };
    let given = [
        (MON, Some("FR"), 1, 10),
        (MON, Some("l'été 100%"), 2, 20),
        (TUE, Some("FR"), 3, 30),
        ("", None, 4, 40),
    ];
    let all = Scope::whole_table();
    shared.replace("given", &all, &given).await;
    shared.check(&given, "given").await;
    shared.replace("empty", &days(&[TUE]), &[]).await;
    shared.check(&[given[0], given[1], given[3]], "an empty replace").await;

    let owner = [("country".to_owned(), Value::from("FR"))].into();
    let merge = MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: Some(owner) };
    let rows = [(MON, Some("l'été 100%"), 2, 21), (TUE, Some("DE"), 5, 50)];
    let merged = shared.write("merge", &all, Intent::Merge(merge), &rows).await;
    shared.check(&[rows[0], rows[1], given[3]], "a merge").await;

    let staged = shared.shadow("shadow", MON, &[(MON, Some("IT"), 8, 1)]).await;
    shared.check(&[rows[0], rows[1], given[3]], "a shadow waits").await;
    let branch = format!("SELECT * FROM lake.shop.sales VERSION AS OF '{BRANCH}'");
    assert_eq!(shared.sql(&branch), texts(&[(MON, Some("IT"), 8, 1), rows[1], given[3]]), "the branch");
    // Main moves elsewhere before it is published.
    shared.sql("INSERT INTO lake.shop.sales VALUES (DATE '2026-10-06', 'DE', 6, 60)");
    shared.commit(&[apply(&staged)], &days(&[MON])).await;
    let more = (TUE, Some("DE"), 6, 60);
    shared.check(&[(MON, Some("IT"), 8, 1), rows[1], more, given[3]], "published").await;

    shared.restore("undo", &days(&[MON]), merged.kept.unwrap()).await;
    shared.check(&[given[0], given[1], rows[1], more, given[3]], "restored").await;
    shared.expire();
    shared.check(&[given[0], given[1], rows[1], more, given[3]], "restored, after expiry").await;

    let kept = shared.replace("other", &all, &[(MON, None, 77, 1)]).await.kept.unwrap();
    shared.check(&[(MON, None, 77, 1)], "another table").await;
    shared.expire();
    shared.restore("back", &all, kept).await;
    shared.expire();
    shared.check(&[given[0], given[1], rows[1], more, given[3]], "rolled back, after expiry").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_partition_values_are_read() {
    let Some(mut shared) = Shared::new().await else { return };
    let rows: Vec<Row<'_>> = (0..).zip(ODD).map(|(id, country)| (MON, Some(country), id, 1)).collect();
    shared.replace("given", &Scope::whole_table(), &rows).await;
    shared.check(&rows, "odd values").await;
    let evil = "SELECT id FROM lake.shop.sales WHERE country = '../../../../evil'";
    assert_eq!(shared.sql(evil), ["0"]);
}

/// Spark overwrites, merges, deletes by position, compacts and rewrites manifests, and we go on from there; and the other way
/// round.
#[tokio::test(flavor = "multi_thread")]
async fn we_and_spark_take_turns() {
    let Some(mut shared) = Shared::new().await else { return };
    let table = "lake.shop.sales";
    shared.replace("given", &days(&[MON]), &[(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20)]).await;
    shared.sql(&format!(
        "INSERT OVERWRITE {table} VALUES (DATE '2026-10-06', 'FR', 3, 30), (DATE '2026-10-06', 'FR', 4, 40)"
    ));
    shared.sql(&format!(
        "MERGE INTO {table} t USING (SELECT 2L AS id, 22L AS amount) s ON t.id = s.id
         WHEN MATCHED THEN UPDATE SET amount = s.amount"
    ));
    let rows = [
        (MON, Some("FR"), 1, 10),
        (MON, Some("FR"), 2, 22),
        (TUE, Some("FR"), 3, 30),
        (TUE, Some("FR"), 4, 40),
    ];
    shared.check(&rows, "theirs").await;
    shared.sql(&format!("ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"));
    shared.sql(&format!("DELETE FROM {table} WHERE id IN (1, 3)"));
    assert_eq!(shared.sql(&format!("SELECT count(*) FROM {table}.delete_files")), ["2"]);
    assert_eq!(shared.ours().await, texts(&[rows[1], rows[3]]), "deleted by position");
    // Their deletes go with the partition that we replace, and stay where we do not.
    shared.replace("monday", &days(&[MON]), &[(MON, Some("FR"), 1, 11)]).await;
    let after = [(MON, Some("FR"), 1, 11), rows[3]];
    assert_eq!(shared.sql(&format!("SELECT * FROM {table}")), texts(&after), "replaced beside deletes");
    assert_eq!(shared.sql(&format!("SELECT count(*) FROM {table}.delete_files")), ["1"]);
    shared.sql(
        "CALL lake.system.rewrite_data_files(table => 'shop.sales', options => map('rewrite-all', 'true'))",
    );
    shared.sql("CALL lake.system.rewrite_manifests('shop.sales')");
    assert_eq!(shared.sql(&format!("SELECT * FROM {table}")), texts(&after), "compacted");
    shared.replace("tuesday", &days(&[TUE]), &[]).await;
    assert_eq!(
        shared.sql(&format!("SELECT * FROM {table}")),
        texts(&after[..1]),
        "replaced after a compaction"
    );
    assert_eq!(shared.ours().await, texts(&after[..1]));
}

/// What Spark does in a partition is a conflict there, and nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn what_spark_changes_is_a_conflict_where_it_touches() {
    let Some(mut shared) = Shared::new().await else { return };
    shared.replace("given", &days(&[MON, TUE]), &[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    for (touched, text) in [(true, MON), (false, TUE)] {
        let monday = days(&[MON]);
        let base = shared.table.head(&monday).await.unwrap();
        let run = format!("slow beside {text}");
        let rows = batch(&[(MON, Some("FR"), 1, 11)]);
        let staged = stage(&shared.table, &run, &monday, Intent::Replace, rows).await.unwrap();
        shared.sql(&format!("INSERT INTO lake.shop.sales VALUES (DATE '{text}', 'FR', 9, 90)"));
        let outcome = commit(&shared.table, &[apply(&staged)], &base).await.unwrap();
        assert_eq!(matches!(outcome, CommitOutcome::Conflicted { .. }), touched, "{text}: {outcome:?}");
    }
}

/// The tools that Java has for write, audit and publish know our branches: whoever publishes with them publishes the rows.
#[tokio::test(flavor = "multi_thread")]
async fn shadows_can_be_published_with_the_tools_of_java() {
    let forward = format!("CALL lake.system.fast_forward('shop.sales', 'main', '{BRANCH}')");
    let snapshot = format!("SELECT snapshot_id FROM lake.shop.sales.refs WHERE name = '{BRANCH}'");
    for picked in [false, true] {
        let Some(mut shared) = Shared::new().await else { return };
        shared.replace("given", &days(&[MON, TUE]), &[(MON, None, 1, 10), (TUE, None, 2, 20)]).await;
        let staged = shared.shadow("shadow", MON, &[(MON, None, 1, 11)]).await;
        let base = shared.table.head(&days(&[MON])).await.unwrap();
        let mut rows = vec![(MON, None, 1, 11), (TUE, None, 2, 20)];
        if picked {
            // Main has moved.
            shared.sql("INSERT INTO lake.shop.sales VALUES (DATE '2026-10-06', NULL, 3, 30)");
            rows.push((TUE, None, 3, 30));
            let id = shared.sql(&snapshot).remove(0);
            shared.sql(&format!("CALL lake.system.cherrypick_snapshot('shop.sales', {id})"));
        } else {
            shared.sql(&forward);
        }
        shared.check(&rows, "published by others").await;
        // Whoever asks us to publish it as well doubles nothing.
        let outcome = commit(&shared.table, &[apply(&staged)], &base).await.unwrap();
        shared.check(&rows, &format!("published again: {outcome:?}")).await;
    }
}

/// Tables that Spark makes, of every format: rows that we write have ids of their own where the format has some, and what
/// cannot be read right is refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_spark_makes_are_replaced_in_every_format() {
    for version in 1..=3 {
        let Some(mut shared) = Shared::without_table().await else { return };
        shared.sql("CREATE NAMESPACE lake.shop");
        shared.sql(&format!(
            "CREATE TABLE lake.shop.sales (day DATE, country STRING, id BIGINT, amount BIGINT) USING iceberg
             PARTITIONED BY (day, country)
             TBLPROPERTIES ('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')"
        ));
        shared.sql(
            "INSERT INTO lake.shop.sales VALUES (DATE '2026-10-05', 'FR', 1, 10), (DATE '2026-10-05', 'FR', 2, 20),
             (DATE '2026-10-06', NULL, 3, 30)",
        );
        shared.replace_only("fix", &days(&[MON]), &[(MON, Some("FR"), 1, 11), (MON, None, 4, 40)]).await;
        let rows = [(MON, Some("FR"), 1, 11), (MON, None, 4, 40), (TUE, None, 3, 30)];
        shared.check(&rows, &format!("format {version}")).await;
        if version < 3 {
            continue;
        }
        let ids = "SELECT count(*), count(DISTINCT _row_id) FROM lake.shop.sales";
        assert_eq!(shared.sql(ids), ["3/3"]);
        let more = "(DATE '2026-10-06', 'FR', 5, 50), (DATE '2026-10-06', 'FR', 6, 60)";
        shared.sql(&format!("INSERT INTO lake.shop.sales VALUES {more}"));
        shared.sql("DELETE FROM lake.shop.sales WHERE id = 5");
        let error = shared.table.read(&shared.pin().await).await.err().unwrap();
        assert!(error.to_string().contains("deletion vectors"), "{error}");
        shared.replace_only("beside a vector", &days(&[MON]), &[]).await;
        let left = [rows[2], (TUE, Some("FR"), 6, 60)];
        assert_eq!(shared.sql("SELECT * FROM lake.shop.sales"), texts(&left));
        shared.replace("with the vector", &days(&[TUE]), &left).await;
        shared.check(&left, "a replaced partition takes its vector with it").await;
        assert_eq!(shared.sql("SELECT count(*) FROM lake.shop.sales.delete_files"), ["0"]);
    }
}
