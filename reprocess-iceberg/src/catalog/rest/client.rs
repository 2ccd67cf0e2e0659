//! Requests: with headers and a token, sent again where that is right, and without secrets in what is said of them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reprocess_core::{Error, Result};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, redirect};

use super::auth::Auth;
use super::config::{RestConfig, Settings, shown};
use super::errors::Refusal;

/// What stands in a segment of a path as it is.
const IN_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Shorter ones would take words out of messages.
const SHORTEST_SECRET: usize = 4;

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    pub(super) method: Method,
    /// What follows `/v1/{prefix}`, encoded; with a slash before it.
    pub(super) path: String,
    pub(super) query: Option<(&'static str, &'a str)>,
    pub(super) body: Option<Bytes>,
    /// The token that the catalog gave for one table.
    pub(super) token: Option<&'a str>,
}

impl<'a> Request<'a> {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), query: None, body: None, token: None }
    }

    pub(super) fn post(path: impl Into<String>, body: &impl serde::Serialize) -> Result<Self> {
        let body = serde_json::to_vec(body)
            .map_err(|e| Error::internal("a request to the catalog does not serialise").with_source(e))?;
        Ok(Self { method: Method::POST, body: Some(body.into()), ..Self::get(path) })
    }

    pub(super) fn with_query(self, name: &'static str, value: Option<&'a str>) -> Self {
        Self { query: value.map(|value| (name, value)), ..self }
    }

    pub(super) fn with_token(self, token: Option<&'a str>) -> Self {
        Self { token, ..self }
    }

    fn changes(&self) -> bool {
        self.method != Method::GET
    }
}

/// A server, and how it is spoken to.
pub(super) struct Client {
    settings: Settings,
    wire: Wire,
    auth: Auth,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("uri", &shown(&self.settings.uri))
            .field("prefix", &self.settings.prefix)
            .field("auth", &self.auth)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(config: &RestConfig, settings: Settings) -> Result<Self> {
        let wire = Wire::new(config, &settings)?;
        Ok(Self { auth: Auth::new(&settings), settings, wire })
    }

    /// The same under the settings that the server said. A token that was fetched stays, where it fits.
    pub(super) fn with_settings(self, config: &RestConfig, settings: Settings) -> Result<Self> {
        let wire = Wire::new(config, &settings)?;
        let fits = self.auth.fits(&self.settings, &settings);
        let auth = if fits { self.auth } else { Auth::new(&settings) };
        Ok(Self { settings, wire, auth })
    }

    /// The path of a namespace.
    pub(super) fn namespace(&self, levels: &[String]) -> Result<String> {
        let separator = &self.settings.separator;
        if let Some(level) =
            levels.iter().find(|level| level.is_empty() || level.contains(separator.as_str()))
        {
            return Err(Error::invalid(format!(
                "`{}` is no namespace of this catalog",
                level.escape_debug()
            )));
        }
        Ok(format!("/namespaces/{}", segment(&levels.join(separator))?))
    }

    /// The path of a table.
    pub(super) fn table(&self, table: &iceberg::TableIdent) -> Result<String> {
        Ok(format!("{}/tables/{}", self.namespace(table.namespace())?, segment(table.name())?))
    }

    /// Sends a request that is not below the prefix.
    pub(super) async fn send_to_root(&self, request: &Request<'_>) -> Result<Bytes, Refusal> {
        self.send_below("", request).await
    }

    /// Sends a request, and again where the answer says that it may be, until there is another answer or too much time
    /// has gone.
    pub(super) async fn send(&self, request: &Request<'_>) -> Result<Bytes, Refusal> {
        self.send_below(&self.settings.prefix, request).await
    }

    async fn send_below(&self, prefix: &str, request: &Request<'_>) -> Result<Bytes, Refusal> {
        let uri = format!("{}/v1{prefix}{}", self.settings.uri, request.path);
        let doubtful = AtomicBool::new(false);
        let mut patience = self.wire.patience;
        let sent = (|| self.authorized(&uri, request))
            .retry(self.wire.backoff())
            .when(|refusal| if request.changes() { refusal.is_busy() } else { refusal.is_passing() })
            .adjust(|refusal, planned| pause(refusal, planned, &mut patience))
            .notify(|refusal, wait| {
                doubtful.fetch_or(refusal.may_have_happened(), Ordering::Relaxed);
                tracing::debug!(status = refusal.status, ?wait, "the catalog is asked again");
            })
            .await;
        sent.map_err(|refusal| Refusal { doubtful: doubtful.into_inner(), ..refusal })
    }

