//! Settings of a REST catalog: those of the host, and those that the server says.

use std::collections::BTreeMap;
use std::fmt;

use reprocess_core::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

/// Settings of a REST catalog.
///
/// With a credential a token is fetched by the OAuth2 flow for clients, and fetched again before it runs out or when the
/// server takes it no more. With a token that one is used. With both the token comes first.
///
/// Secrets are not shown by `Debug`, and are not part of any error; serialised they are.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RestConfig {
    /// Where the server is, without `/v1`.
    pub uri: String,
    /// Which warehouse of the server.
    pub warehouse: Option<String>,
    /// A bearer token.
    pub token: Option<String>,
    /// `client-id:client-secret`, or the secret alone.
    pub credential: Option<String>,
    /// What a token is asked for; `catalog` where nothing is said.
    pub scope: Option<String>,
    /// Where tokens are fetched, where that is not at the server itself.
    pub oauth2_uri: Option<String>,
    /// Headers of every request.
    pub headers: BTreeMap<String, String>,
    /// Further properties under the names that Iceberg has for them, such as `audience`. What the server overrides comes
    /// on top of them.
    pub properties: BTreeMap<String, String>,
    /// How long one request may take, in milliseconds.
    pub timeout_ms: u64,
    /// How long a server that is busy or cannot be reached is asked again, in milliseconds.
    pub retry_timeout_ms: u64,
}

impl Default for RestConfig {
    fn default() -> Self {
        Self {
            uri: String::new(),
            warehouse: None,
            token: None,
            credential: None,
            scope: None,
            oauth2_uri: None,
            headers: BTreeMap::new(),
            properties: BTreeMap::new(),
            timeout_ms: 120_000,
            retry_timeout_ms: 60_000,
        }
    }
}

impl RestConfig {
    /// The server at an address like `https://catalog.example.com/api`.
    pub fn new(uri: impl Into<String>) -> Self {
        Self { uri: uri.into(), ..Self::default() }
    }

    /// Sets which warehouse of the server it is.
    #[must_use]
    pub fn with_warehouse(mut self, warehouse: impl Into<String>) -> Self {
        self.warehouse = Some(warehouse.into());
        self
    }

    /// Sets a bearer token.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the credential that tokens are fetched with: `client-id:client-secret`, or the secret alone.
    #[must_use]
    pub fn with_credential(mut self, credential: impl Into<String>) -> Self {
        self.credential = Some(credential.into());
        self
    }

    /// Sets what a token is asked for.
    #[must_use]
    pub fn with_scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = Some(scope.into());
        self
    }

    /// Sets where tokens are fetched.
    #[must_use]
    pub fn with_oauth2_uri(mut self, uri: impl Into<String>) -> Self {
        self.oauth2_uri = Some(uri.into());
        self
    }

    /// Sets a header of every request.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sets a property under the name that Iceberg has for it.
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// Sets how long one request may take.
    #[must_use]
    pub fn with_timeout_ms(mut self, milliseconds: u64) -> Self {
        self.timeout_ms = milliseconds;
        self
    }

    /// Sets how long a server that is busy or cannot be reached is asked again.
    #[must_use]
    pub fn with_retry_timeout_ms(mut self, milliseconds: u64) -> Self {
        self.retry_timeout_ms = milliseconds;
        self
    }
}

impl fmt::Debug for RestConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestConfig")
            .field("uri", &shown(&self.uri))
            .field("warehouse", &self.warehouse)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("credential", &self.credential.as_ref().map(|_| "…"))
            .field("scope", &self.scope)
            .field("oauth2_uri", &self.oauth2_uri.as_deref().map(shown))
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("properties", &self.properties.keys().collect::<Vec<_>>())
            .field("timeout_ms", &self.timeout_ms)
            .field("retry_timeout_ms", &self.retry_timeout_ms)
            .finish()
    }
}

/// An address without what could be a secret in it: a name, a password, a query.
pub(super) fn shown(uri: &str) -> String {
    let Ok(url) = Url::parse(uri) else { return "not an address".to_owned() };
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

/// What `GET /v1/config` answers.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Answered {
    defaults: BTreeMap<String, Value>,
    overrides: BTreeMap<String, Value>,
}

/// The settings in force.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Settings {
    /// Without a slash at its end.
    pub(super) uri: String,
    /// What stands after `/v1` in paths, with a slash before it; may be nothing.
    pub(super) prefix: String,
    /// What stands between the levels of a namespace in a path.
    pub(super) separator: String,
    pub(super) token: Option<String>,
    pub(super) credential: Option<String>,
    pub(super) oauth2_uri: String,
    /// What else a request for a token says.
    pub(super) oauth2: Vec<(&'static str, String)>,
    pub(super) headers: BTreeMap<String, String>,
}

