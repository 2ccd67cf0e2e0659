//! A catalog behind a server that speaks the REST protocol of Iceberg.

mod auth;
mod client;
mod config;
mod errors;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use iceberg::spec::{Schema, TableMetadata, UnboundPartitionSpec};
use iceberg::{TableIdent, TableRequirement, TableUpdate};
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use config::RestConfig;

use super::{Answer, Catalog, Creation, Loaded, Proposal};
use crate::features;
use crate::files::Files;
use crate::storage::Stores;
use client::{Client, Request};
use config::{Answered, Settings, texts};
use errors::Refusal;

/// A catalog behind a server.
#[derive(Debug)]
pub(super) struct RestCatalog {
    client: Client,
}

#[derive(Serialize)]
struct NewNamespace<'a> {
    namespace: &'a [String],
    properties: BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct NewTable<'a> {
    name: &'a str,
    schema: Schema,
    /// Java wants it to have an id.
    partition_spec: UnboundPartitionSpec,
    properties: BTreeMap<String, String>,
    stage_create: bool,
}

#[derive(Serialize)]
struct Change<'a> {
    identifier: &'a TableIdent,
    requirements: &'a [TableRequirement],
    updates: &'a [TableUpdate],
}

/// A table as a server answers it. What may hold secrets is taken as it comes, so that no error repeats it.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Found {
    #[serde(default)]
    metadata_location: Option<String>,
    metadata: TableMetadata,
    #[serde(default)]
    config: Value,
    #[serde(default)]
    storage_credentials: Value,
}

/// What the files below a prefix are reached with.
#[derive(Deserialize)]
struct Vended {
    prefix: String,
    config: BTreeMap<String, Value>,
}

impl RestCatalog {
    /// Asks the server for its settings.
    pub(super) async fn connect(config: RestConfig) -> Result<Self> {
        let client = Client::new(&config, Settings::new(&config, Answered::default())?)?;
        let request = Request::get("/config").with_query("warehouse", config.warehouse.as_deref());
        let answer =
            client.send_to_root(&request).await.map_err(|refusal| refusal.into_error("say its settings"))?;
        let settings = Settings::new(&config, read(&answer, "settings")?)?;
        Ok(Self { client: client.with_settings(&config, settings)? })
    }

    async fn found(&self, table: &TableIdent) -> Result<Option<Loaded>> {
        let request = Request::get(self.client.table(table)?).with_query("snapshots", Some("all"));
        match self.client.send(&request).await {
            Ok(answer) => found(&answer).map(Some),
            Err(refusal) if refusal.status == Some(404) => Ok(None),
            Err(refusal) => Err(refusal.into_error("load a table").with_context("name", table)),
        }
    }

    async fn make_namespace(&self, levels: &[String]) -> Result<(), Refusal> {
        let body = NewNamespace { namespace: levels, properties: BTreeMap::new() };
        let request = Request::post("/namespaces", &body).map_err(|_| Refusal::answered(400, b"", None))?;
        match self.client.send(&request).await {
            Err(refusal) if refusal.status == Some(409) => Ok(()),
            made => made.map(drop),
        }
    }

    /// With those above it, where the server wants them to be there.
    async fn make_namespaces(&self, levels: &[String]) -> Result<(), Refusal> {
        match self.make_namespace(levels).await {
            Err(refusal) if refusal.status == Some(404) => {
                for depth in 1..=levels.len() {
                    self.make_namespace(&levels[..depth]).await?;
                }
                Ok(())
            }
            made => made,
        }
    }

    /// What a change that was not accepted means. A gateway may send a request twice, and pass on the answer to the
    /// second: so the table is looked at before anything is said not to have happened.
    async fn judge(&self, table: &TableIdent, proposal: &Proposal<'_>, refusal: Refusal) -> Result<Answer> {
        let fail = |refusal: Refusal| Err(refusal.into_error("change a table").with_context("name", table));
        // A server says 400 too where a snapshot of any branch was added meanwhile, by its sequence number.
        if !matches!(refusal.status, Some(400 | 409)) {
            return fail(refusal);
        }
        let now = match self.found(table).await {
            Ok(Some(now)) => now,
            Ok(None) => return fail(Refusal { status: Some(404), ..refusal }),
            Err(error) => {
                let unknown =
                    Error::new(ErrorKind::Unavailable, "it is not known whether the table was changed");
                return Err(unknown.with_context("name", table).with_source(error));
            }
        };
        let moved = now.location != proposal.base.location || now.metadata != proposal.base.metadata;
        match is_done(&now.metadata, &proposal.updates) {
            Some(true) => Ok(Answer::Done(now)),
            None if refusal.may_have_happened() => fail(refusal),
            _ if moved || refusal.status == Some(409) => Ok(Answer::CameFirst),
            _ => fail(refusal),
        }
    }
}

