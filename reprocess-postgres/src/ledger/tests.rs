//! The ledger at size: what the questions answer over many rows, and that they search indexes.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::DateTime;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::slice::Base;
use reprocess_core::domain::value::Value;
use reprocess_core::ports::ledger::{DeliveryFilter, LedgerReader, RunRecord, TaskFinish};
use serde_json::json;

use super::*;
use crate::config::PostgresConfig;
use crate::server::TestDatabase;
use crate::sql::Arg;

const DAYS: i64 = 730;

/// Rows of runs, each over one of the days of one of the tables, oldest first; the last run of each day is current.
/// Every third run of a day has the logic version `1`, the others `2`; job `j0` writes table `t0`.
const FILL: &str = "
    WITH r AS (SELECT i, (i / $2) % $3 AS tab, i % $2 AS day, i / ($2 * $3) AS turn FROM generate_series(0, $1 - 1) AS i),
    w AS (SELECT *, CASE WHEN turn % 3 = 0 THEN '1' ELSE '2' END AS logic, jsonb_build_object('day', day) AS key,
                 'r' || turn || '.' || tab || '.' || day AS run
          FROM r),
    v AS (SELECT *, jsonb_build_object('run', run, 'job', 'j' || tab, 'op', 'replace', 'scope_digest', 'd' || day,
                                       'generation', 1) AS stamp FROM w)
    INSERT INTO reprocess.run (position, stamp, shape, partition, key, table_id, job, run, backfill, triggered_by,
        status, is_current, changes, logic, fingerprint, queued_at, started_at, finished_at, record)
    SELECT i + 1, stamp::text, tab + 1, 'day=' || day, key::text, 't' || tab, 'j' || tab, run,
        'b' || turn || '.' || tab, 'scheduled', 'committed', i + $2 * $3 >= $1, true, logic, 'f',
        to_timestamp(i), to_timestamp(i + 5), to_timestamp(i + 9),
        ($4::jsonb || jsonb_build_object('stamp', stamp, 'run', run, 'job', 'j' || tab, 'table', 't' || tab,
            'partition', key, 'logic', logic))::text::json
    FROM v";

async fn filled(database: &TestDatabase, tables: i64, rows: i64) -> PostgresLedger {
    let ledger = PostgresLedger::open(database.connect().await).await.unwrap();
    let mut tx = ledger.db.begin().await.unwrap();
    let s = &mut ledger.session(&mut tx);
    for table in 0..tables {
        place::shape_of(s, &TableId::new(format!("t{table}")), &day(0)).await.unwrap();
    }
    s.sql(FILL).bind(rows).bind(DAYS).bind(tables).bind(template()).execute(s.conn(), "fill").await.unwrap();
    let position = s.sql("UPDATE reprocess.ledger SET position = $1").bind(rows);
    position.execute(s.conn(), "fill").await.unwrap();
    tx.commit().await.unwrap();
    database.execute("VACUUM ANALYZE").await;
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
async fn a_machine_that_hangs_in_its_commit_is_put_out_and_the_others_go_on() {
    let database = TestDatabase::fresh().await;
    let config = PostgresConfig::new().with_idle_timeout_ms(100);
    let hanging = PostgresLedger::open(config.connect(database.address()).await.unwrap()).await.unwrap();
    let other = PostgresLedger::open(database.connect().await).await.unwrap();
    let entries: Vec<_> = (0..2).map(entry).collect();
    let mut tx = hanging.db.begin().await.unwrap();
    hanging.finish_on(&mut tx, &committed(&entries[..1]), &entries[..1]).await.unwrap();
    other.finish(&committed(&entries[1..]), &entries[1..]).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let rows = other.run(&RunId::from("new")).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.record.partition.clone()).collect::<Vec<_>>(), [day(1)]);
}

