//! What a table asks of those who write it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, BooleanArray, RecordBatch};
use arrow_schema::{DataType, FieldRef, Schema, SchemaRef};
use deltalake::datafusion::common::DFSchema;
use deltalake::datafusion::execution::context::SessionContext;
use deltalake::datafusion::physical_plan::PhysicalExpr;
use deltalake::delta_datafusion::DataFusionMixins;
use deltalake::kernel::transaction::PROTOCOL;
use reprocess_core::{Error, ErrorKind, Result};
use serde_json::Value as Json;

use crate::error::Doing;
use crate::table::property;
use crate::view::View;

/// Refuses a table that asks for what our files would not have, naming it. `rewrites` says whether rows that do not change
/// are written again, as a merge does.
pub(crate) fn check(view: &View, rewrites: bool) -> Result<()> {
    let snapshot = view.snapshot()?;
    let refuse = |feature: &str, why: &str| {
        Err(Error::new(ErrorKind::Unsupported, format!("the table uses {feature}, {why}"))
            .with_advice("write it with a tool that knows the feature, or drop the feature from the table"))
    };
    PROTOCOL.can_write_to(snapshot.as_ref()).map_err(|e| {
        Error::new(ErrorKind::Unsupported, "the table uses features that are not known here").with_source(e)
    })?;
    let metadata = snapshot.metadata();
    if property(metadata, "delta.appendOnly").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return refuse("appendOnly", "and replacing a partition removes rows");
    }
    if property(metadata, "delta.columnMapping.mode").is_some_and(|mode| !mode.eq_ignore_ascii_case("none")) {
        return refuse("columnMapping", "and files are written here with the names of columns");
    }
    let feeds = property(metadata, "delta.enableChangeDataFeed")
        .is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if rewrites && feeds {
        return refuse("changeDataFeed", "which would tell of rows that a merge did not change");
    }
    let fields = serde_json::to_value(snapshot.schema().as_ref())
        .map_err(|e| Error::internal("the columns of the table do not serialise").with_source(e))?;
    for field in fields.get("fields").and_then(Json::as_array).into_iter().flatten() {
        let name = field.get("name").and_then(Json::as_str).unwrap_or_default();
        let has = |key: &str| field.get("metadata").and_then(|metadata| metadata.get(key)).is_some();
        for (key, feature) in [
            ("delta.generationExpression", "generatedColumns"),
            ("delta.invariants", "invariants"),
            ("delta.identity.start", "identityColumns"),
        ] {
            if has(key) {
                return refuse(
                    feature,
                    &format!("and the values of column `{name}` would not be made or checked"),
                );
            }
        }
    }
    Ok(())
}

/// Refuses further columns of instants without a zone where the table does not have the feature that they need.
pub(crate) fn check_new(view: &View, columns: &Schema) -> Result<()> {
    let known = view.schema();
    let new = columns.fields().iter().filter(|field| known.field_with_name(field.name()).is_err());
    let plain = |field: &&FieldRef| matches!(field.data_type(), DataType::Timestamp(_, None));
    let Some(field) = new.into_iter().find(plain) else { return Ok(()) };
    let protocol = serde_json::to_value(view.snapshot()?.protocol())
        .map_err(|e| Error::internal("the protocol of the table does not serialise").with_source(e))?;
    let features = protocol.get("writerFeatures").and_then(Json::as_array);
    if features.is_some_and(|features| features.iter().any(|feature| feature == "timestampNtz")) {
        return Ok(());
    }
    let message = format!("the table has no feature timestampNtz, which column `{}` needs", field.name());
    Err(Error::new(ErrorKind::Unsupported, message)
        .with_advice("give the column a time zone, or the table the feature"))
}

/// The CHECK constraints of a table by their names.
pub(crate) fn constraints(view: &View) -> Result<BTreeMap<String, String>> {
    let settings = view.snapshot()?.metadata().configuration().iter();
    let constraint = |(key, text): (&String, &String)| {
        Some((key.strip_prefix("delta.constraints.")?.to_owned(), text.clone()))
    };
    Ok(settings.filter_map(constraint).collect())
}

/// The CHECK constraints of a table, for rows of some columns.
pub(crate) struct Constraints(Vec<(String, String, Arc<dyn PhysicalExpr>)>);

impl Constraints {
    pub(crate) fn of(view: &View, session: &SessionContext, schema: &SchemaRef) -> Result<Self> {
        let what = "understand a constraint of the table";
        let (snapshot, state) = (view.snapshot()?, session.state());
        let columns = DFSchema::try_from(schema.as_ref().clone()).doing(what)?;
        let mut known = Vec::new();
        for (name, text) in constraints(view)? {
            let expression = snapshot.parse_predicate_expression(&text, &state).doing(what)?;
            let expression = state.create_physical_expr(expression, &columns).doing(what)?;
            known.push((name, text, expression));
        }
        Ok(Self(known))
    }

    /// Refuses rows for which a constraint is not true, with their number.
    pub(crate) fn check(&self, batch: &RecordBatch) -> Result<()> {
        for (name, text, expression) in &self.0 {
            let what = "check a constraint of the table";
            let found = expression
                .evaluate(batch)
                .and_then(|value| value.into_array(batch.num_rows()))
                .doing(what)?;
            let found = found.as_any().downcast_ref::<BooleanArray>();
            let found =
                found.ok_or_else(|| Error::invalid(format!("the constraint `{name}` is no condition")))?;
            let broken = batch.num_rows() - found.true_count();
            if broken > 0 {
                return Err(Error::invalid(format!(
                    "{broken} rows break the constraint `{name}` of the table"
                ))
                .with_context("constraint", text));
            }
        }
        Ok(())
    }
}