#[async_trait]
impl Catalog for RestCatalog {
    async fn load(&self, table: &TableIdent, _stores: &Arc<Stores>) -> Result<Option<Loaded>> {
        self.found(table).await
    }

    async fn create(
        &self,
        table: &TableIdent,
        creation: Creation,
        _stores: &Arc<Stores>,
    ) -> Result<Option<Loaded>> {
        let levels: &[String] = table.namespace();
        let body = NewTable {
            name: table.name(),
            schema: creation.schema,
            partition_spec: creation.spec.with_spec_id(0),
            properties: creation.properties,
            stage_create: false,
        };
        let request = Request::post(format!("{}/tables", self.client.namespace(levels)?), &body)?;
        let fail = |refusal: Refusal, what| refusal.into_error(what).with_context("name", table);
        let mut made = self.client.send(&request).await;
        if let Err(Refusal { status: Some(404), .. }) = made {
            self.make_namespaces(levels).await.map_err(|refusal| fail(refusal, "make a namespace"))?;
            made = self.client.send(&request).await;
        }
        match made {
            Ok(answer) => found(&answer).map(Some),
            Err(refusal) if refusal.status == Some(409) => match self.found(table).await? {
                Some(_) => Ok(None),
                None => Err(fail(refusal, "make a table").with_advice("its name may be that of a view")),
            },
            Err(refusal) => Err(fail(refusal, "make a table")),
        }
    }

    async fn change(&self, table: &TableIdent, _files: &Files, proposal: Proposal<'_>) -> Result<Answer> {
        if proposal.told.is_some() {
            return Err(Error::internal("a ledger cannot be told in a change of a REST catalog"));
        }
        let body =
            Change { identifier: table, requirements: &proposal.requirements, updates: &proposal.updates };
        let token = proposal.base.config.get("token").map(String::as_str);
        let request = Request::post(self.client.table(table)?, &body)?.with_token(token);
        match self.client.send(&request).await {
            Ok(answer) => {
                let changed = found(&answer)?;
                // Only a table that is loaded comes with the settings of its stores.
                Ok(Answer::Done(Loaded { config: proposal.base.config.clone(), ..changed }))
            }
            Err(refusal) => self.judge(table, &proposal, refusal).await,
        }
    }

    fn has_transactions(&self) -> bool {
        false
    }

    fn holds(&self, _ledger: &dyn RunLedger) -> bool {
        false
    }
}

/// Whether the metadata has the snapshots that updates add; `None` where they add none, so that it cannot be told. Others
/// who do the same work may have added one of the same id, but not of the same manifests.
fn is_done(metadata: &TableMetadata, updates: &[TableUpdate]) -> Option<bool> {
    let mut added = updates.iter().filter_map(|update| match update {
        TableUpdate::AddSnapshot { snapshot } => Some(snapshot),
        _ => None,
    });
    let is_there = |snapshot: &iceberg::spec::Snapshot| {
        let there = metadata.snapshot_by_id(snapshot.snapshot_id());
        there.is_some_and(|there| there.manifest_list() == snapshot.manifest_list())
    };
    added.next().map(|first| is_there(first) && added.all(is_there))
}

impl From<Found> for Loaded {
    fn from(found: Found) -> Self {
        let mut config = texts(serde_json::from_value(found.config).unwrap_or_default());
        let vended: Vec<Vended> = serde_json::from_value(found.storage_credentials).unwrap_or_default();
        let nearest = vended
            .into_iter()
            .filter(|vended| found.metadata.location().starts_with(&vended.prefix))
            .max_by_key(|vended| vended.prefix.len());
        config.extend(nearest.map(|vended| texts(vended.config)).unwrap_or_default());
        Self { metadata: Arc::new(found.metadata), location: found.metadata_location, config }
    }
}

/// The table of an answer.
fn found(answer: &[u8]) -> Result<Loaded> {
    let found = read::<Found>(answer, "table");
    found.map(Into::into).map_err(|e| features::unreadable(answer, "/metadata/format-version", e))
}

fn read<T: DeserializeOwned>(answer: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(answer).map_err(|error| {
        Error::new(ErrorKind::Corrupt, format!("the catalog's answer is no {what}")).with_source(error)
    })
}
