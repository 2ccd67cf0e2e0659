//! Where a table is.

use reprocess_core::domain::ids::TableId;
use reprocess_core::{Error, Result};

use crate::layout::check_name;
use crate::sql::ident;

/// Schema and name of a table, from an id like `sales` or `finance.sales`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableName {
    schema: String,
    table: String,
    quoted: String,
}

impl TableName {
    /// `default` is the schema of ids that say none.
    pub(crate) fn of(id: &TableId, default: &str) -> Result<Self> {
        let (schema, table) = id.as_str().split_once('.').unwrap_or((default, id.as_str()));
        if table.contains('.') {
            return Err(Error::invalid(format!("`{id}` is no name of a table in PostgreSQL"))
                .with_advice("write schema.table, or the table alone"));
        }
        check_name("schema", schema)?;
        check_name("table", table)?;
        let quoted = format!("{}.{}", ident(schema)?, ident(table)?);
        Ok(Self { schema: schema.to_owned(), table: table.to_owned(), quoted })
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// For statements.
    pub(crate) fn quoted(&self) -> &str {
        &self.quoted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_the_schema_that_it_says() {
        let quoted = |id: &str| TableName::of(&id.into(), "public").map(|name| name.quoted);
        assert_eq!(quoted("sales").unwrap(), r#""public"."sales""#);
        assert_eq!(quoted(r#"Fin"ance.Sales of [1, 2]"#).unwrap(), r#""Fin""ance"."Sales of [1, 2]""#);
        for id in ["a.b.c", "", ".a", "a.", "reprocess_x", &"a".repeat(64)] {
            assert!(quoted(id).is_err(), "{id}");
        }
    }
}
