//! Namespaces and tables.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use axum::response::Response;
use iceberg::io::FileIO;
use iceberg::spec::{FormatVersion, Schema, TableMetadata, TableMetadataBuilder, UnboundPartitionSpec};
use iceberg::{MetadataLocation, TableCreation, TableRequirement, TableUpdate};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{no, status, yes};

/// All that a catalog knows.
pub(super) struct Tables {
    warehouse: String,
    io: FileIO,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    namespaces: BTreeMap<Vec<String>, Value>,
    tables: BTreeMap<(Vec<String>, String), Entry>,
}

#[derive(Clone)]
struct Entry {
    metadata: TableMetadata,
    location: String,
}

impl Entry {
    fn shown(&self) -> Value {
        json!({ "metadata-location": self.location, "metadata": self.metadata })
    }
}

/// The answer to what was found.
pub(super) fn answered(found: Result<Value, Response>) -> Response {
    found.map_or_else(|refused| refused, |found| yes(&found))
}

impl Tables {
    pub(super) fn new(warehouse: &Path) -> Self {
        let warehouse = warehouse.to_str().unwrap().to_owned();
        Self { warehouse, io: FileIO::new_with_fs(), known: Mutex::default() }
    }

    pub(super) async fn make_namespace(&self, body: &Value, needs_parents: bool) -> Response {
        let levels = levels_of(&body["namespace"]);
        let mut known = self.known.lock().await;
        if known.namespaces.contains_key(&levels) {
            return no(409, "AlreadyExistsException", "the namespace is there");
        }
        let above = &levels[..levels.len() - 1];
        if needs_parents && !above.is_empty() && !known.namespaces.contains_key(above) {
            return no(404, "NoSuchNamespaceException", "the namespace above is not there");
        }
        known.namespaces.insert(levels, body["properties"].clone());
        yes(body)
    }

    pub(super) async fn namespace(&self, levels: &[String]) -> Response {
        match self.known.lock().await.namespaces.get(levels) {
            Some(properties) => yes(&json!({ "namespace": levels, "properties": properties })),
            None => no(404, "NoSuchNamespaceException", "the namespace is not there"),
        }
    }

    pub(super) async fn list(&self, levels: &[String]) -> Response {
        let known = self.known.lock().await;
        let names = known.tables.keys().filter(|(namespace, _)| namespace == levels);
        let names = names.map(|(namespace, name)| json!({ "namespace": namespace, "name": name }));
        yes(&json!({ "identifiers": names.collect::<Vec<_>>() }))
    }

    pub(super) async fn load(&self, levels: &[String], table: &str) -> Result<Value, Response> {
        let known = self.known.lock().await;
        let entry = known.tables.get(&(levels.to_vec(), table.to_owned()));
        Ok(entry.ok_or_else(|| no(404, "NoSuchTableException", "the table is not there"))?.shown())
    }

    pub(super) async fn make(&self, levels: Vec<String>, body: &Value) -> Result<Value, Response> {
        let name = body["name"].as_str().unwrap().to_owned();
        // As Java wants it.
        if body["partition-spec"].is_object() && body["partition-spec"]["spec-id"].is_null() {
            return Err(no(500, "IllegalArgumentException", "Cannot parse missing int: spec-id"));
        }
        let mut known = self.known.lock().await;
        if !known.namespaces.contains_key(&levels) {
            return Err(no(404, "NoSuchNamespaceException", "the namespace is not there"));
        }
        if known.tables.contains_key(&(levels.clone(), name.clone())) {
            return Err(no(409, "AlreadyExistsException", "the table is there"));
        }
        let location = format!("{}/{}", self.warehouse, folder(&levels, &name));
        let metadata = new_metadata(&name, &location, body).map_err(|e| bad(&e))?;
        let file = MetadataLocation::new_with_metadata(&location, &metadata);
        metadata.write_to(&self.io, &file).await.unwrap();
        let entry = Entry { metadata, location: file.to_string() };
        let shown = entry.shown();
        known.tables.insert((levels, name), entry);
        Ok(shown)
    }

    pub(super) async fn change(
        &self,
        levels: &[String],
        table: &str,
        body: Value,
    ) -> Result<Value, Response> {
        let requirements: Vec<TableRequirement> = read(&body["requirements"])?;
        let updates: Vec<TableUpdate> = read(&body["updates"])?;
        let mut known = self.known.lock().await;
        let entry = known
            .tables
            .get_mut(&(levels.to_vec(), table.to_owned()))
            .ok_or_else(|| no(404, "NoSuchTableException", "the table is not there"))?;
        for requirement in requirements {
            let checked = requirement.check(Some(&entry.metadata));
            checked.map_err(|e| no(409, "CommitFailedException", &e.to_string()))?;
        }
        let builder = entry.metadata.clone().into_builder(Some(entry.location.clone()));
        let built = updates.into_iter().try_fold(builder, |builder, update| update.apply(builder));
        let metadata = built.and_then(TableMetadataBuilder::build).map_err(|e| bad(&e))?.metadata;
        let file = MetadataLocation::from_str(&entry.location).unwrap();
        let file = file.with_next_version().with_new_metadata(&metadata);
        metadata.write_to(&self.io, &file).await.unwrap();
        *entry = Entry { metadata, location: file.to_string() };
        Ok(entry.shown())
    }

    pub(super) async fn remove(&self, levels: &[String], table: &str) -> Response {
        match self.known.lock().await.tables.remove(&(levels.to_vec(), table.to_owned())) {
            Some(_) => status(204),
            None => no(404, "NoSuchTableException", "the table is not there"),
        }
    }
}

/// Another one for each table.
fn folder(levels: &[String], name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let part = |text: &str| -> String {
        text.chars()
            .map(|c| if is_plain(c) { c.to_string() } else { format!("-{:x}", u32::from(c)) })
            .collect()
    };
    levels.iter().map(|level| part(level)).chain([part(name)]).collect::<Vec<_>>().join("/")
}

fn new_metadata(name: &str, location: &str, body: &Value) -> iceberg::Result<TableMetadata> {
    let part = |part: &str| body[part].clone();
    let schema: Schema = serde_json::from_value(part("schema"))?;
    let mut properties: BTreeMap<String, String> =
        serde_json::from_value(part("properties")).unwrap_or_default();
    let version = match properties.remove("format-version").as_deref() {
        Some("1") => FormatVersion::V1,
        Some("3") => FormatVersion::V3,
        _ => FormatVersion::V2,
    };
    let spec: Option<UnboundPartitionSpec> = serde_json::from_value(part("partition-spec"))?;
    let creation = TableCreation::builder()
        .name(name.to_owned())
        .location(body["location"].as_str().unwrap_or(location).to_owned())
        .schema(schema)
        .partition_spec_opt(spec)
        .properties(properties)
        .format_version(version)
        .build();
    Ok(TableMetadataBuilder::from_table_creation(creation)?.build()?.metadata)
}

fn levels_of(namespace: &Value) -> Vec<String> {
    serde_json::from_value(namespace.clone()).unwrap()
}

#[allow(clippy::result_large_err, reason = "an answer of the server is what it is")]
fn read<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, Response> {
    serde_json::from_value(value.clone()).map_err(|e| no(400, "BadRequestException", &e.to_string()))
}

fn bad(error: &iceberg::Error) -> Response {
    no(400, "BadRequestException", &error.to_string())
}
