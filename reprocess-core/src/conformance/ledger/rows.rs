//! Laws of rows and deliveries.

use crate::domain::interval::Interval;
use crate::domain::partition::PartitionKey;
use crate::domain::plan::TaskId;
use crate::ports::delivery::DeliveryState;
use crate::ports::ledger::{
    BackfillState, DeliveryFilter, Leave, QueueTime, RunLedger, RunRecord, RunStatus, TaskFinish, TaskState,
    Trigger,
};

use super::fixtures::*;
use crate::conformance::Fixture;
use BackfillState::{Cancelled, Running};

pub(in crate::conformance) async fn a_commit_told_again_changes_nothing_and_revives_nothing(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let mut told = entry(finish(vec![record("r1", &day(1))]), 1);
    let done = commit("7", &told, 3);
    ledger.finish(&done, std::slice::from_ref(&told)).await.unwrap();
    let rows = ledger.run(&"r1".into()).await.unwrap();
    let record_of = &rows[0].record;
    assert_eq!((rows[0].position, record_of.attempt), (1, 3), "attempt 3 is the one that was committed");
    assert_eq!(record_of.output, Some("7".into()));
    assert_eq!((&record_of.output_partition, &record_of.kept), (&Some("7".into()), &done.kept));
    told.finish.records[0].reason = "told again".into();
    ledger.finish(&done, std::slice::from_ref(&told)).await.unwrap();
    assert_eq!(ledger.run(&"r1".into()).await.unwrap(), rows);
    finished(ledger, record("r2", &day(1))).await;
    ledger.finish(&done, &[told]).await.unwrap();
    assert_eq!(current(ledger, &days(2)).await, ["r2", ""]);
    assert_eq!(ledger.position().await.unwrap(), 2);
}

pub(in crate::conformance) async fn a_commit_replaces_a_failure_and_a_failure_never_a_commit(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &plan("fix", &days(2), &[])).await;
    let claims = claim(ledger, "w1", 2, 10).await;
    finished(ledger, record("fix.1", &day(1))).await;
    for (claim, key) in claims.iter().zip(&days(2)) {
        let mut failure = record("fix.1", key);
        failure.status = RunStatus::Failed;
        let leave = Leave::Failed { note: "lost reply".into(), records: vec![failure] };
        assert!(ledger.leave(claim, leave, at(20)).await.unwrap());
    }
    let outcome = async || {
        let rows = ledger.run(&"fix.1".into()).await.unwrap();
        rows.into_iter().map(|row| (row.position, row.record.status)).collect::<Vec<_>>()
    };
    assert_eq!(outcome().await, [(1, RunStatus::Committed), (2, RunStatus::Failed)]);
    assert_eq!(current(ledger, &days(2)).await, ["fix.1", ""]);
    finished(ledger, record("fix.1", &day(2))).await;
    assert_eq!(outcome().await, [(1, RunStatus::Committed), (3, RunStatus::Committed)]);
}

pub(in crate::conformance) async fn the_current_row_is_the_last_that_covers_the_partition(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let (french, german) = (day(1).and("country", "FR"), day(1).and("country", "DE"));
    for (run, key) in [("french", &french), ("all", &day(1)), ("german", &german)] {
        finished(ledger, record(run, key)).await;
    }
    let keys = [french.clone(), german.clone(), day(1), PartitionKey::whole()];
    assert_eq!(current(ledger, &keys).await, ["all", "german", "all", ""]);
    assert_eq!(ledger.partitions(&TABLE.into()).await.unwrap(), [day(1), german.clone()]);
    let positions = async |limit| {
        let recent = ledger.recent(&JOB.into(), limit).await.unwrap();
        recent.iter().map(|row| row.position).collect::<Vec<_>>()
    };
    assert_eq!((positions(9).await, positions(1).await), (vec![3, 2], vec![3]));
    finished(ledger, record("whole", &PartitionKey::whole())).await;
    assert_eq!(current(ledger, &keys).await, ["whole"; 4]);
    assert_eq!(ledger.partitions(&TABLE.into()).await.unwrap(), [PartitionKey::whole()]);
    finished(ledger, record("of_country", &PartitionKey::of("country", "FR"))).await;
    assert_eq!(current(ledger, &keys).await, ["of_country", "whole", "whole", "whole"]);
    assert_eq!(ledger.current(&"other".into(), &keys).await.unwrap(), [const { None }; 4]);
}

