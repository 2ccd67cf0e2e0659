//! Who may ask.

use std::collections::BTreeMap;
use std::sync::Mutex;

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::json;

use super::{Rules, no, yes};

/// The tokens that are valid.
pub(super) struct Tokens {
    fixed: Option<&'static str>,
    client: Option<(&'static str, &'static str, u64)>,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    count: usize,
    valid: Vec<String>,
}

impl Tokens {
    pub(super) fn new(rules: &Rules) -> Self {
        Self { fixed: rules.token, client: rules.client, given: Mutex::default() }
    }

    pub(super) fn accept(&self, headers: &HeaderMap) -> bool {
        if self.fixed.is_none() && self.client.is_none() {
            return true;
        }
        let token =
            headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        token.is_some_and(|token| {
            self.fixed == Some(token) || self.given.lock().unwrap().valid.iter().any(|valid| valid == token)
        })
    }

    /// Answers a form. Repeats in what it refuses all that it was told, as no server should.
    pub(super) fn grant(&self, form: &Bytes) -> Response {
        let fields: BTreeMap<String, String> = url::form_urlencoded::parse(form).into_owned().collect();
        let field = |name: &str| fields.get(name).map(String::as_str);
        let Some((id, secret, expires_in)) = self.client else {
            return no(404, "NotFound", "no tokens here");
        };
        if (field("grant_type"), field("client_id"), field("client_secret"))
            != (Some("client_credentials"), Some(id), Some(secret))
        {
            return no(401, "invalid_client", &format!("not valid: {fields:?}"));
        }
        let mut given = self.given.lock().unwrap();
        given.count += 1;
        let token = format!("token-{}", given.count);
        given.valid.push(token.clone());
        yes(&json!({
            "access_token": token,
            "token_type": "bearer",
            "expires_in": expires_in,
            "scope": field("scope"),
        }))
    }

    pub(super) fn forget(&self) {
        self.given.lock().unwrap().valid.clear();
    }
}
