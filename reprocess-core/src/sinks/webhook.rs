//! Deliveries as requests to a web server.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url, redirect};

use super::document;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::delivery::{Answer, Delivery, DeliverySink, Known};

/// How long the whole exchange may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Posts each delivery to an address as one JSON document (`key`, `channel`, `payload`), with the key as the header
/// `Idempotency-Key`.
///
/// An answer of 200 to 299 confirms it. 408, 425 and 429, and a server that is not there, ask to be tried again; other
/// answers below 500 refuse it. After everything else it is not known whether it was received.
#[derive(Clone)]
pub struct WebhookSink {
    channel: String,
    url: Url,
    headers: HeaderMap,
    client: Client,
    drops_repeats: bool,
}

impl fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Paths and headers often hold secrets.
        f.debug_struct("WebhookSink")
            .field("channel", &self.channel)
            .field("host", &self.url.host_str())
            .finish_non_exhaustive()
    }
}

impl WebhookSink {
    /// A sink of a channel that posts to an address.
    pub fn new(channel: impl Into<String>, url: &str) -> Result<Self> {
        let refuse = |why: String| {
            Error::invalid("the address of a webhook is not right")
                .with_source(why)
                .with_advice("it is like https://example.com/hook")
        };
        let url: Url = url.parse().map_err(|e: <Url as std::str::FromStr>::Err| refuse(e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refuse(format!("the scheme is {}", url.scheme())));
        }
        let client = Client::builder().timeout(PATIENCE).redirect(redirect::Policy::none()).build();
        let client = client.map_err(|e| Error::internal("no client for webhooks").with_source(e))?;
        Ok(Self { channel: channel.into(), url, headers: HeaderMap::new(), client, drops_repeats: false })
    }

    /// Adds a header, for example `authorization`. Its value is never shown.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self> {
        let refuse = || Error::invalid("a header of a webhook is not right").with_context("header", name);
        let name: HeaderName = name.parse().map_err(|_| refuse())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| refuse())?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Says that the receiver drops what has an `Idempotency-Key` that it knows, so that what may have been sent is sent
    /// again, and nothing is left to a person.
    #[must_use]
    pub fn to_a_receiver_that_drops_repeats(mut self) -> Self {
        self.drops_repeats = true;
        self
    }

    fn said(&self, status: u16) -> String {
        format!("{} answered {status}", self.url.host_str().unwrap_or_default())
    }
}

#[async_trait]
impl DeliverySink for WebhookSink {
    fn channel(&self) -> &str {
        &self.channel
    }

    async fn send(&self, delivery: &Delivery) -> Result<Answer> {
        let Ok(key) = HeaderValue::from_str(&delivery.key) else {
            return Ok(Answer::Refused { why: "the key cannot stand in a header".to_owned() });
        };
        let request = self.client.post(self.url.clone()).headers(self.headers.clone());
        let request = request.header("idempotency-key", key).header(CONTENT_TYPE, "application/json");
        let answer = match request.body(document(delivery)?).send().await {
            Ok(answer) => answer,
            Err(error) => {
                let connected = !error.is_connect();
                let error = Error::new(ErrorKind::Unavailable, "the receiver did not answer")
                    .with_context("host", self.url.host_str().unwrap_or_default())
                    .with_source(error.without_url());
                return if connected { Err(error) } else { Ok(Answer::Busy { why: error.to_string() }) };
            }
        };
        let status = answer.status().as_u16();
        match status {
            200..=299 => Ok(Answer::Accepted { note: None }),
            408 | 425 | 429 => Ok(Answer::Busy { why: self.said(status) }),
            300..=499 => Ok(Answer::Refused { why: self.said(status) }),
            _ => Err(Error::new(ErrorKind::Unavailable, self.said(status))),
        }
    }

    async fn ask(&self, _delivery: &Delivery) -> Result<Known> {
        Ok(if self.drops_repeats { Known::NotReceived } else { Known::CannotTell })
    }
}

#[cfg(test)]
#[path = "webhook_tests.rs"]
mod tests;