pub(in crate::conformance) async fn history_holds_every_row_that_overlaps(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let country = PartitionKey::of("country", "F/R");
    let both = day(1).and("country", "F/R");
    for (run, key) in [("r1", &both), ("r2", &day(1)), ("r3", &country), ("r4", &day(2))] {
        finished(ledger, record(run, key)).await;
    }
    let history = async |key: &PartitionKey, limit| {
        let rows = ledger.history(&TABLE.into(), key, limit).await.unwrap();
        rows.iter().map(|row| row.position).collect::<Vec<_>>()
    };
    assert_eq!(history(&both, 9).await, [3, 2, 1]);
    assert_eq!(history(&country, 9).await, [4, 3, 2, 1], "the country may be part of each day");
    assert_eq!(history(&day(2), 9).await, [4, 3]);
    assert_eq!(history(&PartitionKey::whole(), 2).await, [4, 3]);
    assert_eq!(history(&PartitionKey::of("country", "F"), 9).await, [4, 2]);
}

pub(in crate::conformance) async fn what_runs_on_another_logic_is_outdated(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let on = |run: &str, key: u32, logic: Option<&str>| {
        let mut record = record(run, &day(key));
        record.logic = logic.map(Into::into);
        record
    };
    for record in
        [on("old", 1, Some("v1")), on("old", 2, Some("v1")), on("new", 2, Some("v2")), on("back", 3, None)]
    {
        finished(ledger, record).await;
    }
    let outdated = ledger.outdated(&[(JOB.into(), "v2".into())].into()).await.unwrap();
    let found: Vec<_> = outdated.into_iter().map(|o| (o.partition, o.run.to_string(), o.logic)).collect();
    assert_eq!(found, [(day(1), "old".into(), Some("v1".into())), (day(3), "back".into(), None)]);
    assert_eq!(ledger.outdated(&[("other".into(), "v2".into())].into()).await.unwrap(), []);
}

pub(in crate::conformance) async fn what_changed_since_makes_downstream_stale_until_it_ran_again(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let downstream = |run: &str| {
        let mut record = record(run, &day(1).and("country", "FR"));
        (record.table, record.job) = ("report".into(), "report".into());
        record
    };
    finished(ledger, downstream("d1")).await;
    let french = |d: u32| day(d).and("country", "FR");
    let stale = [1, 2].map(|d| ("report".into(), "report".into(), french(d))).to_vec();
    let cause = entry(TaskFinish { stale, ..finish(vec![record("r1", &day(1))]) }, 1);
    let done = commit("2", &cause, 1);
    ledger.finish(&done, std::slice::from_ref(&cause)).await.unwrap();
    let found = ledger.stale().await.unwrap();
    assert_eq!(found.len(), 1, "the second day of the report was never computed");
    assert_eq!((&found[0].partition, found[0].because.as_str(), found[0].position), (&french(1), "r1", 2));
    let rerun = async |run: &str, pinned_at: u64| {
        let told = entry(TaskFinish { pinned_at, ..finish(vec![downstream(run)]) }, 1);
        ledger.finish(&commit("9", &told, 1), &[told]).await.unwrap();
    };
    rerun("d2", 1).await;
    assert_eq!(ledger.stale().await.unwrap().len(), 1, "it read what was there before the change");
    rerun("d3", 2).await;
    assert_eq!(ledger.stale().await.unwrap(), []);
    ledger.finish(&done, &[cause]).await.unwrap();
    assert_eq!(ledger.stale().await.unwrap(), [], "the same commit told again is no new change");
    let again = |run: &str| {
        let stale = vec![("report".into(), "report".into(), french(1))];
        entry(TaskFinish { stale, ..finish(vec![record(run, &day(1))]) }, 1)
    };
    for cause in [again("r2"), again("r3")] {
        ledger.finish(&commit("3", &cause, 1), &[cause]).await.unwrap();
    }
    let (report, keys) = ("report".into(), [french(1)]);
    ledger.found_unchanged(&report, &keys, &"r2".into(), 0).await.unwrap();
    let found = ledger.stale().await.unwrap();
    assert_eq!(found.len(), 1, "a run has seen what its own earlier tasks did, and nothing else");
    assert_eq!(found[0].because.as_str(), "r3");
    ledger.found_unchanged(&report, &[french(1).and("city", "Paris")], &"r4".into(), 99).await.unwrap();
    assert_eq!(ledger.stale().await.unwrap().len(), 1, "a part of it is not all of it");
    ledger.found_unchanged(&report, &[day(1)], &"r4".into(), found[0].position).await.unwrap();
    assert_eq!(ledger.stale().await.unwrap(), []);
}