impl Settings {
    /// What the host said, between what the server offers where nothing is said and what it overrides.
    pub(super) fn new(config: &RestConfig, answered: Answered) -> Result<Self> {
        let mut all = texts(answered.defaults);
        all.extend(config.properties.clone());
        let said = [
            ("uri", Some(&config.uri)),
            ("token", config.token.as_ref()),
            ("credential", config.credential.as_ref()),
            ("scope", config.scope.as_ref()),
            ("oauth2-server-uri", config.oauth2_uri.as_ref()),
        ];
        all.extend(said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.clone()))));
        all.extend(config.headers.iter().map(|(name, value)| (format!("header.{name}"), value.clone())));
        all.extend(texts(answered.overrides));
        Self::of(&all)
    }

    fn of(all: &BTreeMap<String, String>) -> Result<Self> {
        let said = |name: &str| all.get(name).filter(|value| !value.is_empty()).cloned();
        let uri = address(&said("uri").unwrap_or_default())?;
        let prefix = said("prefix").unwrap_or_default();
        let prefix = prefix.trim_matches('/');
        let oauth2_uri = match said("oauth2-server-uri") {
            Some(uri) if uri.contains("://") => address(&uri)?,
            // Java takes it as a path at the server.
            Some(path) => format!("{uri}/{}", path.trim_start_matches('/')),
            None => format!("{uri}/v1/oauth/tokens"),
        };
        let mut oauth2 = vec![("scope", said("scope").unwrap_or_else(|| "catalog".to_owned()))];
        oauth2.extend(["audience", "resource"].into_iter().filter_map(|name| Some((name, said(name)?))));
        let separator = said("namespace-separator").unwrap_or_else(|| "%1F".to_owned());
        let separator = percent_encoding::percent_decode_str(&separator).decode_utf8_lossy().into_owned();
        let headers = all.iter().filter_map(|(name, value)| {
            Some((name.strip_prefix("header.")?.to_ascii_lowercase(), value.clone()))
        });
        Ok(Self {
            prefix: if prefix.is_empty() { String::new() } else { format!("/{prefix}") },
            separator,
            token: said("token"),
            credential: said("credential"),
            oauth2_uri,
            oauth2,
            headers: headers.collect(),
            uri,
        })
    }
}

/// Checks an address and takes the slash from its end.
fn address(uri: &str) -> Result<String> {
    let refuse = |why: &str| Err(Error::invalid(format!("the address of the catalog is not valid: {why}")));
    let url = match Url::parse(uri) {
        Ok(url) => url,
        Err(error) => return refuse(&error.to_string()),
    };
    if !matches!(url.scheme(), "http" | "https") {
        return refuse("it has to begin with `https://` or `http://`");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse("a name or password stands in it; give a token or a credential");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return refuse("it has a query");
    }
    Ok(uri.trim_end_matches('/').to_owned())
}

/// Values as texts. What is no text is written as JSON, and what is null is not there.
pub(super) fn texts(values: BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let text = |value| match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    };
    values.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(json: &str) -> Answered {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_server_offers_defaults_and_overrides_the_host() {
        let config = RestConfig::new("https://catalog.example.com/api/")
            .with_scope("ours")
            .with_header("X-Team", "data")
            .with_property("prefix", "ours")
            .with_property("audience", "lake");
        let answered = answered(
            r#"{"defaults": {"scope": "theirs", "header.x-region": "eu", "max": 3},
                "overrides": {"prefix": "theirs/lake", "uri": "https://other.example.com", "token": null}}"#,
        );
        let settings = Settings::new(&config, answered).unwrap();
        assert_eq!(settings.uri, "https://other.example.com");
        assert_eq!(settings.prefix, "/theirs/lake");
        assert_eq!(settings.separator, "\u{1f}");
        assert_eq!(settings.oauth2_uri, "https://other.example.com/v1/oauth/tokens");
        assert_eq!(settings.oauth2, [("scope", "ours".to_owned()), ("audience", "lake".to_owned())]);
        let headers: Vec<_> = settings.headers.into_iter().collect();
        assert_eq!(headers, [("x-region".into(), "eu".into()), ("x-team".into(), "data".into())]);
        assert_eq!(settings.token, None);
    }

    #[test]
    fn an_address_has_no_secrets_in_it() {
        for uri in
            ["", "catalog", "ftp://x", "https://me:hunter2@x", "https://x?token=hunter2", "https://x#hunter2"]
        {
            let error = Settings::new(&RestConfig::new(uri), Answered::default()).err().unwrap().to_string();
            assert!(error.contains("the address of the catalog") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = RestConfig::new("https://me:hunter2@catalog.example.com/api?x=hunter2")
            .with_token("hunter2")
            .with_credential("id:hunter2")
            .with_oauth2_uri("https://me:hunter2@auth.example.com/token")
            .with_header("X-Key", "hunter2")
            .with_property("s3.secret-access-key", "hunter2");
        let shown = format!("{config:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        for part in
            ["https://catalog.example.com/api", "X-Key", "s3.secret-access-key", "auth.example.com/token"]
        {
            assert!(shown.contains(part), "{shown}");
        }
    }

    #[test]
    fn settings_are_data() {
        let config: RestConfig = serde_json::from_str(r#"{"uri": "https://x", "warehouse": "w"}"#).unwrap();
        assert_eq!(config, RestConfig::new("https://x").with_warehouse("w"));
        let again = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(config, again);
    }
}
