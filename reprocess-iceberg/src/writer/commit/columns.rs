//! The columns that a table has after a commit, by name and by the ids that files have them under.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use iceberg::spec::{NestedField, NestedFieldRef, Schema, SchemaRef as IcebergSchemaRef, TableMetadata};
use reprocess_core::domain::request::SchemaPolicy;
use reprocess_core::domain::schema;
use reprocess_core::ports::writer::Staged;
use reprocess_core::{Error, Result};

/// Columns, as they become with one entry of a commit after the other.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    arrow: SchemaRef,
    iceberg: IcebergSchemaRef,
    changed: bool,
}

impl Columns {
    pub(super) fn new(arrow: &SchemaRef, iceberg: &IcebergSchemaRef) -> Self {
        Self { arrow: Arc::clone(arrow), iceberg: Arc::clone(iceberg), changed: false }
    }

    /// In the words of Iceberg.
    pub(super) fn iceberg(&self) -> &IcebergSchemaRef {
        &self.iceberg
    }

    /// What they become; `None` where they stay.
    pub(super) fn change(&self) -> Option<&IcebergSchemaRef> {
        self.changed.then_some(&self.iceberg)
    }

    /// Takes in the columns of staged rows; `false` where the table's columns are no longer such that these fit.
    /// `of_files` are those of the files, with their ids.
    pub(super) fn take(
        &mut self,
        metadata: &TableMetadata,
        staged: &Staged,
        of_files: &Schema,
    ) -> Result<bool> {
        let Ok(after) = schema::resolve(&self.arrow, &staged.schema, staged.schema_policy) else {
            return Ok(false);
        };
        // Rows were looked at for NULL by the columns of then.
        let checked =
            |name: &str| staged.schema.field_with_name(name).is_ok_and(|field| !field.is_nullable());
        let mut strict = after.fields().iter().filter(|field| !field.is_nullable());
        if !strict.all(|field| checked(field.name())) {
            return Ok(false);
        }
        let known = |field: &NestedFieldRef| has(&self.iceberg, field) || is_new(metadata, field);
        if !of_files.as_struct().fields().iter().all(known) {
            return Ok(false);
        }
        if Arc::ptr_eq(&after, &self.arrow) {
            return Ok(of_files.as_struct().fields().iter().all(|field| has(&self.iceberg, field)));
        }
        self.iceberg = Arc::new(match staged.schema_policy {
            SchemaPolicy::Rebuild => of_files.clone(),
            SchemaPolicy::Refuse | SchemaPolicy::AddNullable => widened(&self.iceberg, of_files)?,
        });
        (self.arrow, self.changed) = (after, true);
        Ok(true)
    }

    /// Whether a part of the table can hold files again that were written when it had the columns of `then`.
    pub(super) fn can_hold(&self, then: &IcebergSchemaRef, then_in_arrow: &SchemaRef) -> bool {
        schema::resolve(then_in_arrow, &self.arrow, SchemaPolicy::AddNullable).is_ok()
            && then.as_struct().fields().iter().all(|field| has(&self.iceberg, field))
    }

    /// The columns of then in place of these.
    pub(super) fn go_back(&mut self, then: &IcebergSchemaRef, then_in_arrow: &SchemaRef) {
        self.changed = then.as_struct() != self.iceberg.as_struct();
        (self.arrow, self.iceberg) = (Arc::clone(then_in_arrow), Arc::clone(then));
    }
}

/// Whether files with this column are read right: by its id, and by its name it is no other.
fn has(columns: &Schema, field: &NestedField) -> bool {
    columns.as_struct().field_by_name(&field.name).is_some_and(|known| known.id == field.id)
}

/// Whether an id may be that of this column: nothing had it before, or this very column, which a branch may show already.
fn is_new(metadata: &TableMetadata, field: &NestedField) -> bool {
    let mut known = metadata.schemas_iter().filter_map(|schema| schema.field_by_id(field.id)).peekable();
    match known.peek() {
        None => field.id > metadata.last_column_id(),
        Some(_) => known.all(|known| known.name == field.name && known.field_type == field.field_type),
    }
}

/// The columns with those of rows that are new to them, which earlier rows have as NULL.
pub(crate) fn widened(columns: &Schema, of_files: &Schema) -> Result<Schema> {
    let added = of_files.as_struct().fields().iter();
    let added = added.filter(|field| columns.as_struct().field_by_name(&field.name).is_none());
    let added = added.map(|field| Arc::new(NestedField { required: false, ..field.as_ref().clone() }));
    let fields: Vec<NestedFieldRef> = columns.as_struct().fields().iter().cloned().chain(added).collect();
    Schema::builder()
        .with_schema_id(columns.schema_id())
        .with_fields(fields)
        .with_identifier_field_ids(columns.identifier_field_ids())
        .build()
        .map_err(|e| Error::internal("the columns of the table cannot be put together").with_source(e))
}

#[cfg(test)]
mod tests {
    use iceberg::spec::{PrimitiveType, Type};
    use reprocess_core::domain::scope::Scope;
    use reprocess_core::ports::writer::{Intent, Op, StagedId, StampId, Visibility};
    use serde_json::json;

    use super::*;
    use crate::columns::to_arrow;

