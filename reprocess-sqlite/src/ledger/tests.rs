//! The ledger at size: what the questions answer over many rows, and that they search indexes.

use std::collections::BTreeMap;

use chrono::DateTime;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::ledger::{DeliveryFilter, LedgerReader, RunRecord};
use serde_json::json;
use sqlx::AssertSqlSafe;

use super::*;
use crate::config::{Durability, SqliteConfig};

const DAYS: i64 = 730;
const ROWID: &str = "INTEGER PRIMARY KEY (rowid=?)";

/// Rows of runs, each over one of the days of one of the tables, oldest first; the last run of each day is current.
/// Every third run of a day has the logic version `1`, the others `2`; job `j0` writes table `t0`.
const FILL: &str = "
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1),
    r AS (SELECT i, (i / ?2) % ?3 AS tab, i % ?2 AS day, i / (?2 * ?3) AS turn FROM n),
    w AS (SELECT *, CASE WHEN turn % 3 = 0 THEN '1' ELSE '2' END AS logic,
                 json_object('day', day) AS key,
                 json_object('run', 'r' || turn || '.' || tab || '.' || day, 'job', 'j' || tab, 'op', 'replace',
                             'scope_digest', 'd' || day, 'generation', 1) AS stamp
          FROM r)
    INSERT INTO reprocess_run (stamp, shape, partition, key, table_id, job, run, backfill, triggered_by, status,
        is_current, logic, fingerprint, queued_us, started_us, finished_us, record)
    SELECT stamp, tab + 1, 'day=' || day, key, 't' || tab, 'j' || tab, stamp ->> 'run',
        'b' || turn || '.' || tab, 'scheduled', 'committed', i + ?2 * ?3 >= ?1, logic, 'f', i * 1000000,
        i * 1000000 + 5000, i * 1000000 + 9000,
        json_set(?4, '$.stamp', json(stamp), '$.run', stamp ->> 'run', '$.job', 'j' || tab, '$.table', 't' || tab,
            '$.partition', json(key), '$.logic', logic)
    FROM w";

async fn filled(folder: &tempfile::TempDir, tables: i64, rows: i64) -> SqliteLedger {
    let config = SqliteConfig::new().with_durability(Durability::Normal);
    let ledger = SqliteLedger::open(config.open(folder.path().join("l.db")).await.unwrap()).await.unwrap();
    let mut tx = ledger.db.begin_write().await.unwrap();
    for table in 0..tables {
        let table = TableId::new(format!("t{table}"));
        place::shape_of(&mut tx, &table, &day(0)).await.unwrap();
    }
    let fill = sqlx::query(FILL).bind(rows).bind(DAYS).bind(tables).bind(template());
    fill.execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    ledger
}

fn day(day: i64) -> PartitionKey {
    PartitionKey::of("day", Value::from(day))
}

fn template() -> String {
    let record = json!({
        "run": "", "job": "", "table": "", "partition": {}, "scope": {"keys": [{"day": 1}]},
        "stamp": {"run": "", "job": "", "op": "replace", "scope_digest": "", "generation": 1},
        "attempt": 1, "status": "committed", "trigger": "scheduled", "reason": "the daily run ".repeat(20),
        "requester": "ann", "build": "b", "parameters": {}, "inputs": {}, "worker": "w",
        "queued_at": DateTime::UNIX_EPOCH, "started_at": DateTime::UNIX_EPOCH, "finished_at": DateTime::UNIX_EPOCH,
    });
    let record: RunRecord = serde_json::from_value(record).unwrap();
    serde_json::to_string(&record).unwrap()
}

#[tokio::test]
async fn twenty_thousand_rows_are_answered_right() {
    let folder = tempfile::tempdir().unwrap();
    let (tables, turns) = (2, 14);
    let ledger = filled(&folder, tables, DAYS * tables * turns).await;
    let table = TableId::from("t1");
    let days: Vec<_> = (0..DAYS).map(day).collect();
    let current = ledger.current(&table, &days).await.unwrap();
    for (place, row) in current.iter().enumerate() {
        let row = row.as_ref().unwrap();
        assert_eq!(row.record.run.as_str(), format!("r13.1.{place}"));
    }
    assert_eq!(ledger.partitions(&table).await.unwrap(), days);
    let versions = |version: &str| BTreeMap::from([(JobName::from("j0"), LogicVersion::from(version))]);
    assert_eq!(ledger.outdated(&versions("2")).await.unwrap(), []);
    assert_eq!(ledger.outdated(&versions("1")).await.unwrap().len(), 730);
    assert_eq!(ledger.history(&table, &day(7), 100).await.unwrap().len(), 14);
    let all = ledger.history(&table, &Default::default(), 3).await.unwrap();
    assert_eq!(
        all.iter().map(|row| row.record.partition.clone()).collect::<Vec<_>>(),
        [day(729), day(728), day(727)]
    );
    let recent = ledger.recent(&JobName::from("j0"), 2).await.unwrap();
    assert_eq!(
        recent.iter().map(|row| row.record.run.as_str()).collect::<Vec<_>>(),
        ["r13.0.729", "r13.0.728"]
    );
    assert_eq!(ledger.changes(&BackfillId::from("b3.1")).await.unwrap().len(), 730);
    assert_eq!(ledger.position().await.unwrap(), 20_440);
}

