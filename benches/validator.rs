//! Comparing a partition with what was there, and telling work apart: `cargo bench --bench validator`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "measures, and a bench that cannot go on has failed"
)]

mod support;

use std::collections::BTreeMap;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use reprocess::arrow::array::RecordBatch;
use reprocess::domain::diff::{DiffSpec, diff};
use reprocess::domain::fingerprint::{Definition, Fingerprint, Work};
use reprocess::domain::interval::Grain;
use reprocess::domain::job::{JobSpec, Window};
use reprocess::domain::partition::{PartitionKey, Partitioning};
use reprocess::domain::profile::{Profile, ProfileBuilder, ProfileSpec};
use reprocess::domain::validate::{Expectation, Prediction, Severity, Tolerance, validate};
use support::rows::{batches, date, schema};

const DAYS: u32 = 730;

fn profile(rows: &[RecordBatch], day: u32) -> Profile {
    let spec = ProfileSpec::new().with_totals(["cents"]).with_keys(["id"]);
    let mut builder = ProfileBuilder::new(&schema(), &spec).unwrap();
    rows.iter().for_each(|batch| builder.push(batch).unwrap());
    builder.finish(key(day))
}

fn key(day: u32) -> PartitionKey {
    PartitionKey::of("day", date(day))
}

/// The rows of a day, one of a hundred changed.
fn changed(rows: u32) -> Vec<RecordBatch> {
    let changed = rows / 100;
    let mut old = batches(1, rows, 0);
    let first = old.next().unwrap();
    let kept = first.slice(changed as usize, first.num_rows() - changed as usize);
    batches(1, changed, 5).chain([kept]).chain(old).collect()
}

fn rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("rows");
    group.sample_size(10);
    for rows in [50_000_u32, 100_000] {
        let before: Vec<_> = batches(1, rows, 0).collect();
        let after = changed(rows);
        let spec = DiffSpec::new(["id"]);
        let found = diff(key(1), &before, &after, &spec).unwrap();
        assert_eq!((found.added, found.removed, found.changed), (0, 0, u64::from(rows / 100)));
        group.throughput(Throughput::Elements(u64::from(rows)));
        group.bench_function(BenchmarkId::new("profile", rows), |b| b.iter(|| profile(&before, 1)));
        group.bench_function(BenchmarkId::new("diff", rows), |b| {
            b.iter(|| diff(key(1), &before, &after, &spec).unwrap());
        });
    }
    group.finish();
}

fn validator(c: &mut Criterion) {
    let expected = BTreeMap::from_iter((0..DAYS).map(|day| (key(day), 50_000.into())));
    let expectations = [
        (Expectation::RowCountUnchanged, Severity::Abort),
        (
            Expectation::TotalChanges {
                column: "cents".into(),
                by: Prediction::PerPartition(expected),
                tolerance: Tolerance::default(),
            },
            Severity::Abort,
        ),
        (Expectation::TotalOnlyRises { column: "cents".into() }, Severity::Review),
        (Expectation::OnlyColumnsChange { columns: vec!["cents".into()] }, Severity::Review),
        (Expectation::RowsChangedAtMost(1_000), Severity::Review),
    ];
    let (one, other): (Vec<_>, Vec<_>) = (batches(1, 1_000, 0).collect(), changed(1_000));
    let (before, after): (Vec<_>, Vec<_>) =
        (0..DAYS).map(|day| (profile(&one, day), profile(&other, day))).unzip();
    let spec = DiffSpec::new(["id"]);
    let diffs: Vec<_> = (0..DAYS).map(|day| diff(key(day), &one, &other, &spec).unwrap()).collect();
    c.bench_function("validate 730 days, 5 expectations", |b| {
        b.iter(|| validate(&expectations, &before, &after, &diffs));
    });
}

fn fingerprint(c: &mut Criterion) {
    let unit = Partitioning::unpartitioned().with_time("day", Grain::Day, chrono_tz::UTC);
    let job = JobSpec::new("revenue", "ops", "revenue")
        .with_input("orders", "orders", Window::Same)
        .with_input("rates", "rates", Window::Trailing(7));
    let (logic, units, parameters) = ("v2".into(), [key(1)], BTreeMap::new());
    let inputs =
        BTreeMap::from([("orders".to_owned(), "71".into()), ("rates".to_owned(), "8,9,9,9,9,9,9".into())]);
    let work = Work {
        job: Definition::of(&job, &unit),
        logic: &logic,
        sql: None,
        units: &units,
        parameters: &parameters,
        inputs: &inputs,
    };
    c.bench_function("fingerprint of a task", |b| b.iter(|| Fingerprint::of(&work).unwrap()));
}

criterion_group!(benches, rows, validator, fingerprint);
criterion_main!(benches);
