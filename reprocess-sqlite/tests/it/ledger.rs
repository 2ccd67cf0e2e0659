//! The ledger in SQLite: the contract of the port, agreement with the ledger in memory, and what only a file has.

/// Checks laws of the contract; each holds for the ledger in memory and for the one in a file.
macro_rules! laws {
    ($($law:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $law() {
            laws::$law(&MemoryLedger::new()).await;
            let folder = tempfile::tempdir().unwrap();
            laws::$law(&open(&folder).await).await;
        }
    )+};
}

mod file;
mod fixtures;
mod random;
mod rows;
mod tasks;
