//! Settings of stores, under the names that Iceberg has for them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What the names of settings of stores begin with. `client.` is for what all clients of Amazon have in common.
const OF_STORES: [&str; 4] = ["adls.", "client.", "gcs.", "s3."];

/// The settings of stores among those of a table. Their values are never shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings(BTreeMap<String, String>);

impl Settings {
    pub(super) fn new(settings: &BTreeMap<String, String>) -> Self {
        Self::default().with(settings)
    }

    /// With others on top.
    pub(super) fn with(&self, more: &BTreeMap<String, String>) -> Self {
        let of_stores = more.iter().filter(|(name, _)| OF_STORES.iter().any(|of| name.starts_with(of)));
        let mut all = self.0.clone();
        all.extend(of_stores.map(|(name, value)| (name.clone(), value.clone())));
        Self(all)
    }
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
impl Settings {
    /// The first of some names that is set.
    pub(super) fn get(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.0.get(*name)).map(String::as_str)
    }

    /// Whether one of some names is set and says yes, in the words that Iceberg takes.
    pub(super) fn is_on(&self, names: &[&str]) -> bool {
        self.get(names).is_some_and(is_true)
    }

    /// That a store could not be made of them. Values are taken out of what was said, since they may be secret.
    pub(super) fn refused(&self, by: impl std::error::Error) -> reprocess_core::Error {
        let mut said = by.to_string();
        for value in self.0.values().filter(|value| value.len() > 3) {
            said = said.replace(value.as_str(), "…");
        }
        reprocess_core::Error::invalid("the settings of a store are not right")
            .with_source(said)
            .with_advice("check the settings of the catalog and `storage_options`")
    }
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub(super) fn is_true(value: &str) -> bool {
    ["true", "t", "1", "on", "yes"].contains(&value.to_lowercase().as_str())
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_what_is_of_stores_counts_and_the_later_wins() {
        let own = Settings::new(&settings(&[("s3.endpoint", "a"), ("uri", "b"), ("client.region", "c")]));
        assert_eq!(own, own.with(&settings(&[("token", "x"), ("s3.endpoint", "a")])));
        let vended = own.with(&settings(&[("s3.endpoint", "d"), ("s3.session-token", "hunter2")]));
        assert_ne!(vended, own);
        assert_eq!(
            vended,
            Settings(settings(&[
                ("client.region", "c"),
                ("s3.endpoint", "d"),
                ("s3.session-token", "hunter2")
            ]))
        );
        assert_eq!(format!("{vended:?}"), r#"{"client.region", "s3.endpoint", "s3.session-token"}"#);
    }

    #[cfg(feature = "s3")]
    #[test]
    fn what_a_store_says_of_its_settings_does_not_repeat_them() {
        let own = Settings::new(&settings(&[("s3.secret-access-key", "hunter2")]));
        let said = own.refused(std::io::Error::other("cannot read `hunter2`")).to_string();
        assert!(said.contains("cannot read `…`"), "{said}");
    }
}
