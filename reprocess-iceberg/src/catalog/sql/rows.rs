//! The rows of a SQL catalog: how they are laid out, and what is asked of a database that has them.

use std::fmt;

use async_trait::async_trait;
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::{Error, ErrorKind, Result};

use crate::catalog::Told;

/// What makes the two tables, as PyIceberg 0.12 makes them, and Java with views.
pub(in crate::catalog) const TABLES: [(&str, &str); 2] = [
    (
        "iceberg_tables",
        "CREATE TABLE IF NOT EXISTS iceberg_tables (
            catalog_name VARCHAR(255) NOT NULL,
            table_namespace VARCHAR(255) NOT NULL,
            table_name VARCHAR(255) NOT NULL,
            metadata_location VARCHAR(1000),
            previous_metadata_location VARCHAR(1000),
            iceberg_type VARCHAR(5),
            PRIMARY KEY (catalog_name, table_namespace, table_name)
        )",
    ),
    (
        "iceberg_namespace_properties",
        "CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
            catalog_name VARCHAR(255) NOT NULL,
            namespace VARCHAR(255) NOT NULL,
            property_key VARCHAR(255) NOT NULL,
            property_value VARCHAR(1000) NOT NULL,
            PRIMARY KEY (catalog_name, namespace, property_key)
        )",
    ),
];

/// Statements that both databases understand.
pub(in crate::catalog) mod statement {
    pub(in crate::catalog) const MOVE: &str = "UPDATE iceberg_tables
        SET metadata_location = $1, previous_metadata_location = $2
        WHERE catalog_name = $3 AND table_namespace = $4 AND table_name = $5 AND metadata_location = $2";
    pub(in crate::catalog) const INSERT: &str = "INSERT INTO iceberg_tables
            (catalog_name, table_namespace, table_name, metadata_location)
        VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
    /// Where the column is there.
    pub(in crate::catalog) const MARK: &str = "UPDATE iceberg_tables SET iceberg_type = 'TABLE'
        WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3";
    pub(in crate::catalog) const FOLDER: &str = "SELECT property_value FROM iceberg_namespace_properties
        WHERE catalog_name = $1 AND namespace = $2 AND property_key = 'location'";
    /// As Java and PyIceberg note a namespace without properties.
    pub(in crate::catalog) const NAMESPACE: &str = "INSERT INTO iceberg_namespace_properties
            (catalog_name, namespace, property_key, property_value)
        VALUES ($1, $2, 'exists', 'true') ON CONFLICT DO NOTHING";
}

/// What names a row of `iceberg_tables`.
#[derive(Clone, Debug)]
pub(in crate::catalog) struct Row<'a> {
    pub(in crate::catalog) catalog: &'a str,
    pub(in crate::catalog) namespace: String,
    pub(in crate::catalog) table: &'a str,
}

/// What a row points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::catalog) enum Pointer {
    /// There is no such row.
    None,
    /// The row is that of a view.
    View,
    To(String),
}

impl Pointer {
    /// Of a row's columns. Java says `TABLE` or, in rows from before it knew views, nothing.
    pub(in crate::catalog) fn of(location: Option<String>, kind: Option<&str>) -> Result<Self> {
        match (kind, location) {
            (Some(kind), _) if kind != "TABLE" => Ok(Self::View),
            (_, Some(location)) => Ok(Self::To(location)),
            (_, None) => {
                Err(Error::new(ErrorKind::Corrupt, "the catalog does not say where the table's metadata is"))
            }
        }
    }
}

/// What became of a transaction. An error beside it says that nothing was changed.
#[derive(Debug)]
pub(in crate::catalog) enum Ended {
    Committed,
    /// The row is not, or no longer, what it had to be.
    NotAsExpected,
    Fenced,
    /// It was sent, and this was the answer.
    Unknown(Error),
}

/// The rows of a database.
#[async_trait]
pub(in crate::catalog) trait Pointers: fmt::Debug + Send + Sync {
    async fn pointer(&self, row: &Row<'_>) -> Result<Pointer>;

    /// The same when no transaction is open any more that changes the row, so that one whose end is not known has ended.
    async fn settled(&self, row: &Row<'_>) -> Result<Pointer>;

    /// The property `location` of the row's namespace.
    async fn folder(&self, row: &Row<'_>) -> Result<Option<String>>;

    /// Adds the row where there is none, and its namespace.
    async fn add(&self, row: &Row<'_>, to: &str) -> Result<Ended>;

    /// Moves the pointer of a row, and tells the ledger, if it points to `from`.
    async fn swap(&self, row: &Row<'_>, from: &str, to: &str, told: Option<Told<'_>>) -> Result<Ended>;

    /// Whether the ledger is in this database.
    fn holds(&self, ledger: &dyn RunLedger) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_a_view_is_no_table() {
        let to = || Some("x".to_owned());
        assert_eq!(Pointer::of(to(), None).unwrap(), Pointer::To("x".to_owned()));
        assert_eq!(Pointer::of(to(), Some("TABLE")).unwrap(), Pointer::To("x".to_owned()));
        assert_eq!(Pointer::of(to(), Some("VIEW")).unwrap(), Pointer::View);
        assert_eq!(Pointer::of(None, None).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
