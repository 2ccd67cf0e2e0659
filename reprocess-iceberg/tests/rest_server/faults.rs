//! What goes wrong between a client and the catalog.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Method;
use axum::response::Response;

use super::no;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Change,
    Create,
    Load,
    Token,
}

impl On {
    pub(super) fn of(method: &Method, path: &[&str]) -> Option<Self> {
        match (method.as_str(), path) {
            ("POST", ["namespaces", _, "tables", _]) => Some(Self::Change),
            ("POST", ["namespaces", _, "tables"]) => Some(Self::Create),
            ("GET", ["namespaces", _, "tables", _]) => Some(Self::Load),
            ("POST", ["oauth", "tokens"]) => Some(Self::Token),
            _ => None,
        }
    }
}

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It is answered with a status, and not carried out.
    Before(u16),
    /// It is carried out, and answered with a status.
    After(u16),
    /// The same with seconds after which to ask again; whether it was carried out after all.
    Busy { status: u16, after_all: bool, retry_after: u64 },
    /// It is carried out, and the answer breaks off.
    LostReply,
    /// It is carried out, and there is no answer.
    Silence,
    /// It is not carried out, and answered as if it had been, with this.
    Instead(&'static str),
}

impl Fault {
    pub(super) async fn reply(self, carried_out: impl Future<Output = Response>) -> Response {
        match self {
            Self::Before(status) => no(status, "Fault", "it was not carried out"),
            Self::After(status) => {
                carried_out.await;
                no(status, "Fault", "it was carried out")
            }
            Self::Busy { status, after_all, retry_after } => {
                if after_all {
                    carried_out.await;
                }
                let mut response = no(status, "Fault", "try again");
                response.headers_mut().insert("retry-after", retry_after.into());
                response
            }
            Self::LostReply => {
                let mut response = carried_out.await;
                let parts =
                    [Ok(Bytes::from_static(b"{\"metadata-location\":")), Err(std::io::Error::other("lost"))];
                *response.body_mut() = Body::from_stream(futures::stream::iter(parts));
                response
            }
            Self::Silence => {
                carried_out.await;
                tokio::time::sleep(Duration::from_secs(600)).await;
                no(504, "Fault", "too late")
            }
            Self::Instead(json) => Response::new(Body::from(json)),
        }
    }
}
