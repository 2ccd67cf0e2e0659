//! Errors of HTTP, which is how REST catalogs are spoken to.

use reprocess_core::{ErrorKind, Result};
use reprocess_lake::error::mapped;
use reqwest::{StatusCode, Url};

use super::Doing;

impl<T> Doing<T> for Result<T, reqwest::Error> {
    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|e| {
            let error = mapped(kind(&e), what);
            let error = match e.url().map(shown) {
                Some(url) => error.with_context("url", url),
                None => error,
            };
            let error = match e.status() {
                Some(status) => error.with_context("status", status.as_u16()),
                None => error,
            };
            error.with_source(e.without_url())
        })
    }
}

/// An address without what may be secret in it: who asks, and what is asked.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Refused for addresses that cannot have them.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

fn kind(error: &reqwest::Error) -> (ErrorKind, &'static str) {
    match error.status() {
        Some(status) => kind_of_status(status),
        None if error.is_builder() => {
            (ErrorKind::Invalid, "check the address and the settings of the catalog")
        }
        None if error.is_decode() => (
            ErrorKind::Corrupt,
            "what answers does not speak the protocol of Iceberg catalogs; check the address",
        ),
        None => (ErrorKind::Unavailable, "try again"),
    }
}

fn kind_of_status(status: StatusCode) -> (ErrorKind, &'static str) {
    match status.as_u16() {
        401 | 403 | 407 | 419 => (ErrorKind::Storage, "check the credentials of the catalog"),
        404 => (ErrorKind::NotFound, ""),
        405 | 406 | 501 => (ErrorKind::Unsupported, ""),
        408 | 409 | 425 | 429 | 500.. => (ErrorKind::Unavailable, "try again"),
        300..=399 => (ErrorKind::Invalid, "check the address of the catalog"),
        _ => (ErrorKind::Invalid, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_passwords_and_tokens() {
        let url = Url::parse("https://me:hunter2@example.org:8181/v1/config?token=hunter2#hunter2").unwrap();
        assert_eq!(shown(&url), "https://example.org:8181/v1/config");
    }

    #[test]
    fn a_status_says_whether_a_retry_can_help() {
        let check = |kind: ErrorKind, codes: &[u16]| {
            for code in codes {
                assert_eq!(kind_of_status(StatusCode::from_u16(*code).unwrap()).0, kind, "{code}");
            }
        };
        check(ErrorKind::Unavailable, &[408, 409, 429, 500, 502, 503, 504]);
        check(ErrorKind::Storage, &[401, 403]);
        check(ErrorKind::Invalid, &[302, 400, 422]);
        check(ErrorKind::NotFound, &[404]);
        check(ErrorKind::Unsupported, &[405, 501]);
    }

    #[tokio::test]
    async fn what_does_not_answer_can_be_asked_again() {
        // Nobody listens on a port that was given back.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let asked = reqwest::get(format!("http://me:hunter2@{free}/v1/config?token=hunter2")).await;
        let error = asked.doing("ask the catalog").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = format!("{error:?}");
        assert!(text.contains(&format!("http://{free}/v1/config")) && !text.contains("hunter2"), "{text}");
    }
}