    /// Sends it once; where the token is refused once more, with another.
    async fn authorized(&self, uri: &str, request: &Request<'_>) -> Result<Bytes, Refusal> {
        let token = match request.token {
            Some(token) => Some(token.to_owned()),
            None => self.auth.token(&self.wire).await?,
        };
        let refusal = match self.wire.once(uri, request, token.as_deref()).await {
            Err(refusal) if refusal.is_unauthorized() => refusal,
            sent => return sent,
        };
        let other = match request.token {
            Some(_) => self.auth.token(&self.wire).await?,
            None => self.auth.other(&self.wire, token.as_deref()).await?,
        };
        match other {
            Some(other) if Some(&other) != token.as_ref() => self.wire.once(uri, request, Some(&other)).await,
            _ => Err(refusal),
        }
    }
}

/// Connections, and what goes with every request.
pub(super) struct Wire {
    http: reqwest::Client,
    uri: String,
    headers: HeaderMap,
    /// What is taken out of messages.
    secrets: Vec<String>,
    patience: Duration,
}

impl Wire {
    fn new(config: &RestConfig, settings: &Settings) -> Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(Duration::from_millis(config.timeout_ms))
            .connect_timeout(Duration::from_millis(config.timeout_ms.min(30_000)))
            .user_agent(concat!("reprocess-iceberg/", env!("CARGO_PKG_VERSION")))
            // A commit that is redirected may turn into a read, whose answer looks like that to a commit.
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|e| Error::internal("there is no client for HTTP").with_source(e))?;
        let credential = settings.credential.iter().flat_map(|credential| {
            [
                credential.clone(),
                credential.split_once(':').map_or(credential.clone(), |(_, secret)| secret.to_owned()),
            ]
        });
        let secrets =
            settings.token.iter().cloned().chain(credential).chain(settings.headers.values().cloned());
        Ok(Self {
            http,
            uri: settings.uri.clone(),
            headers: headers(settings)?,
            secrets: secrets.filter(|secret| secret.len() >= SHORTEST_SECRET).collect(),
            patience: Duration::from_millis(config.retry_timeout_ms),
        })
    }

    fn backoff(&self) -> ExponentialBuilder {
        ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(10))
            .with_total_delay(Some(self.patience))
            .with_jitter()
            .without_max_times()
    }

    async fn once(&self, uri: &str, request: &Request<'_>, token: Option<&str>) -> Result<Bytes, Refusal> {
        let mut headers = self.headers.clone();
        if let Some(token) = token {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|_| Refusal::of_token("the token holds what no header can"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut sending =
            self.http.request(request.method.clone(), uri).query(&request.query.as_slice()).headers(headers);
        if let Some(body) = &request.body {
            sending = sending.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let sent = answer(sending).await;
        sent.map_err(|refusal| self.discreet(Refusal { changes: request.changes(), ..refusal }, token))
    }

    /// Fetches a token with a form. That of another server is none of the catalog's headers' business.
    pub(super) async fn fetch_token(
        &self,
        uri: &str,
        form: Bytes,
        credential: &str,
    ) -> Result<Bytes, Refusal> {
        let ours = uri.strip_prefix(&self.uri).is_some_and(|path| path.starts_with('/'));
        let mut headers = if ours { self.headers.clone() } else { HeaderMap::new() };
        headers.remove(AUTHORIZATION);
        let mut patience = self.patience;
        let send = || {
            let sending = self.http.post(uri).headers(headers.clone());
            answer(sending.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.clone()))
        };
        let sent = send
            .retry(self.backoff())
            .when(Refusal::is_passing)
            .adjust(|refusal, planned| pause(refusal, planned, &mut patience))
            .await;
        sent.map_err(|refusal| self.discreet(refusal, Some(credential)).for_token())
    }

    /// Takes secrets out of what a server said, which may repeat what it was told.
    fn discreet(&self, mut refusal: Refusal, token: Option<&str>) -> Refusal {
        let token = token.filter(|token| token.len() >= SHORTEST_SECRET);
        for secret in self.secrets.iter().map(String::as_str).chain(token) {
            refusal.message = refusal.message.replace(secret, "…");
        }
        refusal
    }
}

async fn answer(sending: reqwest::RequestBuilder) -> Result<Bytes, Refusal> {
    let response = sending.send().await.map_err(Refusal::lost)?;
    let status = response.status();
    let after =
        response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.trim().parse().ok());
    let body = response.bytes().await;
    if status.is_success() {
        return body.map_err(Refusal::lost);
    }
    Err(Refusal::answered(status.as_u16(), &body.unwrap_or_default(), after.map(Duration::from_secs)))
}

