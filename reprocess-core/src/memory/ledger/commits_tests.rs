//! What finishing does: rows, tasks, deliveries, stale partitions.

use super::*;
use crate::domain::interval::Interval;
use crate::ports::delivery::DeliveryState;
use crate::ports::ledger::{DeliveryFilter, QueueTime, TaskFinish, Trigger};
use crate::ports::writer::{Op, StampId};

fn entry(finish: TaskFinish, attempt: u32) -> CommitEntry {
    let record = finish.records[0].clone();
    CommitEntry {
        scope: record.scope,
        // Not looked at by a ledger.
        change: WriterChange::Restore(crate::domain::slice::Kept(serde_json::Value::Null)),
        stamp: record.stamp,
        attempt,
        finish,
    }
}

/// Finishes a run of one partition that committed `version`.
async fn finished(ledger: &MemoryLedger, record: RunRecord, version: &str) {
    let entry = entry(finish(vec![record.clone()]), record.attempt);
    let commit = commit(version, &record.stamp, record.attempt, &record.partition);
    ledger.finish(&commit, &[entry]).await.unwrap();
}

async fn current_runs(ledger: &MemoryLedger, keys: &[PartitionKey]) -> Vec<Option<String>> {
    let rows = ledger.current(&TABLE.into(), keys).await.unwrap();
    rows.into_iter().map(|row| row.map(|row| row.record.run.to_string())).collect()
}

fn mail(key: &str) -> Delivery {
    Delivery { key: key.into(), channel: "mail".into(), payload: serde_json::json!({ "to": "ada" }) }
}

fn staged(run: &str, attempt: u32) -> StagedId {
    StagedId { stamp: stamp(run, &days(1)[0]), attempt }
}

async fn delivery_states(ledger: &MemoryLedger) -> Vec<DeliveryState> {
    let records = ledger.deliveries(&DeliveryFilter::default()).await.unwrap();
    records.into_iter().map(|record| record.state).collect()
}

#[tokio::test]
async fn a_commit_gives_a_row_what_only_it_knows_and_repeating_it_changes_nothing() {
    let ledger = MemoryLedger::new();
    let key = &days(1)[0];
    let mut told = entry(finish(vec![record("r1", key)]), 1);
    let commit = commit("7", &told.stamp, 3, key);
    ledger.finish(&commit, std::slice::from_ref(&told)).await.unwrap();
    let rows = ledger.run(&"r1".into()).await.unwrap();
    let row = &rows[0];
    assert_eq!((row.position, row.record.attempt), (1, 3), "attempt 3 is the one that was committed");
    assert_eq!(row.record.output.as_ref().unwrap().as_str(), "7");
    assert_eq!(row.record.output_partition.as_ref().unwrap().as_str(), "7");
    told.finish.records[0].reason = "told again".into();
    ledger.finish(&commit, &[told]).await.unwrap();
    assert_eq!(ledger.run(&"r1".into()).await.unwrap(), rows);
    assert_eq!(ledger.position().await.unwrap(), 1);
}

#[tokio::test]
async fn a_unit_that_is_no_key_of_the_scope_has_the_version_of_the_key_above() {
    let ledger = MemoryLedger::new();
    let unit = days(1)[0].clone();
    let merge = RunRecord {
        scope: Scope::whole_table(),
        stamp: StampId { op: Op::Merge, ..stamp("m1", &unit) },
        ..record("m1", &unit)
    };
    let told = entry(finish(vec![merge.clone()]), 1);
    let commit = commit("9", &merge.stamp, 1, &PartitionKey::whole());
    ledger.finish(&commit, &[told]).await.unwrap();
    let rows = ledger.run(&"m1".into()).await.unwrap();
    assert_eq!(rows[0].record.output_partition.as_ref().unwrap().as_str(), "9");
}

#[tokio::test]
async fn repeating_a_superseded_run_does_not_make_it_current() {
    let ledger = MemoryLedger::new();
    let key = &days(1)[0];
    finished(&ledger, record("r1", key), "1").await;
    finished(&ledger, record("r2", key), "2").await;
    finished(&ledger, record("r1", key), "1").await;
    assert_eq!(current_runs(&ledger, &days(2)).await, [Some("r2".into()), None]);
    let history = ledger.history(&TABLE.into(), key, 9).await.unwrap();
    assert_eq!(history.iter().map(|row| row.position).collect::<Vec<_>>(), [2, 1]);
}

