//! SQL catalogs: a table of a database holds, for each Iceberg table, where its newest metadata file is. A change writes
//! a new file and moves the pointer to it, if that still is where it was.

mod rows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use iceberg::spec::{
    FormatVersion, MetadataLog, TableMetadata, TableMetadataBuildResult, TableMetadataBuilder,
    TableProperties,
};
use iceberg::{TableCreation, TableIdent};
use reprocess_core::ports::ledger::RunLedger;
use reprocess_core::{Error, ErrorKind, Result};

pub(super) use rows::{Ended, Pointer, Pointers, Row, TABLES, statement};

use super::document::{self, Document};
use super::{Answer, Catalog, Creation, Loaded, Proposal};
use crate::files::Files;
use crate::storage::Stores;

/// A catalog over the rows of a database.
#[derive(Debug)]
pub(super) struct SqlCatalog<P> {
    name: String,
    warehouse: String,
    pointers: P,
    /// What tables were loaded last: a metadata file never changes.
    loaded: Mutex<BTreeMap<TableIdent, Loaded>>,
}

impl<P: Pointers> SqlCatalog<P> {
    pub(super) fn new(name: &str, warehouse: &str, pointers: P) -> Result<Self> {
        let warehouse = warehouse.trim_end_matches('/');
        if !(warehouse.starts_with('/') || warehouse.contains(":/")) {
            return Err(Error::invalid(format!(
                "the warehouse `{warehouse}` is no absolute path and no location"
            ))
            .with_advice("give a path that begins with `/`, or a location such as `s3://bucket/folder`"));
        }
        let warehouse = warehouse.to_owned();
        Ok(Self { name: name.to_owned(), warehouse, pointers, loaded: Mutex::default() })
    }

    fn row<'a>(&'a self, table: &'a TableIdent) -> Result<Row<'a>> {
        let levels: &[String] = table.namespace();
        if let Some(level) = levels.iter().find(|level| level.is_empty() || level.contains('.')) {
            return Err(Error::invalid(format!("`{level}` is no namespace in a SQL catalog"))
                .with_advice("its levels are not empty and hold no `.`, which stands between them"));
        }
        Ok(Row { catalog: &self.name, namespace: levels.join("."), table: table.name() })
    }

    /// Where a new table goes.
    async fn place(&self, table: &TableIdent) -> Result<String> {
        let row = self.row(table)?;
        let levels = table.namespace().iter().map(|level| folder(level));
        let above = match self.pointers.folder(&row).await? {
            Some(location) => location.trim_end_matches('/').to_owned(),
            None => std::iter::once(self.warehouse.clone()).chain(levels).collect::<Vec<_>>().join("/"),
        };
        Ok(format!("{above}/{}", folder(table.name())))
    }

    fn remember(&self, table: &TableIdent, metadata: TableMetadata, location: String) -> Loaded {
        let loaded = Loaded { metadata: metadata.into(), location: Some(location), config: BTreeMap::new() };
        let mut all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(table.clone(), loaded.clone());
        loaded
    }

    fn remembered(&self, table: &TableIdent, location: &str) -> Option<Loaded> {
        let all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(table).filter(|loaded| loaded.location.as_deref() == Some(location)).cloned()
    }

    /// Finds out what became of a move whose answer was `error`, or says that it cannot be known. Its file goes where
    /// nothing points to it and nothing will.
    async fn settle(
        &self,
        row: &Row<'_>,
        base: &str,
        to: &str,
        files: &Files,
        error: Error,
    ) -> Result<Ended> {
        match self.pointers.settled(row).await {
            Ok(Pointer::To(now)) if now == to => Ok(Ended::Committed),
            Ok(Pointer::To(now)) if now == base => {
                discard(files, to).await;
                Err(error)
            }
            Ok(Pointer::To(now)) => match document::read(files.io(), &now).await {
                Ok(metadata) if follower(&metadata, base, &now) == Some(to) => Ok(Ended::Committed),
                Ok(metadata) if follower(&metadata, base, &now).is_some() => Ok(Ended::NotAsExpected),
                _ => Err(error),
            },
            _ => Err(error),
        }
    }

