//! Locations as Iceberg writes them: which store, and what in it.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use reprocess_core::{Error, ErrorKind, Result};

use super::local::LocalFiles;
use super::settings::Settings;

/// What a store is opened for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    /// Files of this machine.
    Local,
    /// A bucket of Amazon S3, or of what speaks its protocol.
    S3(String),
    /// A bucket of Google Cloud Storage.
    Gcs(String),
    /// A container of Azure: its name, `@`, and the host of its account.
    Azure(String),
}

/// A location, taken apart. Every character of its path stands for itself: nothing is decoded, as in PyIceberg and in
/// the file systems that Iceberg brings along.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Location {
    pub(super) host: Host,
    pub(super) path: Path,
}

impl Location {
    pub(super) fn parse(location: &str) -> Result<Self> {
        if location.starts_with('/') {
            return Self::local(location, location);
        }
        if let Some(path) = location.strip_prefix("file:") {
            return match path.strip_prefix("//") {
                Some(path) => Self::local(location, path),
                None => Self::local(location, path),
            };
        }
        let Some((scheme, rest)) = location.split_once("://") else {
            return Err(refused("a location has to be full", location).with_advice(
                "give an absolute path, or a location with a scheme, such as s3://bucket/table",
            ));
        };
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        let host = match scheme {
            "s3" | "s3a" | "s3n" => Host::S3(bucket(authority)?),
            "gs" | "gcs" => Host::Gcs(bucket(authority)?),
            "abfs" | "abfss" | "wasb" | "wasbs" => Host::Azure(authority.to_owned()),
            _ => {
                return Err(Error::new(ErrorKind::Unsupported, "no store is known for this scheme")
                    .with_context("scheme", scheme)
                    .with_advice("known are s3, gs, abfss, and files of this machine"));
            }
        };
        Ok(Self { host, path: parse(location, key)? })
    }

    /// Slashes count once in paths of files, as for every program that opens one.
    fn local(location: &str, path: &str) -> Result<Self> {
        if !path.starts_with('/') {
            return Err(refused("a location of a file needs an absolute path", location)
                .with_advice("write it as /path or file:///path"));
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        Ok(Self { host: Host::Local, path: parse(location, &parts.join("/"))? })
    }
}

/// Old locations of S3 could hold a password; such a one is not shown.
fn bucket(authority: &str) -> Result<String> {
    if authority.is_empty() || authority.contains(['@', ':']) {
        return Err(Error::invalid("a location does not name its bucket alone")
            .with_advice("write it as scheme://bucket/path, and give credentials as settings"));
    }
    Ok(authority.to_owned())
}

fn parse(location: &str, path: &str) -> Result<Path> {
    Path::parse(path).map_err(|e| {
        refused("a location has a part that no store takes", location)
            .with_source(e)
            .with_advice("its parts must not be empty, `.` or `..`, nor hold control characters")
    })
}

fn refused(what: &str, location: &str) -> Error {
    Error::invalid(what).with_context("location", location)
}

impl Host {
    pub(super) fn open(&self, settings: &Settings) -> Result<Arc<dyn ObjectStore>> {
        match self {
            Self::Local => Ok(Arc::new(LocalFiles::new())),
            #[cfg(feature = "s3")]
            Self::S3(bucket) => super::s3::open(bucket, settings),
            #[cfg(feature = "gcs")]
            Self::Gcs(bucket) => super::gcs::open(bucket, settings),
            #[cfg(feature = "azure")]
            Self::Azure(container) => super::azure::open(container, settings),
            #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
            other => {
                let _ = settings;
                let feature = match other {
                    Self::Azure(_) => "azure",
                    Self::Gcs(_) => "gcs",
                    _ => "s3",
                };
                Err(Error::new(
                    ErrorKind::Unsupported,
                    "stores of this kind were left out when this was built",
                )
                .with_advice(format!("build with feature `{feature}` of reprocess-iceberg")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_of_files_are_literal_paths() {
        let check = |location: &str, path: &str| {
            let parsed = Location::parse(location).unwrap();
            assert_eq!((parsed.host, parsed.path.as_ref()), (Host::Local, path), "{location}");
        };
        check("/data/flights", "data/flights");
        check("file:/data/flights", "data/flights");
        check("file:///data/flights/", "data/flights");
        check("//data///flights", "data/flights");
        check("/data/100%25 of it/day=ä?#b", "data/100%25 of it/day=ä?#b");
        check("file:///data/100%25 of it/day=ä?#b", "data/100%25 of it/day=ä?#b");
        check("/", "");
    }

    #[test]
    fn locations_of_objects_name_a_bucket_and_a_key() {
        let check = |location: &str, host: Host, path: &str| {
            let parsed = Location::parse(location).unwrap();
            assert_eq!((parsed.host, parsed.path.as_ref()), (host, path), "{location}");
        };
        check("s3://tables/a/b%20c d", Host::S3("tables".into()), "a/b%20c d");
        check("s3a://tables/a", Host::S3("tables".into()), "a");
        check("s3://tables", Host::S3("tables".into()), "");
        check("gs://tables/a", Host::Gcs("tables".into()), "a");
        let account = "tables@lake.dfs.core.windows.net";
        check(&format!("abfss://{account}/a"), Host::Azure(account.into()), "a");
    }

    #[test]
    fn what_is_no_location_is_refused_without_showing_passwords() {
        let check = |location: &str, kind: ErrorKind| {
            let error = Location::parse(location).unwrap_err();
            assert_eq!(error.kind(), kind, "{location}");
            assert!(error.advice().is_some() && !error.to_string().contains("hunter2"), "{error}");
        };
        check("flights", ErrorKind::Invalid);
        check("file:flights", ErrorKind::Invalid);
        check("file://host/flights", ErrorKind::Invalid);
        check("s3:///flights", ErrorKind::Invalid);
        check("s3://me:hunter2@tables/flights", ErrorKind::Invalid);
        check("s3://tables/a//b", ErrorKind::Invalid);
        check("/data/../flights", ErrorKind::Invalid);
        check("hdfs://host/flights", ErrorKind::Unsupported);
    }
}