#[tokio::test]
async fn a_failure_told_late_does_not_hide_the_commit_and_a_commit_replaces_a_failure() {
    let ledger = running(&plan("fix", &days(2), &[])).await;
    let claims = claim(&ledger, "w1", 2, 10).await;
    let failure = |key: &PartitionKey| RunRecord { status: RunStatus::Failed, ..record("fix.1", key) };
    let keys = days(2);
    finished(&ledger, record("fix.1", &keys[0]), "1").await;
    for (claim, key) in claims.iter().zip(&keys) {
        let leave = Leave::Failed { note: "lost reply".into(), records: vec![failure(key)] };
        assert!(ledger.leave(claim, leave, at(20)).await.unwrap());
    }
    let outcome = async || {
        let rows = ledger.run(&"fix.1".into()).await.unwrap();
        rows.into_iter().map(|row| (row.position, row.record.status)).collect::<Vec<_>>()
    };
    assert_eq!(outcome().await, [(1, RunStatus::Committed), (2, RunStatus::Failed)]);
    assert_eq!(current_runs(&ledger, &keys).await, [Some("fix.1".into()), None]);
    finished(&ledger, record("fix.1", &keys[1]), "2").await;
    assert_eq!(outcome().await, [(1, RunStatus::Committed), (3, RunStatus::Committed)]);
}