    /// Where the table wants it, files of metadata go that its log no longer has.
    async fn expire(&self, metadata: &TableMetadata, expired: Vec<MetadataLog>, files: &Files) {
        let wanted = metadata.properties().get("write.metadata.delete-after-commit.enabled");
        if expired.is_empty() || !wanted.is_some_and(|wanted| wanted.eq_ignore_ascii_case("true")) {
            return;
        }
        let expired = expired.into_iter().map(|entry| entry.metadata_file).collect();
        if let Err(error) = files.remove(expired).await {
            tracing::warn!(%error, "metadata files that the table no longer names were not removed");
        }
    }
}

#[async_trait]
impl<P: Pointers> Catalog for SqlCatalog<P> {
    async fn load(&self, table: &TableIdent, stores: &Arc<Stores>) -> Result<Option<Loaded>> {
        let row = self.row(table)?;
        let mut pointer = self.pointers.pointer(&row).await?;
        loop {
            let Pointer::To(location) = &pointer else { return Ok(None) };
            if let Some(loaded) = self.remembered(table, location) {
                return Ok(Some(loaded));
            }
            match document::read(&stores.io(), location).await {
                Ok(metadata) => return Ok(Some(self.remember(table, metadata, location.clone()))),
                Err(error) => {
                    // A file that is named no longer may be gone: another commit removes the oldest.
                    let now = self.pointers.pointer(&row).await?;
                    if now == pointer {
                        return Err(error);
                    }
                    pointer = now;
                }
            }
        }
    }

    async fn create(
        &self,
        table: &TableIdent,
        creation: Creation,
        stores: &Arc<Stores>,
    ) -> Result<Option<Loaded>> {
        let row = self.row(table)?;
        match self.pointers.pointer(&row).await? {
            Pointer::None => {}
            Pointer::To(_) => return Ok(None),
            Pointer::View => {
                let error = Error::new(ErrorKind::State, "the name of the table is that of a view");
                return Err(error
                    .with_context("name", table)
                    .with_advice("drop the view, or take another name"));
            }
        }
        let metadata = new_metadata(table, self.place(table).await?, creation)?;
        let files = Files::new(Arc::clone(stores), metadata.location())?;
        let document = Document::first(&metadata).await?;
        document.write(files.io()).await?;
        match self.pointers.add(&row, &document.location).await {
            Ok(Ended::Committed) => Ok(Some(self.remember(table, metadata, document.location))),
            Ok(Ended::NotAsExpected | Ended::Fenced) => {
                discard(&files, &document.location).await;
                Ok(None)
            }
            Ok(Ended::Unknown(error)) => match self.pointers.settled(&row).await {
                Ok(Pointer::To(now)) if now == document.location => {
                    Ok(Some(self.remember(table, metadata, document.location)))
                }
                _ => Err(error),
            },
            Err(error) => {
                discard(&files, &document.location).await;
                Err(error)
            }
        }
    }

    async fn change(&self, table: &TableIdent, files: &Files, proposal: Proposal<'_>) -> Result<Answer> {
        let row = self.row(table)?;
        let Some(base) = proposal.base.location.as_deref() else {
            return Err(Error::internal("a version of a table does not say where its metadata is"));
        };
        let Some(built) = next(&proposal, base)? else { return Ok(Answer::CameFirst) };
        let document = Document::after(base, &built.metadata).await?;
        document.write(files.io()).await?;
        let to = document.location.as_str();
        let ended = match self.pointers.swap(&row, base, to, proposal.told).await {
            Ok(Ended::Unknown(error)) => self.settle(&row, base, to, files, error).await?,
            Ok(ended) => ended,
            Err(error) => {
                discard(files, to).await;
                return Err(error);
            }
        };
        match ended {
            Ended::Committed => {
                self.expire(&built.metadata, built.expired_metadata_logs, files).await;
                Ok(Answer::Done(self.remember(table, built.metadata, document.location)))
            }
            Ended::Unknown(error) => Err(error),
            ended => {
                discard(files, to).await;
                Ok(if matches!(ended, Ended::Fenced) { Answer::Fenced } else { Answer::CameFirst })
            }
        }
    }

