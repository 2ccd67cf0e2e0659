//! What a server refuses, and the errors of reprocess that come of it.

use std::time::Duration;

use reprocess_core::{Error, ErrorKind};
use serde::Deserialize;

/// A request without success.
#[derive(Debug)]
pub(super) struct Refusal {
    /// `None` where there was no answer, or only a part of one.
    pub(super) status: Option<u16>,
    /// What the server said, or what happened to the connection; without secrets.
    pub(super) message: String,
    pub(super) retry_after: Option<Duration>,
    /// Whether the server cannot have seen the request.
    pub(super) unsent: bool,
    /// Whether an earlier attempt of the same request may have been carried out, whatever this one was answered.
    pub(super) doubtful: bool,
    /// Whether the request would have changed something.
    pub(super) changes: bool,
    /// Whether it was tried as often as it is to be.
    pub(super) given_up: bool,
}

/// The document that comes with an error.
#[derive(Deserialize)]
struct Document {
    error: Model,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Model {
    Iceberg {
        #[serde(default)]
        message: Option<String>,
        #[serde(default, rename = "type")]
        kind: Option<String>,
    },
    /// OAuth2 says one word, and describes it beside.
    Word(String),
}

impl Refusal {
    /// The server said no.
    pub(super) fn answered(status: u16, body: &[u8], retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..Self::new(Some(status), message(status, body)) }
    }

    /// There was no answer.
    pub(super) fn lost(error: reqwest::Error) -> Self {
        let unsent = error.is_connect();
        // The address may hold what is private.
        Self { unsent, ..Self::new(None, chain(&error.without_url())) }
    }

    /// There is no token, so that the request was not sent.
    pub(super) fn of_token(message: &str) -> Self {
        Self { unsent: true, ..Self::new(Some(401), message.to_owned()) }
    }

    fn new(status: Option<u16>, message: String) -> Self {
        let (unsent, doubtful, given_up) = (false, false, false);
        Self { status, message, retry_after: None, unsent, doubtful, changes: true, given_up }
    }

    /// The same of a request for a token, without which another request is not sent.
    pub(super) fn for_token(self) -> Self {
        let refused = self.status.filter(|status| (300..500).contains(status) && *status != 429);
        let message = format!("no token: {}", self.message);
        Self { status: refused.map(|_| 401), message, unsent: true, given_up: true, ..self }
    }

    /// Whether the same request may be answered better later.
    pub(super) fn is_passing(&self) -> bool {
        !self.given_up && matches!(self.status, None | Some(429 | 500 | 502..=504))
    }

    /// Whether a request that changes something may be sent again: the server said that it is busy, or has not seen it.
    pub(super) fn is_busy(&self) -> bool {
        let busy = matches!(self.status, Some(429 | 503)) || (self.unsent && self.status.is_none());
        busy && !self.given_up
    }

    /// Whether the request may have been carried out.
    pub(super) fn may_have_happened(&self) -> bool {
        let now = !self.unsent && self.status.is_none_or(|status| status >= 500 && status != 501);
        self.changes && (now || self.doubtful)
    }

    pub(super) fn is_unauthorized(&self) -> bool {
        matches!(self.status, Some(401 | 419)) && !self.unsent
    }

    /// The error; `what` reads as in "the catalog could not {what}".
    pub(super) fn into_error(self, what: &str) -> Error {
        let (kind, advice) = self.kind();
        let error = Error::new(kind, format!("the catalog could not {what}")).with_source(self.message);
        let error = match self.status {
            Some(status) => error.with_context("status", status),
            None => error,
        };
        if advice.is_empty() { error } else { error.with_advice(advice) }
    }

    fn kind(&self) -> (ErrorKind, &'static str) {
        if self.may_have_happened() {
            return (ErrorKind::Unavailable, "it may have happened: look before you try again");
        }
        match self.status {
            None => (ErrorKind::Unavailable, "look whether the server is there, and try again"),
            Some(401 | 419) => (ErrorKind::Storage, "check the token or the credential of the catalog"),
            Some(403) => (ErrorKind::Storage, "grant the client of the catalog what it needs"),
            Some(404) => (ErrorKind::NotFound, ""),
            Some(406 | 501) => (ErrorKind::Unsupported, ""),
            Some(408 | 425 | 429 | 500..) => (ErrorKind::Unavailable, "try again"),
            Some(409) => (ErrorKind::State, ""),
            Some(300..=399) => (ErrorKind::Invalid, "the server is at another address; give that one"),
            Some(_) => (ErrorKind::Invalid, ""),
        }
    }
}

fn message(status: u16, body: &[u8]) -> String {
    match serde_json::from_slice(body) {
        Ok(Document { error: Model::Iceberg { message, kind } }) => {
            let parts: Vec<String> =
                kind.into_iter().chain(message).filter(|part| !part.is_empty()).collect();
            if parts.is_empty() { without_words(status) } else { parts.join(": ") }
        }
        Ok(Document { error: Model::Word(word) }) => format!("it answers `{word}`"),
        // A body that is no error of the protocol is that of something in between, a page as a rule.
        Err(_) => without_words(status),
    }
}

fn without_words(status: u16) -> String {
    let status = reqwest::StatusCode::from_u16(status).ok();
    status.and_then(|status| status.canonical_reason()).unwrap_or("the server says no more").to_owned()
}

/// An error with its causes, each said once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, body: &str) -> Refusal {
        Refusal::answered(status, body.as_bytes(), None)
    }

    #[test]
    fn a_status_says_what_can_be_done() {
        let check = |kind, statuses: &[u16]| {
            for status in statuses {
                assert_eq!(refusal(*status, "").into_error("change a table").kind(), kind, "{status}");
            }
        };
        check(ErrorKind::Unavailable, &[408, 429, 500, 502, 503, 504]);
        check(ErrorKind::Invalid, &[302, 400, 422]);
        check(ErrorKind::NotFound, &[404]);
        check(ErrorKind::Unsupported, &[406, 501]);
        check(ErrorKind::Storage, &[401, 403, 419]);
    }

    #[test]
    fn only_what_was_refused_for_certain_did_not_happen() {
        let check = |happened, statuses: &[u16]| {
            for status in statuses {
                assert_eq!(refusal(*status, "").may_have_happened(), happened, "{status}");
            }
        };
        check(true, &[500, 502, 503, 504]);
        check(false, &[400, 401, 404, 409, 429, 501]);
        assert!(Refusal { doubtful: true, ..refusal(409, "") }.may_have_happened());
        assert!(!Refusal { changes: false, ..refusal(500, "") }.may_have_happened());
    }

    #[test]
    fn without_a_token_nothing_is_sent() {
        let refused = refusal(400, r#"{"error": "invalid_client"}"#).for_token();
        assert_eq!((refused.status, refused.may_have_happened()), (Some(401), false));
        let error = refused.into_error("load a table");
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(error.to_string().contains("no token: it answers `invalid_client`"), "{error}");
        let down = refusal(503, "").for_token();
        assert_eq!((down.status, down.may_have_happened()), (None, false));
        assert_eq!(down.into_error("load a table").kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn the_error_holds_what_the_server_said() {
        let check = |body: &str, said: &str| {
            let error = refusal(422, body).into_error("make a table").to_string();
            assert_eq!(error, format!("the catalog could not make a table (status 422): {said}"));
        };
        let model = r#"{"error": {"message": "no such column", "type": "BadRequest", "code": 422}}"#;
        check(model, "BadRequest: no such column");
        check(r#"{"error": "invalid_scope", "error_description": "…"}"#, "it answers `invalid_scope`");
        check("<html>", "Unprocessable Entity");
    }
}