pub(in crate::conformance) async fn what_was_changed_after_it_was_pinned_makes_what_read_it_stale(
    f: &dyn Fixture,
) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let french = |d: u32| day(d).and("country", "FR");
    for (run, key) in [("seen", day(1)), ("r2", french(1)), ("r2", day(2)), ("r3", french(2))] {
        finished(ledger, record(run, &key)).await;
    }
    let same = |mut record: RunRecord| {
        let profile = serde_json::json!({
            "partition": record.partition, "rows": 0, "size_bytes": 0, "totals": {}, "nulls": {},
            "content": { "algorithm": "a", "value": "1" }, "comparable": { "algorithm": "a", "value": "1" },
            "keys": null,
        });
        let profile: crate::domain::profile::Profile = serde_json::from_value(profile).unwrap();
        (record.before, record.after) = (Some(profile.clone()), Some(profile));
        record
    };
    finished(ledger, same(record("same", &day(1)))).await;
    let reads = async |run: &str, unit: u32, pinned_at: u64, keys: &[PartitionKey]| {
        let mut record = record(run, &day(unit));
        (record.table, record.job) = ("report".into(), "report".into());
        let reads = vec![(TABLE.into(), keys.to_vec()), ("other".into(), days(9))];
        let told = entry(TaskFinish { reads, pinned_at, ..finish(vec![record]) }, 1);
        ledger.finish(&commit("9", &told, 1), std::slice::from_ref(&told)).await.unwrap();
        ledger.finish(&commit("9", &told, 1), &[told]).await.unwrap();
        let stale = ledger.stale().await.unwrap().into_iter().filter(|s| s.partition == day(unit));
        stale.map(|s| (s.because.to_string(), s.position)).collect::<Vec<_>>()
    };
    let found = |stale: &[(&str, u64)]| stale.iter().map(|s| (s.0.to_owned(), s.1)).collect::<Vec<_>>();
    assert_eq!(reads("d1", 1, 1, &[day(1)]).await, found(&[("r2", 2)]));
    assert_eq!(reads("d2", 2, 1, &[PartitionKey::whole()]).await, found(&[("r2", 3), ("r3", 4)]));
    assert_eq!(reads("d3", 3, 1, &[PartitionKey::of("country", "FR")]).await.len(), 2);
    assert_eq!(reads("d4", 4, 1, &[day(2).and("country", "DE")]).await, found(&[("r2", 3)]));
    assert_eq!(reads("d5", 5, 4, &[PartitionKey::whole()]).await, found(&[]));
    assert_eq!(reads("r3", 6, 2, &[day(2)]).await, found(&[("r2", 3)]), "of its own run it has seen all");
    assert_eq!(reads("d7", 1, 4, &[day(1)]).await, found(&[]));
}