#[tokio::test]
async fn the_current_row_is_the_last_that_covers_the_partition() {
    let ledger = MemoryLedger::new();
    let today = days(1)[0].clone();
    let (french, german) = (today.clone().and("country", "FR"), today.clone().and("country", "DE"));
    finished(&ledger, record("french", &french), "1").await;
    finished(&ledger, record("all", &today), "2").await;
    finished(&ledger, record("german", &german), "3").await;
    let keys = [french.clone(), german.clone(), today.clone()];
    let runs = ["all", "german", "all"].map(|run| Some(run.to_owned()));
    assert_eq!(current_runs(&ledger, &keys).await, runs);
    assert_eq!(ledger.partitions(&TABLE.into()).await.unwrap(), [today, german]);
    let recent = ledger.recent(&JOB.into(), 9).await.unwrap();
    assert_eq!(recent.iter().map(|row| row.position).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(ledger.recent(&JOB.into(), 1).await.unwrap().len(), 1);
    assert_eq!(ledger.history(&TABLE.into(), &french, 9).await.unwrap().len(), 2);
}

#[tokio::test]
async fn what_runs_on_another_logic_is_outdated() {
    let ledger = MemoryLedger::new();
    let keys = days(3);
    finished(&ledger, record("old", &keys[0]), "1").await;
    finished(&ledger, record("old", &keys[1]), "2").await;
    finished(&ledger, RunRecord { logic: Some("v2".into()), ..record("new", &keys[1]) }, "3").await;
    finished(&ledger, RunRecord { logic: None, ..record("back", &keys[2]) }, "4").await;
    let versions = [(JobName::from(JOB), LogicVersion::from("v2"))].into();
    let outdated = ledger.outdated(&versions).await.unwrap();
    let found: Vec<_> = outdated.into_iter().map(|o| (o.partition, o.run.to_string(), o.logic)).collect();
    let old = Some(LogicVersion::from("v1"));
    assert_eq!(found, [(keys[0].clone(), "old".into(), old), (keys[2].clone(), "back".into(), None)]);
    assert_eq!(ledger.outdated(&[("other".into(), "v2".into())].into()).await.unwrap(), []);
}

#[tokio::test]
async fn what_was_read_by_nobody_is_not_stale_and_a_run_clears_only_what_it_has_seen() {
    let ledger = MemoryLedger::new();
    let keys = days(2);
    let downstream = |run: &str| {
        let key = &keys[0];
        RunRecord { table: "report".into(), job: "report".into(), ..record(run, key) }
    };
    finished(&ledger, downstream("d1"), "1").await;
    let stale = keys.iter().map(|key| ("report".into(), "report".into(), key.clone())).collect();
    let cause = entry(TaskFinish { stale, ..finish(vec![record("r1", &keys[0])]) }, 1);
    let version = commit("2", &cause.stamp, 1, &keys[0]);
    ledger.finish(&version, std::slice::from_ref(&cause)).await.unwrap();
    let found = ledger.stale().await.unwrap();
    assert_eq!(found.len(), 1, "the second day of the report was never computed");
    assert_eq!((&found[0].partition, found[0].because.as_str(), found[0].position), (&keys[0], "r1", 2));

    let rerun = async |run: &str, pinned_at: u64| {
        let told = entry(TaskFinish { pinned_at, ..finish(vec![downstream(run)]) }, 1);
        ledger.finish(&commit("9", &told.stamp, 1, &keys[0]), &[told]).await.unwrap();
    };
    rerun("d2", 1).await;
    assert_eq!(ledger.stale().await.unwrap().len(), 1, "it read what was there before the change");
    rerun("d3", 2).await;
    assert_eq!(ledger.stale().await.unwrap(), []);
    ledger.finish(&version, &[cause]).await.unwrap();
    assert_eq!(ledger.stale().await.unwrap(), [], "the same commit told again is no new change");
}

#[tokio::test]
async fn a_committed_task_is_committed_whatever_became_of_it_meanwhile() {
    let ledger = running(&plan("fix", &days(2), &[&[], &[0]])).await;
    let claimed = claim(&ledger, "w1", 1, 10).await.remove(0);
    let task = Some(("fix".into(), 1, claimed.task));
    let told = entry(TaskFinish { task, ..finish(vec![record("fix.1", &days(1)[0])]) }, 1);
    ledger.finish(&commit("1", &told.stamp, 1, &days(1)[0]), std::slice::from_ref(&told)).await.unwrap();
    assert_eq!(states(&ledger).await, [TaskState::Committed, TaskState::Pending]);
    let next = claim(&ledger, "w1", 1, 30).await.remove(0);
    assert_eq!((next.task, next.queued_at), (TaskId(1), at(15)), "it could run when the first had ended");
    move_to(&ledger, "fix", Running, Cancelled, 40).await;
    ledger.finish(&commit("1", &told.stamp, 1, &days(1)[0]), &[told]).await.unwrap();
    assert_eq!(states(&ledger).await, [TaskState::Committed, TaskState::Cancelled]);
}

#[tokio::test]
async fn deliveries_wait_for_the_commit_and_an_event_is_sent_once() {
    use DeliveryState::{Duplicate, Prepared, Released, Suppressed, Withdrawn};
    let ledger = MemoryLedger::new();
    let key = &days(1)[0];
    let prepare = async |run: &str, attempt: u32, keys: &[&str]| {
        let batch: Vec<_> = keys.iter().map(|key| mail(key)).collect();
        ledger.prepare_deliveries(&staged(run, attempt), None, &batch, at(1)).await.unwrap();
    };
    let end = async |run: &str, attempt: u32, deliver: bool| {
        let told = entry(TaskFinish { deliver, ..finish(vec![record(run, key)]) }, attempt);
        ledger.finish(&commit("1", &told.stamp, attempt, key), &[told]).await.unwrap();
    };
    prepare("r1", 1, &["a", "b", "c"]).await;
    prepare("r1", 1, &["a", "b"]).await;
    prepare("r1", 2, &["a", "b"]).await;
    assert_eq!(delivery_states(&ledger).await, [Prepared; 4]);
    end("r1", 2, true).await;
    assert_eq!(delivery_states(&ledger).await, [Withdrawn, Withdrawn, Released, Released]);
    prepare("r1", 2, &["a", "b"]).await;
    end("r1", 2, true).await;
    assert_eq!(delivery_states(&ledger).await, [Withdrawn, Withdrawn, Released, Released], "told again");
    prepare("r2", 1, &["b", "d"]).await;
    prepare("r3", 1, &["d"]).await;
    end("r2", 1, false).await;
    end("r3", 1, false).await;
    let after = delivery_states(&ledger).await;
    assert_eq!(after[4..], [Duplicate, Suppressed, Suppressed]);
    let release = async || ledger.release_deliveries(&["d".into(), "a".into()], &me(), at(9)).await.unwrap();
    assert_eq!(release().await, 1);
    assert_eq!(delivery_states(&ledger).await[4..], [Duplicate, Duplicate, Released], "the latest numbers");
    assert_eq!(release().await, 0);
    let released = DeliveryFilter { run: Some("r3".into()), state: Some(Released), backfill: None };
    assert_eq!(ledger.deliveries(&released).await.unwrap()[0].changed_at, at(9));
}

#[tokio::test]
async fn stopping_a_backfill_withdraws_what_it_would_have_sent() {
    let ledger = running(&plan("fix", &days(1), &[])).await;
    let id = BackfillId::from("fix");
    ledger.prepare_deliveries(&staged("fix.1", 1), Some(&id), &[mail("a")], at(3)).await.unwrap();
    move_to(&ledger, "fix", Running, Cancelled, 4).await;
    assert_eq!(delivery_states(&ledger).await, [DeliveryState::Withdrawn]);
    let told = entry(finish(vec![record("fix.1", &days(1)[0])]), 1);
    ledger.finish(&commit("1", &told.stamp, 1, &days(1)[0]), &[told]).await.unwrap();
    assert_eq!(delivery_states(&ledger).await, [DeliveryState::Suppressed], "its output came after all");
}

#[tokio::test]
async fn queue_times_are_told_by_trigger() {
    let ledger = MemoryLedger::new();
    let keys = days(3);
    finished(&ledger, record("r1", &keys[0]), "1").await;
    finished(&ledger, RunRecord { started_at: at(20), ..record("r1", &keys[1]) }, "2").await;
    let late = RunRecord { started_at: at(99), trigger: Trigger::Backfill, ..record("r1", &keys[2]) };
    finished(&ledger, late, "3").await;
    let times = ledger.queue_times(&Interval::new(at(0), at(99)).unwrap()).await.unwrap();
    let scheduled = QueueTime { rows: 2, mean_ms: 15_000, max_ms: 20_000 };
    assert_eq!(times, [(Trigger::Scheduled, scheduled)].into());
}
