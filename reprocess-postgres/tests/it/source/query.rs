//! Queries over sources.

use std::collections::BTreeMap;
use std::sync::Arc;

use reprocess_core::domain::ids::RunId;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::profile::ProfileSpec;
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Base, Pin};
use reprocess_core::ports::reader::{PinnedInput, SnapshotReader};
use reprocess_core::ports::writer::{
    Intent, Op, PartitionWriter, Query, Rows, StageRequest, Staged, StagedId, StampId, Visibility,
};
use reprocess_core::{ErrorKind, Result};
use reprocess_postgres::{ExportedSnapshot, PostgresSource, PostgresTable};

use super::support::*;

fn input(source: &PostgresSource, pin: &Pin) -> PinnedInput {
    PinnedInput { pin: pin.clone(), reader: Arc::new(source.clone()), staged: vec![], writer: None }
}

/// Stages the number and sum of the rows of all inputs, named a, b and so on.
async fn stage(f: &Fixture, inputs: Vec<PinnedInput>) -> Result<Staged> {
    let spec = TableSpec::new("sums", Partitioning::unpartitioned());
    let table = PostgresTable::open(f.db.clone(), spec).await?;
    let names = ["a", "b", "c", "d"];
    let parts: Vec<_> = names.iter().take(inputs.len()).map(|name| format!("SELECT n FROM {name}")).collect();
    let sql = format!(
        "SELECT count(*) AS rows, sum(n)::bigint AS total FROM ({}) AS parts",
        parts.join(" UNION ALL ")
    );
    let inputs = names.into_iter().map(str::to_owned).zip(inputs).collect();
    let scope = Scope::whole_table();
    let request = StageRequest {
        id: StagedId {
            stamp: StampId {
                run: RunId::from("r"),
                job: "j".into(),
                op: Op::Replace,
                scope_digest: scope.digest(),
                generation: 1,
            },
            attempt: 1,
        },
        scope,
        intent: Intent::Replace,
        visibility: Visibility::Direct,
        profile: ProfileSpec::new(),
        schema: SchemaPolicy::Refuse,
        base: Base::new("0".into(), BTreeMap::new()),
    };
    table.stage(&request, Rows::Query(Query { sql, params: BTreeMap::new(), inputs })).await
}

fn sums(staged: &Staged) -> String {
    let totals = &staged.profiles[0].totals;
    format!("{} rows, {}", totals["rows"], totals["total"])
}

#[tokio::test]
async fn a_query_reads_sources_of_its_database_however_they_are_pinned() {
    let f = fixture(EVENTS).await;
    let snapshot = ExportedSnapshot::export(&f.db).await.unwrap();
    let seen = PostgresSource::in_snapshot(f.db.clone(), events(), &snapshot).unwrap();
    let sources = [f.append_only(), f.up_to_mark(), f.mutable(), seen];
    let mut pins = Vec::new();
    for source in &sources {
        pins.push(pin(source, the_day()).await.unwrap());
    }
    f.sql("INSERT INTO events VALUES (10, '2026-10-01 12:00:00+00', 'new')").await;
    for (source, pin) in sources.iter().zip(&pins) {
        let staged = stage(&f, vec![input(source, pin)]).await;
        match staged {
            // Changed in place, and not held.
            Err(error) if std::ptr::eq(source, &sources[2]) => {
                assert_eq!(error.kind(), ErrorKind::PinBroken, "{error}");
            }
            staged => assert_eq!(sums(&staged.unwrap()), "2 rows, 5"),
        }
    }
    // Of one moment, since one of them is of one.
    let staged = stage(&f, vec![input(&sources[0], &pins[0]), input(&sources[3], &pins[3])]).await.unwrap();
    assert_eq!(sums(&staged), "4 rows, 10");
    f.sql("DELETE FROM events WHERE n = 10").await;
    sources[2].hold(std::slice::from_ref(&pins[2])).await.unwrap();
    f.sql("UPDATE events SET name = 'other'").await;
    assert_eq!(sums(&stage(&f, vec![input(&sources[2], &pins[2])]).await.unwrap()), "2 rows, 5");
    let broke = stage(&f, vec![input(&sources[0], &pins[0])]).await;
    refused(broke, ErrorKind::PinBroken, &["rows have changed", "input a"]);
    snapshot.end().await.unwrap();
    let ended = stage(&f, vec![input(&sources[3], &pins[3])]).await;
    refused(ended, ErrorKind::PinBroken, &["snapshot has ended"]);
}

#[tokio::test]
async fn a_query_reads_in_one_exported_snapshot() {
    let f = fixture(EVENTS).await;
    let mut inputs = Vec::new();
    for _ in 0..2 {
        let snapshot = ExportedSnapshot::export(&f.db).await.unwrap();
        let source = PostgresSource::in_snapshot(f.db.clone(), events(), &snapshot).unwrap();
        inputs.push(input(&source, &pin(&source, the_day()).await.unwrap()));
        // Behind a pooler there may be no connection for a third, who reads.
        snapshot.end().await.unwrap();
    }
    refused(stage(&f, inputs).await, ErrorKind::Unsupported, &["one exported snapshot"]);
}

#[tokio::test]
async fn a_query_cannot_read_a_source_elsewhere() {
    let (f, other) = (fixture(EVENTS).await, fixture(EVENTS).await);
    let source = other.append_only();
    assert_eq!(source.table().as_str(), "events");
    let there = input(&source, &pin(&source, the_day()).await.unwrap());
    refused(stage(&f, vec![there]).await, ErrorKind::Unsupported, &["own database", f.db.name()]);
}
