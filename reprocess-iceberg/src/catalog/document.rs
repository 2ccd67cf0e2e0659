//! The metadata files of a table, where the catalog keeps only a pointer to the newest of them.

use std::io::Read;
use std::str::FromStr;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use iceberg::MetadataLocation;
use iceberg::io::FileIO;
use iceberg::spec::TableMetadata;
use reprocess_core::{Error, ErrorKind, Result};
use uuid::Uuid;

use crate::error::Doing;
use crate::features;

/// Where the table wants its metadata files, if not in its folder `metadata`.
const FOLDER: &str = "write.metadata.path";
/// How compressed files begin; their names need not say it.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A metadata file that is to be written.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) location: String,
    bytes: Bytes,
}

impl Document {
    /// The file of a new table.
    pub(super) async fn first(metadata: &TableMetadata) -> Result<Self> {
        Self::new(metadata, MetadataLocation::new_with_metadata("memory:", metadata)).await
    }

    /// The file that follows the one at `base`. Its name is that of no other file, so that a writer who lost may remove
    /// his own.
    pub(super) async fn after(base: &str, metadata: &TableMetadata) -> Result<Self> {
        let version = version(base).map_or(0, |version| version + 1);
        if version == 0 {
            return Self::first(metadata).await;
        }
        let before = format!("memory:/metadata/{:05}-{}.metadata.json", version - 1, Uuid::nil());
        let before = MetadataLocation::from_str(&before).doing("name a metadata file")?;
        Self::new(metadata, before.with_next_version().with_new_metadata(metadata)).await
    }

    /// The library writes into folders `metadata` only, so that it writes into memory, and we where the table wants it.
    async fn new(metadata: &TableMetadata, name: MetadataLocation) -> Result<Self> {
        let what = "write the metadata of a table";
        let memory = FileIO::new_with_memory();
        metadata.write_to(&memory, &name).await.doing(what)?;
        let name = name.to_string();
        let bytes = memory.new_input(&name).doing(what)?.read().await.doing(what)?;
        let name = name.rsplit('/').next().unwrap_or(&name);
        Ok(Self { location: format!("{}/{name}", folder(metadata)), bytes })
    }

    pub(super) async fn write(&self, io: &FileIO) -> Result<()> {
        let what = "write the metadata of a table";
        io.new_output(&self.location).doing(what)?.write(self.bytes.clone()).await.doing(what)
    }
}

/// The metadata in a file.
pub(super) async fn read(io: &FileIO, location: &str) -> Result<TableMetadata> {
    let what = "read the metadata of a table";
    let read = async {
        let bytes = io.new_input(location).doing(what)?.read().await.doing(what)?;
        let json = if bytes.starts_with(&GZIP) { unpacked(&bytes)?.into() } else { bytes };
        serde_json::from_slice(&json).map_err(|e| {
            let error = Error::new(ErrorKind::Corrupt, "a metadata file is not understood").with_source(e);
            features::unreadable(&json, "/format-version", error)
        })
    };
    read.await.map_err(|error| error.with_context("file", location))
}

fn unpacked(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    let read = MultiGzDecoder::new(bytes).read_to_end(&mut unpacked);
    read.map_err(|e| Error::new(ErrorKind::Corrupt, "a metadata file cannot be unpacked").with_source(e))?;
    Ok(unpacked)
}

fn folder(metadata: &TableMetadata) -> String {
    match metadata.properties().get(FOLDER) {
        Some(folder) => folder.trim_end_matches('/').to_owned(),
        None => format!("{}/metadata", metadata.location().trim_end_matches('/')),
    }
}

/// The number in the name of a file such as `00012-….metadata.json`; `None` where others named it otherwise.
fn version(location: &str) -> Option<i32> {
    let name = location.rsplit('/').next()?;
    let (version, _) = name.split_once('-')?;
    version.parse().ok().filter(|version| (0..i32::MAX).contains(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_file_is_in_front_of_its_name() {
        let check = |name: &str, number| assert_eq!(version(&format!("s3://b/t/metadata/{name}")), number);
        check("00012-2cd22b57-5127-4198-92ba-e4e67c79821b.metadata.json", Some(12));
        check("123456-2cd22b57-5127-4198-92ba-e4e67c79821b.gz.metadata.json", Some(123_456));
        check("v3.metadata.json", None);
        check("2147483647-2cd22b57-5127-4198-92ba-e4e67c79821b.metadata.json", None);
        check("-1-2cd22b57-5127-4198-92ba-e4e67c79821b.metadata.json", None);
    }
}
