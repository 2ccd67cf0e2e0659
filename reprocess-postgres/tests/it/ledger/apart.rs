//! The ledger as that of tables elsewhere.

use std::sync::Arc;

use arrow_array::RecordBatch;
use async_trait::async_trait;
use reprocess_core::conformance::{Fixture, Handle, Hooks, MemoryFixture, Place, run_matching};
use reprocess_core::domain::job::TableSpec;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_postgres::PostgresLedger;
use tokio::sync::OnceCell;

use crate::server::TestDatabase;

/// The rooms of the suite in which a commit and its ledger meet.
#[test]
fn tables_elsewhere_keep_the_laws_with_this_ledger() {
    let report = run_matching(&LedgerApart, |law| ["fences", "engine_stories"].contains(&law.room));
    assert!(report.outcomes.len() > 15, "{report}");
    assert_eq!(report.failed(), [""; 0], "{report}");
}

/// Tables in memory, and the ledger in a database of its own.
struct LedgerApart;

#[async_trait]
impl Fixture for LedgerApart {
    fn hooks(&self) -> Hooks {
        MemoryFixture.hooks()
    }

    async fn fresh(&self) -> Box<dyn Place> {
        Box::new(Apart { tables: MemoryFixture.fresh().await, database: OnceCell::new() })
    }
}

struct Apart {
    tables: Box<dyn Place>,
    database: OnceCell<TestDatabase>,
}

#[async_trait]
impl Place for Apart {
    async fn open(&self, spec: &TableSpec) -> Handle {
        self.tables.open(spec).await
    }

    async fn ledger(&self) -> Arc<dyn RunLedger> {
        let database = self.database.get_or_init(TestDatabase::fresh).await;
        // Laws tell the time themselves.
        Arc::new(PostgresLedger::open(database.connect().await).await.unwrap().with_clock_of_callers())
    }

    async fn raw_rows(&self, spec: &TableSpec) -> Vec<String> {
        self.tables.raw_rows(spec).await
    }

    async fn write_as_stranger(&self, spec: &TableSpec, rows: &RecordBatch) {
        self.tables.write_as_stranger(spec, rows).await;
    }

    async fn expire(&self, spec: &TableSpec) {
        self.tables.expire(spec).await;
    }
}
