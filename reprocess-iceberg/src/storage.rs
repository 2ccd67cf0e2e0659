//! Stores of objects, by location: what `iceberg` reads and writes through, and what we reach beside it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use iceberg::io::{FileIO, FileIOBuilder};
use object_store::ObjectStore;
use object_store::path::Path;
use reprocess_core::Result;
use serde::{Deserialize, Serialize};

use self::io::Objects;
use self::location::{Host, Location};
use self::settings::Settings;

#[cfg(feature = "azure")]
mod azure;
#[cfg(feature = "gcs")]
mod gcs;
mod io;
mod local;
mod location;
mod remove;
#[cfg(feature = "s3")]
mod s3;
mod settings;
mod upload;

pub(crate) use self::upload::Upload;

/// Opens stores by the scheme and host of locations, once each, with the settings of a table.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Stores {
    settings: Settings,
    #[serde(skip)]
    open: Mutex<BTreeMap<Host, Arc<dyn ObjectStore>>>,
    /// Those with the settings that a catalog said last: it says the same until credentials change.
    #[serde(skip)]
    with: Mutex<Option<Arc<Stores>>>,
}

/// A file, or a folder, in the store that it is in.
pub(crate) struct Place {
    pub(crate) host: Host,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
}

impl Stores {
    /// Settings under the names that Iceberg has for them, such as `s3.endpoint`; those that no store has are left out.
    pub(crate) fn new(settings: &BTreeMap<String, String>) -> Self {
        Self { settings: Settings::new(settings), ..Self::default() }
    }

    /// The same stores where the settings of a catalog change nothing for them; else stores of their own, whose clients
    /// and connections are kept until the catalog says something else.
    pub(crate) fn with(self: &Arc<Self>, more: &BTreeMap<String, String>) -> Arc<Self> {
        let settings = self.settings.with(more);
        if settings == self.settings {
            return Arc::clone(self);
        }
        let mut with = self.with.lock().unwrap_or_else(PoisonError::into_inner);
        match &*with {
            Some(known) if known.settings == settings => Arc::clone(known),
            _ => Arc::clone(with.insert(Arc::new(Self { settings, ..Self::default() }))),
        }
    }

    /// Where a location is: a full one, with a scheme or an absolute path.
    pub(crate) fn place(&self, location: &str) -> Result<Place> {
        let Location { host, path } = Location::parse(location)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let store = match open.get(&host) {
            Some(store) => Arc::clone(store),
            None => {
                let store = host.open(&self.settings)?;
                open.insert(host.clone(), Arc::clone(&store));
                store
            }
        };
        Ok(Place { host, store, path })
    }

    /// For the library underneath.
    pub(crate) fn io(self: &Arc<Self>) -> FileIO {
        FileIOBuilder::new(Arc::new(Objects::new(Arc::clone(self)))).build()
    }

    /// With a store of a test's at a host.
    #[cfg(test)]
    pub(crate) fn with_store(self, location: &str, store: Arc<dyn ObjectStore>) -> Self {
        let host = Location::parse(location).unwrap().host;
        self.open.lock().unwrap().insert(host, store);
        self
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("host", &self.host).field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
