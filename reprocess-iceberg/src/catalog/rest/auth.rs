//! Tokens: the one that is in use, and how another is fetched.

use std::fmt;

use bytes::Bytes;
use chrono::{DateTime, Duration, Utc};
use reprocess_core::ports::clock::{Clock, SystemClock};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use url::form_urlencoded::Serializer;

use super::client::Wire;
use super::config::Settings;
use super::errors::Refusal;

/// The token of a catalog.
pub(super) struct Auth {
    /// Held while one is fetched, so that those who need it wait for one request.
    token: Mutex<Option<Token>>,
    credential: Option<String>,
    uri: String,
    /// What a request for a token says beside the credential.
    fields: Vec<(&'static str, String)>,
}

struct Token {
    text: String,
    /// From when on another is fetched.
    until: Option<DateTime<Utc>>,
}

/// What a server of tokens answers.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    expires_in: Value,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("credential", &self.credential.as_ref().map(|_| "…"))
            .finish_non_exhaustive()
    }
}

impl Auth {
    pub(super) fn new(settings: &Settings) -> Self {
        let token = settings.token.clone().map(|text| Token { text, until: None });
        Self {
            token: Mutex::new(token),
            credential: settings.credential.clone(),
            uri: settings.oauth2_uri.clone(),
            fields: settings.oauth2.clone(),
        }
    }

    /// Whether it would be the same under other settings.
    pub(super) fn fits(&self, before: &Settings, after: &Settings) -> bool {
        let of = |settings: &Settings| (settings.token.clone(), settings.credential.clone());
        of(before) == of(after) && self.uri == after.oauth2_uri && self.fields == after.oauth2
    }

    /// The token in use; where there is none, or it runs out, another one.
    pub(super) async fn token(&self, wire: &Wire) -> Result<Option<String>, Refusal> {
        let mut token = self.token.lock().await;
        let lasts = |token: &Token| token.until.is_none_or(|until| SystemClock.now() < until);
        match (&*token, &self.credential) {
            (Some(token), _) if lasts(token) => Ok(Some(token.text.clone())),
            (_, Some(credential)) => self.fetch(wire, &mut token, credential).await.map(Some),
            (_, None) => Ok(None),
        }
    }

    /// Another token than the one that was refused; `None` where none can be had.
    pub(super) async fn other(&self, wire: &Wire, refused: Option<&str>) -> Result<Option<String>, Refusal> {
        let mut token = self.token.lock().await;
        match (&*token, &self.credential) {
            // Somebody else fetched one meanwhile.
            (Some(token), _) if Some(token.text.as_str()) != refused => Ok(Some(token.text.clone())),
            (_, Some(credential)) => self.fetch(wire, &mut token, credential).await.map(Some),
            (_, None) => Ok(None),
        }
    }

    async fn fetch(
        &self,
        wire: &Wire,
        token: &mut Option<Token>,
        credential: &str,
    ) -> Result<String, Refusal> {
        let asked = SystemClock.now();
        let answer = wire.fetch_token(&self.uri, self.form(credential), credential).await?;
        // What cannot be read is not shown: it may hold the token.
        let granted: Granted = serde_json::from_slice(&answer)
            .map_err(|_| Refusal::of_token("the server of tokens answers without a token"))?;
        let text = granted.access_token;
        *token = Some(Token { text: text.clone(), until: until(asked, &granted.expires_in) });
        Ok(text)
    }

    fn form(&self, credential: &str) -> Bytes {
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        match credential.split_once(':') {
            Some((id, secret)) => form.append_pair("client_id", id).append_pair("client_secret", secret),
            None => form.append_pair("client_secret", credential),
        };
        form.extend_pairs(&self.fields);
        form.finish().into()
    }
}

/// A tenth of its life before a token runs out, so that a request with it is not too late. `None` where it is not known.
fn until(asked: DateTime<Utc>, expires_in: &Value) -> Option<DateTime<Utc>> {
    // Some servers write the number as a text.
    let seconds = expires_in.as_u64().or_else(|| expires_in.as_str()?.parse().ok())?;
    let milliseconds = i64::try_from(seconds).ok()?.checked_mul(900)?;
    asked.checked_add_signed(Duration::try_milliseconds(milliseconds)?)
}

#[cfg(test)]
mod tests {
    use super::super::config::{Answered, RestConfig};
    use super::*;

    fn auth(config: &RestConfig) -> Auth {
        Auth::new(&Settings::new(config, Answered::default()).unwrap())
    }

    #[test]
    fn a_token_is_asked_for_with_the_credential() {
        let config = RestConfig::new("https://x").with_scope("all").with_property("audience", "lake");
        let form = auth(&config).form("me:s&c:ret");
        let expected =
            "grant_type=client_credentials&client_id=me&client_secret=s%26c%3Aret&scope=all&audience=lake";
        assert_eq!(form, expected);
        assert!(
            auth(&config)
                .form("alone")
                .starts_with(b"grant_type=client_credentials&client_secret=alone&scope")
        );
    }

    #[test]
    fn a_token_is_given_up_before_it_runs_out() {
        let asked = DateTime::from_timestamp(1_000_000, 0).unwrap();
        let lasts = |expires_in: Value| until(asked, &expires_in).map(|until| (until - asked).num_seconds());
        assert_eq!(lasts(3_600.into()), Some(3_240));
        assert_eq!(lasts("3600".into()), Some(3_240));
        assert_eq!(lasts(Value::Null), None);
        assert_eq!(lasts(u64::MAX.into()), None);
    }

    #[test]
    fn the_credential_is_not_shown() {
        let shown = format!(
            "{:?}",
            auth(&RestConfig::new("https://x").with_credential("me:hunter2").with_token("hunter2"))
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