#[tokio::test]
async fn twenty_thousand_rows_are_answered_right() {
    let database = TestDatabase::fresh().await;
    let (tables, turns) = (2, 14);
    let ledger = filled(&database, tables, DAYS * tables * turns).await;
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
    let database = TestDatabase::fresh().await;
    let ledger = filled(&database, 20, 29_200).await;
    running(&ledger, 10_000).await;
    database.execute("VACUUM ANALYZE").await;
    let mut tx = ledger.db.begin_read().await.unwrap();
    let s = &mut ledger.session(&mut tx);
    let mut check = async |sql: &str, indexes: &[&str], values: Vec<Arg>| {
        let explain = s.sql(&format!("EXPLAIN {sql}"));
        let explain = values.into_iter().fold(explain, Statement::bind);
        let steps: Vec<(String,)> = explain.all(s.conn(), "explain").await.unwrap();
        let steps: Vec<_> = steps.into_iter().map(|(step,)| step).collect();
        let plan = steps.join("\n");
        for index in indexes {
            assert!(plan.contains(&format!(" {index} ")), "{sql}\nwants {index}\n{plan}");
        }
        let scans =
            steps.iter().filter(|step| step.contains("Seq Scan on run") || step.contains("Seq Scan on task"));
        assert_eq!(scans.count(), 0, "{sql}\n{plan}");
    };
    let integers = |integers: &[i64]| Arg::Integers(integers.to_vec());
    let texts = |texts: &[&str]| Arg::Texts(texts.iter().map(|text| (*text).to_owned()).collect());
    let key = || vec![integers(&[8]), texts(&["day=3"]), texts(&["day=3\u{1}"]), texts(&[""])];
    let with = |mut values: Vec<Arg>, more: Vec<Arg>| {
        values.extend(more);
        values
    };
    let many = vec![integers(&(0..DAYS).collect::<Vec<_>>()), integers(&[8; 730])];
    let days: Vec<_> = (0..DAYS).map(|day| format!("day={day}")).collect();
    check(reader::CURRENT, &["run_current", "run_pkey"], with(many, vec![Arg::Texts(days)])).await;
    check(reader::HISTORY, &["run_place"], with(key(), vec![20_i64.into()])).await;
    check(reader::HISTORY_OF_SHAPE, &["run_shape"], vec![8_i64.into(), 20_i64.into()]).await;
    check(reader::PARTITIONS, &["run_current"], vec!["t7".into()]).await;
    check(reader::RECENT, &["run_recent"], vec!["j7".into(), 30_i64.into()]).await;
    check(reader::OUTDATED, &["run_logic"], vec![texts(&["j7"]), texts(&["1"])]).await;
    let (from, until) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + Duration::from_secs(9));
    check(reader::QUEUE_TIMES, &["run_started"], vec![from.into(), until.into()]).await;
    check(reader::OF_RUN, &["run_run"], vec!["r1.7.3".into()]).await;
    check(reader::OF_BACKFILL, &["run_backfill"], vec!["b1.7".into()]).await;
    check(run::KNOWN, &["run_stamp_partition_key"], vec!["{}".into(), "day=3".into()]).await;
    check(run::SUPERSEDE, &["run_current"], key()).await;
    check(stale::MISSED, &["run_place"], with(key(), vec![5_i64.into(), "r".into()])).await;
    check(stale::MISSED_OF_SHAPE, &["run_shape"], with(key(), vec![29_100_i64.into(), "r".into()])).await;
    let take = vec![
        "fix".into(),
        1_i64.into(),
        from.into(),
        texts(&["j7"]),
        texts(&["1"]),
        4_i64.into(),
        "w".into(),
        from.into(),
        9_i64.into(),
        true.into(),
    ];
    check(task::TAKE, &["task_ready", "task_claimed"], take).await;
}

/// Prints how long each question takes over a million rows: `scripts/test postgres` starts no such test; set
/// `REPROCESS_TEST_POSTGRES` and run `cargo test -p reprocess-postgres --release -- --ignored --nocapture a_million`.
#[tokio::test]
#[ignore = "prints times, asserts nothing"]
#[allow(clippy::disallowed_methods, reason = "measures")]
async fn a_million_rows() {
    let database = TestDatabase::fresh().await;
    let start = std::time::Instant::now();
    let ledger = filled(&database, 50, 1_022_000).await;
    println!("filled in {:?}", start.elapsed());
    let start = std::time::Instant::now();
    running(&ledger, 10_000).await;
    database.execute("ANALYZE reprocess.task").await;
    println!("10,000 tasks filed in {:?}", start.elapsed());
    let table = TableId::from("t7");
    let days: Vec<_> = (0..DAYS).map(day).collect();
    let versions =
        |v: &str| (0..50).map(|j| (JobName::new(format!("j{j}")), LogicVersion::from(v))).collect();
    macro_rules! timed {
        ($($name:literal: $call:expr),+ $(,)?) => {$(
            let mut took = Vec::new();
            for _ in 0..9 {
                let start = std::time::Instant::now();
                $call.await.unwrap();
                took.push(start.elapsed());
            }
            let first = took[0];
            took.sort();
            println!("{:<32} first {first:>10.2?}  median {:>10.2?}", $name, took[4]);
        )+};
    }
    timed! {
        "position": ledger.position(),
        "current of one": ledger.current(&table, &days[3..4]),
        "current of 730": ledger.current(&table, &days),
        "partitions": ledger.partitions(&table),
        "recent 30": ledger.recent(&JobName::from("j7"), 30),
        "outdated, none of 50 jobs": ledger.outdated(&versions("1")),
        "outdated, 36500 of 50 jobs": ledger.outdated(&versions("2")),
        "history of one": ledger.history(&table, &day(9), 20),
        "history of the table": ledger.history(&table, &Default::default(), 20),
        "run": ledger.run(&RunId::from("r3.7.9")),
        "changes of 730": ledger.changes(&BackfillId::from("b3.7")),
        "stale": ledger.stale(),
    }
    let (scope, worker) = (Scope::key(day(1)).unwrap(), WorkerId::from("w"));
    let (fix, can_run, ttl, now) =
        (BackfillId::from("fix"), [can_run()], Duration::from_secs(9), DateTime::UNIX_EPOCH);
    let entries: Vec<_> = (0..DAYS).map(entry).collect();
    timed! {
        "acquire": ledger.acquire(&table, &scope, &worker, ttl, now),
        "claim 4": ledger.claim(&fix, &worker, &can_run, 4, ttl, now),
        "progress of 10,000": ledger.progress(&fix),
        "finish one": ledger.finish(&committed(&entries[..1]), &entries[..1]),
        "finish 730": ledger.finish(&committed(&entries), &entries),
    }
}

