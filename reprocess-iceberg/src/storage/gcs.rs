//! Google Cloud Storage.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::{CredentialProvider, ObjectStore};
use reprocess_core::{Error, Result};

use super::settings::Settings;

const TOKEN: &[&str] = &["gcs.oauth2.token"];
const KEY: &[&str] = &["gcs.credentials-json"];
const ANONYMOUS: &[&str] = &["gcs.no-auth", "gcs.allow-anonymous"];

pub(super) fn open(bucket: &str, settings: &Settings) -> Result<Arc<dyn ObjectStore>> {
    let store = builder(bucket, settings)?.build().map_err(|e| settings.refused(e))?;
    Ok(Arc::new(store))
}

fn builder(bucket: &str, settings: &Settings) -> Result<GoogleCloudStorageBuilder> {
    let mut builder = if settings.get(TOKEN).or(settings.get(KEY)).is_some() || settings.is_on(ANONYMOUS) {
        GoogleCloudStorageBuilder::new()
    } else {
        GoogleCloudStorageBuilder::from_env()
    };
    builder = builder.with_bucket_name(bucket);
    if let Some(endpoint) = settings.get(&["gcs.service.host", "gcs.service.path"]) {
        let options = object_store::ClientOptions::new().with_allow_http(endpoint.starts_with("http://"));
        builder = builder.with_base_url(endpoint).with_client_options(options);
    }
    if let Some(token) = settings.get(TOKEN) {
        return Ok(
            builder.with_credentials(Arc::new(Token(Arc::new(GcpCredential { bearer: token.to_owned() }))))
        );
    }
    match settings.get(KEY) {
        Some(key) if key.trim_start().starts_with('{') => Ok(builder.with_service_account_key(key)),
        Some(_) => Err(Error::invalid("`gcs.credentials-json` is not JSON")
            .with_advice("give the text of the file with the key of a service account")),
        None => Ok(builder.with_skip_signature(settings.is_on(ANONYMOUS))),
    }
}

/// A token that a catalog gave out; not shown.
struct Token(Arc<GcpCredential>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[async_trait]
impl CredentialProvider for Token {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        Ok(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use reprocess_core::ErrorKind;

    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        Settings::new(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[tokio::test]
    async fn a_token_of_the_catalog_is_used_and_not_shown() {
        let settings =
            settings(&[("gcs.oauth2.token", "hunter2"), ("gcs.service.host", "http://127.0.0.1:1")]);
        let store = builder("tables", &settings).unwrap().build().unwrap();
        assert_eq!(store.credentials().get_credential().await.unwrap().bearer, "hunter2");
        let shown = format!("{store:?}");
        assert!(shown.contains("127.0.0.1:1") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_key_that_is_none_is_refused_without_showing_it() {
        for key in ["hunter2", r#"{"hunter2": 1}"#] {
            let error = open("tables", &settings(&[("gcs.credentials-json", key)])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