pub(in crate::conformance) async fn a_committed_task_is_committed_whatever_became_of_it(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    run(ledger, &plan("fix", &days(2), &[&[], &[0]])).await;
    let claimed = claim(ledger, "w1", 1, 10).await.remove(0);
    let task = Some(("fix".into(), 1, claimed.task));
    let told = entry(TaskFinish { task, ..finish(vec![record("fix.1", &day(1))]) }, 1);
    let done = commit("1", &told, 1);
    ledger.finish(&done, std::slice::from_ref(&told)).await.unwrap();
    assert_eq!(states(ledger).await, [TaskState::Committed, TaskState::Pending]);
    let next = claim(ledger, "w1", 1, 30).await.remove(0);
    assert_eq!((next.task, next.queued_at), (TaskId(1), at(15)), "it could run when the first had ended");
    move_to(ledger, "fix", Running, Cancelled, 40).await;
    ledger.finish(&done, &[told]).await.unwrap();
    assert_eq!(states(ledger).await, [TaskState::Committed, TaskState::Cancelled]);
}

pub(in crate::conformance) async fn an_event_is_sent_once(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    use DeliveryState::{Duplicate, Prepared, Released, Suppressed, Withdrawn};
    let prepare = async |run: &str, attempt: u32, keys: &[&str]| {
        let batch: Vec<_> = keys.iter().map(|key| mail(key)).collect();
        ledger.prepare_deliveries(&staged(run, attempt), None, &batch, at(1)).await.unwrap();
    };
    let end = async |run: &str, attempt: u32, deliver: bool| {
        let told = entry(TaskFinish { deliver, ..finish(vec![record(run, &day(1))]) }, attempt);
        ledger.finish(&commit("1", &told, attempt), &[told]).await.unwrap();
    };
    prepare("r1", 1, &["a", "b", "c"]).await;
    prepare("r1", 1, &["a", "b"]).await;
    prepare("r1", 2, &["a", "b", "b"]).await;
    assert_eq!(deliveries(ledger).await, [Prepared; 5]);
    end("r1", 2, true).await;
    let sent = [Withdrawn, Withdrawn, Released, Released, Duplicate];
    assert_eq!(deliveries(ledger).await, sent);
    prepare("r1", 2, &["a", "b"]).await;
    end("r1", 2, true).await;
    assert_eq!(deliveries(ledger).await, sent, "told again");
    prepare("r2", 1, &["b", "d"]).await;
    prepare("r3", 1, &["d"]).await;
    end("r2", 1, false).await;
    end("r3", 1, false).await;
    assert_eq!(deliveries(ledger).await[5..], [Duplicate, Suppressed, Suppressed]);
    let release = async || ledger.release_deliveries(&["d".into(), "a".into()], &me(), at(9)).await.unwrap();
    assert_eq!(release().await, 1);
    assert_eq!(deliveries(ledger).await[5..], [Duplicate, Duplicate, Released], "the latest numbers");
    assert_eq!(release().await, 0);
    let filter = DeliveryFilter { run: Some("r3".into()), state: Some(Released), backfill: None };
    let found = ledger.deliveries(&filter).await.unwrap();
    assert_eq!((found.len(), found[0].changed_at, &found[0].delivery), (1, at(9), &mail("d")));
}

pub(in crate::conformance) async fn queue_times_are_told_by_trigger(f: &dyn Fixture) {
    let place = f.fresh().await;
    let ledger = &*place.ledger().await;
    let started = |key: u32, seconds: i64, trigger: Trigger| -> RunRecord {
        let mut record = record("r1", &day(key));
        (record.started_at, record.trigger) = (at(seconds), trigger);
        record
    };
    finished(ledger, started(1, 10, Trigger::Scheduled)).await;
    finished(ledger, started(2, 20, Trigger::Scheduled)).await;
    finished(ledger, started(3, 99, Trigger::Backfill)).await;
    let times = ledger.queue_times(&Interval::new(at(0), at(99)).unwrap()).await.unwrap();
    let scheduled = QueueTime { rows: 2, mean_ms: 15_000, max_ms: 20_000 };
    assert_eq!(times, [(Trigger::Scheduled, scheduled)].into());
}

async fn current(ledger: &dyn RunLedger, keys: &[PartitionKey]) -> Vec<String> {
    let rows = ledger.current(&TABLE.into(), keys).await.unwrap();
    rows.into_iter().map(|row| row.map_or(String::new(), |row| row.record.run.to_string())).collect()
}