fn can_run() -> (JobName, LogicVersion) {
    ("j7".into(), "1".into())
}

/// A running backfill of so many tasks, each after the one before.
async fn running(ledger: &PostgresLedger, tasks: u32) {
    let mut tx = ledger.db.begin().await.unwrap();
    let s = &mut ledger.session(&mut tx);
    for sql in [
        "INSERT INTO reprocess.backfill SELECT 'fix', 1, 'running', 9 + 0 * $1, '{}', '', '', now(), now(), NULL",
        "INSERT INTO reprocess.task (backfill, generation, no, job, logic, state, waiting, attempt, queued_at, started_at,
             finished_at)
         SELECT 'fix', 1, i, 'j7', '1', CASE WHEN i < 5000 THEN 'committed' ELSE 'pending' END,
             (i > 5010)::integer, 1, now(), now(), now() + interval '9 milliseconds'
         FROM generate_series(0, $1 - 1) AS i",
        "INSERT INTO reprocess.task_after SELECT 'fix', 1, no - 1, no FROM reprocess.task WHERE no > 0 AND no < $1",
    ] {
        s.sql(sql).bind(tasks).execute(s.conn(), "fill").await.unwrap();
    }
    tx.commit().await.unwrap();
}

fn entry(number: i64) -> CommitEntry {
    let mut record: RunRecord = serde_json::from_str(&template()).unwrap();
    (record.run, record.job, record.table) = ("new".into(), "j7".into(), "t7".into());
    (record.partition, record.scope) = (day(number), Scope::key(day(number)).unwrap());
    record.stamp.run = "new".into();
    record.stamp.scope_digest = record.scope.digest();
    let stale = vec![("j8".into(), "t8".into(), day(number)), ("j9".into(), "t9".into(), day(number))];
    CommitEntry {
        scope: record.scope.clone(),
        change: reprocess_core::ports::writer::Change::Adopt,
        stamp: record.stamp.clone(),
        attempt: 1,
        finish: TaskFinish { records: vec![record], deliver: true, stale, ..TaskFinish::default() },
    }
}

fn committed(entries: &[CommitEntry]) -> Commit {
    let keys = entries.iter().flat_map(|entry| entry.scope.partitions());
    let partitions = Base::new("9".into(), keys.map(|key| (key, "9".into())).collect());
    Commit { version: "9".into(), partitions, attempts: Vec::new(), kept: None, recorded: false, order: 0 }
}

/// What was prepared, released and held back before deliveries were sent is there afterwards, and is sent.
#[tokio::test]
async fn a_ledger_of_the_first_form_keeps_its_deliveries() {
    let database = TestDatabase::fresh().await;
    let db = database.connect().await;
    db.migrate("ledger", &schema::FORMS[..1]).await.unwrap();
    database
        .execute(
            r#"INSERT INTO reprocess.delivery
                   (stamp, attempt, run, generation, key, channel, payload, state, changed_at, released_by)
               SELECT '{"run":"r1","job":"j","op":"replace","scope_digest":"d","generation":1}', 1, 'r1', 1, 'k' || n,
                   'mail', '{}', state, '2026-10-05Z', CASE state WHEN 'released' THEN 'eve' END
               FROM unnest(ARRAY['prepared', 'suppressed', 'released', 'duplicate', 'withdrawn'])
                   WITH ORDINALITY AS s (state, n) ORDER BY n"#,
        )
        .await;
    let ledger = PostgresLedger::open(db).await.unwrap();
    let all = ledger.deliveries(&DeliveryFilter::default()).await.unwrap();
    let known: Vec<_> = all.iter().map(|d| format!("{} {} {}", d.place, d.delivery.key, d.state)).collect();
    assert_eq!(
        known,
        ["1 k1 prepared", "2 k2 suppressed", "3 k3 released", "4 k4 duplicate", "5 k5 withdrawn"]
    );
    assert_eq!((all[0].attempts, &all[0].due_at, all[0].run.as_ref().unwrap().as_str()), (0, &None, "r1"));
    let (ttl, now) = (Duration::from_secs(60), DateTime::from_timestamp(1, 0).unwrap());
    let taken = ledger.claim_deliveries(&["mail".into()], &"w".into(), 9, ttl, now).await.unwrap();
    assert_eq!(taken.iter().map(|claim| claim.place).collect::<Vec<_>>(), [3]);
    let new = Delivery { key: "k6".into(), channel: "mail".into(), payload: json!({}) };
    assert_eq!(ledger.announce(&DeliveryOrigin::default(), &[new], now).await.unwrap(), 1);
    assert_eq!(ledger.deliveries(&DeliveryFilter::default()).await.unwrap()[5].place, 6, "after all others");
}