/// How long to wait before the next attempt; `None` where that is longer than there is patience.
fn pause(refusal: &Refusal, planned: Option<Duration>, patience: &mut Duration) -> Option<Duration> {
    let wait = planned?.max(refusal.retry_after.unwrap_or_default());
    *patience = patience.checked_sub(wait)?;
    Some(wait)
}

fn headers(settings: &Settings) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert("x-iceberg-access-delegation", HeaderValue::from_static("vended-credentials"));
    for (name, value) in &settings.headers {
        let bad = |_| Error::invalid(format!("`{name}` is no header, or its value is none"));
        let mut value = HeaderValue::from_str(value).map_err(|_| bad(()))?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad(()))?, value);
    }
    Ok(headers)
}

/// A name as a segment of a path.
fn segment(name: &str) -> Result<String> {
    // These two lead elsewhere in every encoding.
    if matches!(name, "" | "." | "..") {
        return Err(Error::invalid(format!("`{name}` is no name in a REST catalog")));
    }
    Ok(utf8_percent_encode(name, IN_SEGMENT).to_string())
}

#[cfg(test)]
mod tests {
    use super::super::config::Answered;
    use super::*;

    fn client(config: &RestConfig) -> Client {
        Client::new(config, Settings::new(config, Answered::default()).unwrap()).unwrap()
    }

    #[test]
    fn levels_of_a_namespace_are_joined_and_names_encoded() {
        let client = client(&RestConfig::new("https://x/api"));
        let table = |parts: &[&str]| client.table(&iceberg::TableIdent::from_strs(parts).unwrap());
        assert_eq!(table(&["a", "b c", "t/ü%"]).unwrap(), "/namespaces/a%1Fb%20c/tables/t%2F%C3%BC%25");
        assert_eq!(table(&["a.b", "t.u"]).unwrap(), "/namespaces/a.b/tables/t.u");
        for odd in [&["a\u{1f}b", "t"], &["", "t"], &["a", ".."], &["..", "t"], &["a", ""]] {
            assert!(table(odd).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn what_a_server_says_is_shown_without_secrets() {
        let config =
            RestConfig::new("https://x").with_credential("me:hunter2").with_header("X-Key", "swordfish");
        let body = br#"{"error": {"message": "me:hunter2, hunter2, swordfish and opensesame are wrong"}}"#;
        let refusal = client(&config).wire.discreet(Refusal::answered(400, body, None), Some("opensesame"));
        assert_eq!(refusal.message, "…, …, … and … are wrong");
        let shown = format!("{:?}", client(&config));
        assert!(!shown.contains("hunter2") && !shown.contains("swordfish"), "{shown}");
    }

    #[test]
    fn a_server_is_not_waited_for_longer_than_there_is_patience() {
        let mut patience = Duration::from_secs(10);
        let mut wait = |after: Option<u64>| {
            let refusal = Refusal::answered(503, b"", after.map(Duration::from_secs));
            pause(&refusal, Some(Duration::from_secs(1)), &mut patience)
        };
        assert_eq!(wait(None), Some(Duration::from_secs(1)));
        assert_eq!(wait(Some(5)), Some(Duration::from_secs(5)));
        assert_eq!(wait(Some(5)), None);
    }
}
