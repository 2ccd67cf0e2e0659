//! A REST catalog of Iceberg in this process, with rules and faults that tests choose.
//!
//! It checks requirements and applies updates with what the library has for both, and writes metadata files as others do.
//! Whoever wants it says `#[path = "…/rest_server/server.rs"] mod rest_server;`.
#![allow(dead_code, reason = "each of those who share it uses a part")]

mod auth;
mod faults;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use auth::Tokens;
pub(crate) use faults::{Fault, On};
use tables::Tables;

/// How a server behaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// The token that is asked for, where it is always the same one.
    pub(crate) token: Option<&'static str>,
    /// Whom tokens are given to, and for how many seconds.
    pub(crate) client: Option<(&'static str, &'static str, u64)>,
    /// What stands after `/v1` in paths.
    pub(crate) prefix: Option<&'static str>,
    /// Further settings that override those of clients.
    pub(crate) overrides: BTreeMap<&'static str, String>,
    /// Whether a namespace can only be made in one that is there.
    pub(crate) needs_parents: bool,
}

/// What a request was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    /// As it came, encoded, with the query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
}

/// A server; it ends as it is dropped.
pub(crate) struct RestServer {
    uri: String,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    rules: Rules,
    tables: Tables,
    tokens: Tokens,
    faults: Mutex<Vec<(On, Fault)>>,
    seen: Mutex<Vec<Seen>>,
    /// What comes with a table that is loaded.
    vended: Mutex<(Value, Value)>,
}

impl RestServer {
    /// One that asks nothing of its clients. New tables are made in folders of a folder.
    pub(crate) async fn start(warehouse: &Path) -> Self {
        Self::start_with(warehouse, Rules::default()).await
    }

    pub(crate) async fn start_with(warehouse: &Path, rules: Rules) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            tables: Tables::new(warehouse),
            tokens: Tokens::new(&rules),
            rules,
            faults: Mutex::default(),
            seen: Mutex::default(),
            vended: Mutex::new((json!({}), json!([]))),
        });
        let app = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { uri, shared, serving }
    }

    /// Where it is, without `/v1`.
    pub(crate) fn uri(&self) -> String {
        self.uri.clone()
    }

    /// What happens to the next request of a kind, after those that were said before.
    pub(crate) fn fail(&self, on: On, fault: Fault) {
        self.shared.faults.lock().unwrap().push((on, fault));
    }

    /// No token that was given is valid any more.
    pub(crate) fn forget_tokens(&self) {
        self.shared.tokens.forget();
    }

    /// What comes with tables from now on: `config` and `storage-credentials`.
    pub(crate) fn vend(&self, config: Value, storage_credentials: Value) {
        *self.shared.vended.lock().unwrap() = (config, storage_credentials);
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// How many requests there were of a method, to a path that ends so.
    pub(crate) fn count(&self, method: &Method, end: &str) -> usize {
        let is_one =
            |seen: &&Seen| seen.method == *method && seen.path.split('?').next().unwrap().ends_with(end);
        self.seen().iter().filter(is_one).count()
    }
}

impl Drop for RestServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let path = head.uri.path_and_query().unwrap().as_str().to_owned();
    shared.seen.lock().unwrap().push(Seen {
        method: head.method.clone(),
        path,
        headers: head.headers.clone(),
    });
    let path: Vec<String> = head.uri.path().split('/').skip(1).map(decoded).collect();
    let Some(path) = shared.below_prefix(&path) else { return no(404, "NotFound", "there is no such path") };
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let fault = shared.next_fault(On::of(&head.method, &path));
    let carried_out = carry_out(&shared, &head.method, &head.headers, &path, &body);
    match fault {
        Some(fault) => fault.reply(carried_out).await,
        None => carried_out.await,
    }
}

async fn carry_out(
    shared: &Shared,
    method: &Method,
    headers: &HeaderMap,
    path: &[&str],
    body: &Bytes,
) -> Response {
    match path {
        ["oauth", "tokens"] => shared.tokens.grant(body),
        _ if !shared.tokens.accept(headers) => no(401, "NotAuthorizedException", "the token is not valid"),
        ["config"] => shared.settings(),
        _ => shared.serve(method, path, body).await,
    }
}

impl Shared {
    /// What follows `v1` and the prefix; `config` and `oauth` come before it.
    fn below_prefix<'a>(&self, path: &'a [String]) -> Option<&'a [String]> {
        let path = path.strip_prefix(&["v1".to_owned()])?;
        let first = path.first()?;
        match self.rules.prefix {
            Some(prefix) if first != "config" && first != "oauth" => {
                let prefix: Vec<String> = prefix.split('/').map(str::to_owned).collect();
                path.strip_prefix(&prefix[..])
            }
            _ => Some(path),
        }
    }

    fn next_fault(&self, on: Option<On>) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let at = faults.iter().position(|(kind, _)| Some(*kind) == on)?;
        Some(faults.remove(at).1)
    }

    fn settings(&self) -> Response {
        let mut overrides: BTreeMap<&str, String> = self.rules.overrides.clone();
        overrides.extend(self.rules.prefix.map(|prefix| ("prefix", prefix.to_owned())));
        yes(&json!({ "defaults": {}, "overrides": overrides }))
    }

    async fn serve(&self, method: &Method, path: &[&str], body: &Bytes) -> Response {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let levels = |namespace: &str| namespace.split('\u{1f}').map(str::to_owned).collect::<Vec<_>>();
        match (method.as_str(), path) {
            ("POST", ["namespaces"]) => self.tables.make_namespace(&body, self.rules.needs_parents).await,
            ("GET" | "HEAD", ["namespaces", namespace]) => self.tables.namespace(&levels(namespace)).await,
            ("GET", ["namespaces", namespace, "tables"]) => self.tables.list(&levels(namespace)).await,
            ("POST", ["namespaces", namespace, "tables"]) => {
                self.vended(self.tables.make(levels(namespace), &body).await)
            }
            ("GET" | "HEAD", ["namespaces", namespace, "tables", table]) => {
                self.vended(self.tables.load(&levels(namespace), table).await)
            }
            ("POST", ["namespaces", namespace, "tables", table]) => {
                tables::answered(self.tables.change(&levels(namespace), table, body).await)
            }
            ("DELETE", ["namespaces", namespace, "tables", table]) => {
                self.tables.remove(&levels(namespace), table).await
            }
            ("POST", ["namespaces", _, "tables", _, "metrics"]) => status(204),
            _ => no(404, "NotFound", "there is no such path"),
        }
    }

    fn vended(&self, found: Result<Value, Response>) -> Response {
        tables::answered(found.map(|mut found| {
            let (config, credentials) = self.vended.lock().unwrap().clone();
            found["config"] = config;
            found["storage-credentials"] = credentials;
            found
        }))
    }
}

fn decoded(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8().unwrap().into_owned()
}

fn yes(body: &Value) -> Response {
    with_body(StatusCode::OK, body)
}

fn no(status: u16, kind: &str, message: &str) -> Response {
    let error = json!({ "error": { "message": message, "type": kind, "code": status } });
    with_body(StatusCode::from_u16(status).unwrap(), &error)
}

fn status(status: u16) -> Response {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

fn with_body(status: StatusCode, body: &Value) -> Response {
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(Body::from(body.to_string())).unwrap()
}