    fn has_transactions(&self) -> bool {
        true
    }

    fn holds(&self, ledger: &dyn RunLedger) -> bool {
        self.pointers.holds(ledger)
    }
}

/// The metadata that a proposal makes of its base; `None` where the base is not what it has to be.
fn next(proposal: &Proposal<'_>, base: &str) -> Result<Option<TableMetadataBuildResult>> {
    let metadata = &proposal.base.metadata;
    if proposal.requirements.iter().any(|requirement| requirement.check(Some(metadata)).is_err()) {
        return Ok(None);
    }
    let builder = TableMetadata::clone(metadata).into_builder(Some(base.to_owned()));
    let built = proposal.updates.iter().try_fold(builder, |builder, update| update.clone().apply(builder));
    let built = built.and_then(TableMetadataBuilder::build);
    Ok(Some(built.map_err(|e| Error::invalid("the table cannot be changed so").with_source(e))?))
}

fn new_metadata(table: &TableIdent, location: String, creation: Creation) -> Result<TableMetadata> {
    let Creation { schema, spec, mut properties } = creation;
    let version = match properties.remove(TableProperties::PROPERTY_FORMAT_VERSION).as_deref() {
        Some("1") => FormatVersion::V1,
        None | Some("2") => FormatVersion::V2,
        Some("3") => FormatVersion::V3,
        Some(other) => {
            return Err(Error::invalid(format!("`{other}` is no version of the format of a table")));
        }
    };
    let creation = TableCreation::builder()
        .name(table.name().to_owned())
        .location(location)
        .schema(schema)
        .partition_spec(spec)
        .properties(properties)
        .format_version(version)
        .build();
    let built = TableMetadataBuilder::from_table_creation(creation).and_then(TableMetadataBuilder::build);
    Ok(built.map_err(|e| Error::invalid("the table cannot be made so").with_source(e))?.metadata)
}

/// The metadata file that followed the one at `base`, as the file at `now` remembers it; `None` where it does not.
pub(super) fn follower<'a>(metadata: &'a TableMetadata, base: &str, now: &'a str) -> Option<&'a str> {
    let log = metadata.metadata_log();
    let at = log.iter().position(|entry| entry.metadata_file == base)?;
    Some(log.get(at + 1).map_or(now, |entry| &entry.metadata_file))
}

/// Removes a metadata file that nothing points to.
async fn discard(files: &Files, location: &str) {
    if let Err(error) = files.remove(vec![location.to_owned()]).await {
        tracing::warn!(%error, "a metadata file that nothing points to was not removed");
    }
}

/// The folder for a name: the name itself, or where it could lead elsewhere one of its own.
fn folder(name: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '=' | '-' | '_' | '.');
    if !name.is_empty() && name.chars().all(safe) && name.chars().any(|c| c != '.') {
        return name.to_owned();
    }
    let like: String = name.chars().map(|c| if safe(c) && c != '.' { c } else { '_' }).collect();
    format!("{like}-{}", &blake3::hash(name.as_bytes()).to_hex()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_warehouse() {
        assert_eq!(folder("daily_departures"), "daily_departures");
        assert_eq!(folder("v1.2=x"), "v1.2=x");
        for name in ["", ".", "..", "../../evil", "a/b", "a%2Fb", "é", "a b"] {
            let folder = folder(name);
            assert!(folder.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'), "{folder}");
        }
        assert_ne!(folder("a/b"), folder("a b"));
    }
}