    /// Columns of integers by name and id, all optional.
    fn schema(fields: &[(&str, i32)]) -> Schema {
        let field = |(name, id): &(&str, i32)| {
            Arc::new(NestedField::optional(*id, *name, Type::Primitive(PrimitiveType::Long)))
        };
        Schema::builder().with_fields(fields.iter().map(field)).build().unwrap()
    }

    fn metadata(schemas: &[Schema], last_column_id: i32) -> TableMetadata {
        let numbered = schemas.iter().zip(0..).map(|(schema, id)| {
            let mut schema = serde_json::to_value(schema).unwrap();
            schema["schema-id"] = id.into();
            schema
        });
        let schemas: Vec<_> = numbered.collect();
        serde_json::from_value(json!({
            "format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "/t",
            "last-sequence-number": 0, "last-updated-ms": 0, "last-column-id": last_column_id, "schemas": schemas,
            "current-schema-id": 0, "partition-specs": [{ "spec-id": 0, "fields": [] }], "default-spec-id": 0,
            "last-partition-id": 999, "properties": {}, "sort-orders": [{ "order-id": 0, "fields": [] }],
            "default-sort-order-id": 0,
        }))
        .unwrap()
    }

    fn staged(columns: &Schema, policy: SchemaPolicy) -> Staged {
        let scope = Scope::whole_table();
        let stamp = StampId {
            run: "r1".into(),
            job: "daily".into(),
            op: Op::Replace,
            scope_digest: scope.digest(),
            generation: 1,
        };
        Staged {
            id: StagedId { stamp, attempt: 1 },
            scope,
            intent: Intent::Replace,
            visibility: Visibility::Direct,
            schema_policy: policy,
            schema: to_arrow(columns).unwrap(),
            received: [].into(),
            profiles: Vec::new(),
            digest: "digest".into(),
            payload: serde_json::Value::Null,
        }
    }

    /// Names and ids after a commit of files with columns; `None` where they do not fit.
    fn after(
        table: &[(&str, i32)],
        metadata: &TableMetadata,
        files: &[(&str, i32)],
        policy: SchemaPolicy,
    ) -> Option<Vec<(String, i32)>> {
        let (table, files) = (Arc::new(schema(table)), schema(files));
        let mut columns = Columns::new(&to_arrow(&table).unwrap(), &table);
        let fits = columns.take(metadata, &staged(&files, policy), &files).unwrap();
        let fields = columns.iceberg().as_struct().fields().iter();
        fits.then(|| fields.map(|field| (field.name.clone(), field.id)).collect())
    }

    fn named(fields: &[(&str, i32)]) -> Option<Vec<(String, i32)>> {
        Some(fields.iter().map(|(name, id)| ((*name).to_owned(), *id)).collect())
    }

    #[test]
    fn rows_of_the_table_leave_its_columns() {
        let table = metadata(&[schema(&[("a", 1), ("b", 2)])], 2);
        let known = [("a", 1), ("b", 2)];
        assert_eq!(after(&known, &table, &[("b", 2), ("a", 1)], SchemaPolicy::Refuse), named(&known));
        assert_eq!(
            after(&known, &table, &[("a", 1), ("b", 5)], SchemaPolicy::Refuse),
            None,
            "another column b"
        );
        assert_eq!(after(&known, &table, &[("a", 1)], SchemaPolicy::Refuse), None);
    }

    #[test]
    fn a_new_column_has_the_id_that_its_files_have() {
        let known = [("a", 1)];
        let both = [("a", 1), ("tax", 2)];
        let before = metadata(&[schema(&known)], 1);
        assert_eq!(after(&known, &before, &both, SchemaPolicy::AddNullable), named(&both));
        let on_a_branch = metadata(&[schema(&known), schema(&both)], 2);
        assert_eq!(after(&known, &on_a_branch, &both, SchemaPolicy::AddNullable), named(&both));
        let taken = metadata(&[schema(&known), schema(&[("a", 1), ("vat", 2)])], 2);
        assert_eq!(after(&known, &taken, &both, SchemaPolicy::AddNullable), None);
        let lost = metadata(&[schema(&known)], 2);
        assert_eq!(after(&known, &lost, &both, SchemaPolicy::AddNullable), None, "somebody had the id");
    }

    #[test]
    fn a_rebuild_has_the_columns_of_its_files() {
        let known = [("a", 1), ("b", 2)];
        let table = metadata(&[schema(&known)], 2);
        let rebuilt = [("c", 3), ("a", 1)];
        assert_eq!(after(&known, &table, &rebuilt, SchemaPolicy::Rebuild), named(&rebuilt));
        assert_eq!(after(&known, &table, &[("b", 2), ("a", 1)], SchemaPolicy::Rebuild), named(&known));
    }

    #[test]
    fn a_part_takes_files_back_whose_columns_are_still_there() {
        let holds = |now: &[(&str, i32)], then: &[(&str, i32)]| {
            let (now, then) = (Arc::new(schema(now)), Arc::new(schema(then)));
            Columns::new(&to_arrow(&now).unwrap(), &now).can_hold(&then, &to_arrow(&then).unwrap())
        };
        assert!(holds(&[("a", 1), ("b", 2)], &[("a", 1)]));
        assert!(!holds(&[("a", 1)], &[("a", 1), ("b", 2)]), "one was dropped");
        assert!(!holds(&[("a", 1), ("b", 3)], &[("a", 1), ("b", 2)]), "another has its name");
    }
}
