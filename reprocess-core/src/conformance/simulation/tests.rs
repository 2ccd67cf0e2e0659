//! The simulation over tables in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;

use super::{Backend, Plant, Simulation, Table};
use crate::domain::ids::TableId;
use crate::domain::job::TableSpec;
use crate::domain::scope::Scope;
use crate::error::Result;
use crate::memory::{MemoryLedger, MemoryTable};
use crate::ports::ledger::RunLedger;
use crate::ports::reader::SnapshotReader;
use crate::ports::writer::PartitionWriter;

const COMMAND: &str =
    "cargo test -p reprocess-core --features conformance simulation::tests::histories -- --nocapture";

#[derive(Default)]
struct Memory {
    tables: Mutex<BTreeMap<TableId, MemoryTable>>,
    ledger: Arc<MemoryLedger>,
}

#[async_trait]
impl Backend for Memory {
    async fn source(&self, spec: TableSpec, schema: SchemaRef) -> Result<Arc<dyn SnapshotReader>> {
        let table = MemoryTable::new(spec.clone());
        table.create(&schema).await?;
        self.tables.lock().unwrap().insert(spec.id, table.clone());
        Ok(Arc::new(table))
    }

    async fn table(&self, spec: TableSpec) -> Result<Table> {
        let table = MemoryTable::new(spec.clone());
        self.tables.lock().unwrap().insert(spec.id, table.clone());
        Ok(Table::of(Arc::new(table)))
    }

    async fn ledger(&self) -> Result<Arc<dyn RunLedger>> {
        Ok(self.ledger.clone())
    }

    async fn replace_outside(&self, table: &TableSpec, scope: &Scope, rows: &RecordBatch) -> Result<()> {
        let table = self.tables.lock().unwrap()[&table.id].clone();
        table.replace_unmanaged(scope, rows).map(drop)
    }

    async fn close(&self) {}
}

fn memory() -> Simulation {
    let open = || -> futures::future::BoxFuture<'static, Result<Arc<dyn Backend>>> {
        Box::pin(async { Ok(Arc::new(Memory::default()) as Arc<dyn Backend>) })
    };
    Simulation::new(open, COMMAND)
}

#[test]
fn histories_keep_every_law() {
    let done = memory().check(2_000).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{done:?}");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..40 {
        memory().check_replay(seed).unwrap();
    }
}

#[test]
fn each_defect_is_found() {
    for plant in Plant::ALL {
        let failure = memory().with_plant(plant).run(0, 1_000);
        let failure = failure.expect_err(&format!("{plant:?} was not found"));
        println!("{plant:?}: seed {}: {}", failure.seed, failure.law);
    }
}

#[test]
#[ignore = "for a look at every seed that fails"]
fn survey() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, count) = (number("REPROCESS_FIRST").unwrap_or(0), number("REPROCESS_SEEDS").unwrap_or(100));
    for (seed, law) in memory().survey(first, count) {
        println!("{seed}: {law}");
    }
}