#[tokio::test]
async fn every_question_searches_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = filled(&folder, 2, 2_000).await;
    let mut tx = ledger.db.begin_write().await.unwrap();
    let mut check = async |sql: &str, indexes: &[&str]| {
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let steps: Vec<(i64, i64, i64, String)> = sqlx::query_as(explain).fetch_all(&mut *tx).await.unwrap();
        let steps: Vec<_> = steps.into_iter().map(|(_, _, _, step)| step).collect();
        let searched: Vec<_> = steps.iter().filter_map(|step| step.strip_prefix("SEARCH ")).collect();
        let scanned = steps.iter().filter(|step| step.starts_with("SCAN") && !step.contains("VIRTUAL TABLE"));
        assert!(scanned.into_iter().all(|step| step == "SCAN last"), "{sql}\n{steps:#?}");
        assert_eq!(searched.len(), indexes.len(), "{sql}\n{steps:#?}");
        for (search, index) in searched.iter().zip(indexes) {
            assert!(search.contains(index), "{sql}\nwants {index}\n{steps:#?}");
        }
    };
    check(reader::CURRENT, &["COVERING INDEX reprocess_run_current (shape=? AND partition=?)", ROWID]).await;
    let place = "COVERING INDEX reprocess_run_place (shape=? AND partition>? AND partition<?)";
    check(reader::HISTORY, &[ROWID, place]).await;
    check(reader::HISTORY_OF_SHAPE, &["INDEX reprocess_run_shape (shape=?)"]).await;
    check(reader::PARTITIONS, &["(table_id=?)", "INDEX reprocess_run_current (shape=?)"]).await;
    check(reader::RECENT, &["INDEX reprocess_run_recent (job=?)"]).await;
    check(reader::OUTDATED, &["COVERING INDEX reprocess_run_logic"; 3]).await;
    check(reader::QUEUE_TIMES, &["COVERING INDEX reprocess_run_started"]).await;
    check(reader::OF_RUN, &["INDEX reprocess_run_run (run=?)"]).await;
    check(reader::OF_BACKFILL, &["INDEX reprocess_run_backfill (backfill=?)"]).await;
    check(run::KNOWN, &["(stamp=? AND partition=?)"]).await;
    let current = "COVERING INDEX reprocess_run_current (shape=? AND partition>? AND partition<?)";
    check(run::SUPERSEDE, &[ROWID, current]).await;
    let key = "PRIMARY KEY (shape=? AND partition>? AND partition<?)";
    check(stale::CLEAR, &["PRIMARY KEY (shape=? AND partition=?)", key]).await;
    let place = "INDEX reprocess_run_place (shape=? AND partition>? AND partition<?)";
    check(stale::MISSED, &[place]).await;
    check(stale::MISSED_OF_SHAPE, &["INDEX reprocess_run_shape (shape=? AND rowid>?)"]).await;
    check(lease::OVERLAPPING, &[key, ROWID]).await;
    check(task::FREE, &["INDEX reprocess_task_ready", "INDEX reprocess_task_claimed"]).await;
    check(task::PROGRESS, &["COVERING INDEX reprocess_task_progress", "(id=?)"]).await;
}

/// What was prepared, released and held back before deliveries were sent is there afterwards, and is sent.
#[tokio::test]
async fn a_ledger_of_the_first_form_keeps_its_deliveries() {
    let folder = tempfile::tempdir().unwrap();
    let db = SqliteConfig::new().open(folder.path().join("l.db")).await.unwrap();
    db.migrate("ledger", &schema::FORMS[..1]).await.unwrap();
    let mut tx = db.begin_write().await.unwrap();
    let states = ["prepared", "suppressed", "released", "duplicate", "withdrawn"];
    for (n, state) in (1..).zip(states) {
        sqlx::query(
            "INSERT INTO reprocess_delivery
                 (position, stamp, attempt, run, generation, key, channel, payload, state, changed_us, released_by)
             VALUES (?1 * 10, ?2, 1, 'r1', 1, 'k' || ?1, 'mail', '{}', ?3, 7, iif(?3 = 'released', 'eve', NULL))",
        )
        .bind(n)
        .bind(r#"{"run":"r1","job":"j","op":"replace","scope_digest":"d","generation":1}"#)
        .bind(state)
        .execute(&mut *tx)
        .await
        .unwrap();
    }
    tx.commit().await.unwrap();
    let ledger = SqliteLedger::open(db).await.unwrap();
    let all = ledger.deliveries(&DeliveryFilter::default()).await.unwrap();
    let known: Vec<_> = all.iter().map(|d| (d.place, d.delivery.key.as_str(), d.state.name())).collect();
    let expected = [(10, "k1"), (20, "k2"), (30, "k3"), (40, "k4"), (50, "k5")];
    assert_eq!(
        known,
        expected.into_iter().zip(states).map(|((n, key), state)| (n, key, state)).collect::<Vec<_>>()
    );
    assert_eq!((all[0].attempts, &all[0].due_at, all[0].run.as_ref().unwrap().as_str()), (0, &None, "r1"));
    let ttl = Duration::from_secs(60);
    let now = DateTime::from_timestamp(1, 0).unwrap();
    let taken = ledger.claim_deliveries(&["mail".into()], &"w".into(), 9, ttl, now).await.unwrap();
    assert_eq!(taken.iter().map(|claim| claim.place).collect::<Vec<_>>(), [30]);
    let new = Delivery { key: "k6".into(), channel: "mail".into(), payload: json!({}) };
    assert_eq!(ledger.announce(&DeliveryOrigin::default(), &[new], now).await.unwrap(), 1);
    assert_eq!(ledger.deliveries(&DeliveryFilter::default()).await.unwrap()[5].place, 51, "after all others");
}
