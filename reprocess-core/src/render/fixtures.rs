//! Values written by hand for the snapshots beside.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate, Utc};

use crate::domain::estimate::{Estimate, EstimateInput, History, Sample, estimate};
use crate::domain::ids::TableId;
use crate::domain::interval::{Calendar, Grain};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Action, Downstream, PLAN_FORMAT, Plan, PlannedInput, Task, TaskId};
use crate::domain::profile::{Digest, Profile, Total};
use crate::domain::request::{Request, Selection};
use crate::domain::scope::Scope;
use crate::domain::slice::{Base, Pin, Slice};
use crate::domain::validate::{Finding, FindingKind, Severity, Verdict, validate};
use crate::domain::value::Value;
use crate::ports::ledger::{Approval, LedgerRow, RunRecord, RunStatus, TaskResult, Trigger};
use crate::ports::writer::{Op, StampId};

pub(super) fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_364_900_400 + 60 * minutes, 0).unwrap()
}

pub(super) fn date(day: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2013, 3, day).unwrap()
}

pub(super) fn day(d: u32) -> PartitionKey {
    PartitionKey::of("day", date(d))
}

pub(super) fn task(id: u32, d: u32) -> Task {
    let calendar = Calendar::new(Grain::Day, chrono_tz::America::New_York);
    let pin = Pin {
        table: TableId::from("flights"),
        version: "17".into(),
        slice: Slice::Partitions([day(d)].into()),
        content: "1".into(),
    };
    Task {
        id: TaskId(id),
        job: "daily_departures".into(),
        logic: "v2".into(),
        table: "daily_departures".into(),
        units: vec![day(d)],
        interval: calendar.interval(&Value::Date(date(d))),
        scope: Scope::key(day(d)).unwrap(),
        action: Action::Compute {
            inputs: BTreeMap::from([(
                "flights".to_owned(),
                PlannedInput { pin: Box::new(pin), produced_by: Vec::new() },
            )]),
            fingerprint: None,
        },
        base: Base::new("3".into(), BTreeMap::from([(day(d), "3".into())])),
        parameters: BTreeMap::new(),
        after: Vec::new(),
    }
}

/// A plan over the days 4 to 24 March 2013 without the 10th, which is a gap.
pub(super) fn plan() -> Plan {
    let request = Request::new(
        "fix-cancelled",
        Selection::Range { first: Value::Date(date(4)), last: Value::Date(date(24)) },
        "cancelled flights were counted as departures",
        "ada",
    )
    .with_job("daily_departures", "v2")
    .with_concurrency(4);
    let days = (4..=24).filter(|d| *d != 10);
    let week = |d: u32| Downstream {
        job: "weekly_departures".into(),
        table: "weekly_departures".into(),
        partition: PartitionKey::of("week", date(d)),
        causes: (d..d + 7).map(|d| ("daily_departures".into(), day(d))).collect(),
    };
    Plan {
        format: PLAN_FORMAT,
        request,
        rolls_back: None,
        generation: 1,
        as_of: at(0),
        position: 31,
        tasks: days.enumerate().map(|(i, d)| task(u32::try_from(i).unwrap(), d)).collect(),
        skipped: Vec::new(),
        refused: Vec::new(),
        downstream: vec![week(4), week(11), week(18)],
        exposures: Vec::new(),
        owners: vec!["ops@example.org".to_owned(), "planning@example.org".to_owned()],
        widened: Vec::new(),
        warnings: Vec::new(),
        estimate: cost(),
    }
}

/// The cost of the plan, told from one earlier run.
fn cost() -> Estimate {
    let mut history = History::new();
    history.add("daily_departures".into(), day(1), Sample::new(1_500, 15).with_written_bytes(360));
    let tasks = (4..=24).filter(|d| *d != 10).map(|d| ("daily_departures".into(), day(d)));
    let weeks = [4, 11, 18].map(|d| ("weekly_departures".into(), PartitionKey::of("week", date(d))));
    let input = EstimateInput::new(tasks.collect(), 4).with_downstream(weeks.to_vec()).with_shadow(true);
    estimate(&input, &history)
}

pub(super) fn profile(key: PartitionKey, rows: u64, totals: &[(&str, &str)]) -> Profile {
    let digest = |value: &str| Digest { algorithm: "test".to_owned(), value: value.to_owned() };
    Profile {
        partition: key,
        rows,
        size_bytes: rows * 24,
        totals: totals.iter().map(|(c, t)| ((*c).to_owned(), Total::Exact(t.parse().unwrap()))).collect(),
        nulls: BTreeMap::new(),
        keys: None,
        content: digest("abcdef0123456789"),
        comparable: digest("abcdef0123456789"),
    }
}

pub(super) fn result(d: u32, scheduled: &str, departures: (&str, &str), verdict: Verdict) -> TaskResult {
    TaskResult {
        staged: None,
        inputs: BTreeMap::new(),
        fingerprint: None,
        base: Base::new("3".into(), BTreeMap::from([(day(d), "3".into())])),
        before: vec![profile(day(d), 15, &[("departures", departures.0), ("scheduled", scheduled)])],
        after: vec![profile(day(d), 15, &[("departures", departures.1), ("scheduled", scheduled)])],
        verdict: Some(verdict),
        pinned_at: 0,
        read_bytes: None,
        started_at: None,
    }
}

pub(super) fn no_findings() -> Verdict {
    validate(&[], &[], &[], &[])
}

pub(super) fn finding(d: u32, severity: Severity, message: &str) -> Verdict {
    let mut verdict = no_findings();
    verdict.findings.push(Finding {
        partition: day(d),
        severity,
        kind: FindingKind::Unpredicted,
        expectation: None,
        message: message.to_owned(),
    });
    verdict
}

/// A committed row over one day.
pub(super) fn row(position: u64, run: &str, logic: &str, d: u32) -> LedgerRow {
    let scope = Scope::key(day(d)).unwrap();
    let record = RunRecord {
        run: run.into(),
        job: "daily_departures".into(),
        table: "daily_departures".into(),
        partition: day(d),
        stamp: StampId {
            run: run.into(),
            job: "daily_departures".into(),
            op: Op::Replace,
            scope_digest: scope.digest(),
            generation: 1,
        },
        scope,
        attempt: 1,
        status: RunStatus::Committed,
        error: None,
        trigger: Trigger::Backfill,
        backfill: Some("fix-cancelled".into()),
        reason: "cancelled flights were counted as departures".to_owned(),
        requester: "ada".into(),
        approval: Some(Approval {
            by: "grace".into(),
            at: at(5),
            digest: "d1".to_owned(),
            comment: "as predicted".to_owned(),
        }),
        logic: Some(logic.into()),
        build: "4f2a91c".into(),
        parameters: BTreeMap::from([("minimum".to_owned(), 1.into())]),
        fingerprint: None,
        inputs: BTreeMap::from([(
            "flights".to_owned(),
            Pin {
                table: "flights".into(),
                version: "17".into(),
                slice: Slice::Partitions([day(d)].into()),
                content: "1".into(),
            },
        )]),
        replays: None,
        base: None,
        output: None,
        output_partition: None,
        before: Some(profile(day(d), 16, &[("departures", "930")])),
        after: Some(profile(day(d), 15, &[("departures", "900")])),
        verdict: Some(no_findings()),
        kept: None,
        read_bytes: Some(21_600),
        order: 0,
        queued_at: at(0),
        started_at: at(1),
        finished_at: at(1) + chrono::Duration::milliseconds(2_345),
        worker: "cli-7".into(),
    };
    LedgerRow { position, record }
}
