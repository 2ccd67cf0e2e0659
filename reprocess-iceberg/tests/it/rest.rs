//! Tables of a REST catalog where something goes wrong in between.

use axum::http::Method;
use reprocess_core::ErrorKind;
use reprocess_core::ports::writer::{CommitOutcome, Intent, PartitionWriter};
use reprocess_iceberg::{IcebergCatalog, IcebergTable, RestConfig};
use tempfile::TempDir;

use crate::catalogs::{replace, rows};
use crate::rest_server::{Fault, On, RestServer, Rules};
use crate::support::*;

struct Behind {
    server: RestServer,
    table: IcebergTable,
    _folder: TempDir,
}

impl Behind {
    async fn new() -> Self {
        Self::with(Rules::default(), |config| config).await
    }

    async fn with(rules: Rules, with: impl FnOnce(RestConfig) -> RestConfig) -> Self {
        let folder = TempDir::new().unwrap();
        let server = RestServer::start_with(&folder.path().join("warehouse"), rules).await;
        let catalog = IcebergCatalog::rest(with(RestConfig::new(server.uri()))).await.unwrap();
        let table = IcebergTable::open(&catalog, NAME, spec()).unwrap();
        table.create(&columns()).await.unwrap();
        done(replace(&table, "given", &days(&[MON]), &[(MON, None, 1, 10)]).await);
        Self { server, table, _folder: folder }
    }

    /// Snapshots of the table, as the server has them.
    async fn snapshots(&self) -> usize {
        let table =
            reqwest::get(format!("{}/v1/namespaces/shop/tables/sales", self.server.uri())).await.unwrap();
        let table: serde_json::Value = table.json().await.unwrap();
        table["metadata"]["snapshots"].as_array().unwrap().len()
    }
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found_and_made_once() {
    let faults = [
        Fault::After(500),
        Fault::After(502),
        Fault::After(504),
        Fault::After(409),
        Fault::LostReply,
        Fault::Busy { status: 503, after_all: true, retry_after: 0 },
    ];
    for fault in faults {
        let behind = Behind::new().await;
        behind.server.fail(On::Change, fault);
        done(replace(&behind.table, "fix", &days(&[MON]), &[(MON, None, 1, 11)]).await);
        assert_eq!(rows(&behind.table).await, texts(&[(MON, None, 1, 11)]), "{fault:?}");
        assert_eq!(behind.snapshots().await, 2, "{fault:?}");
    }
}

#[tokio::test]
async fn a_commit_that_did_not_happen_is_an_error_and_can_be_made_again() {
    for fault in [Fault::Before(500), Fault::Before(504)] {
        let behind = Behind::new().await;
        let scope = days(&[MON]);
        let staged =
            stage(&behind.table, "fix", &scope, Intent::Replace, batch(&[(MON, None, 1, 11)])).await.unwrap();
        let base = behind.table.head(&scope).await.unwrap();
        behind.server.fail(On::Change, fault);
        let error = commit(&behind.table, &[apply(&staged)], &base).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}");
        assert_eq!(rows(&behind.table).await, texts(&[(MON, None, 1, 10)]), "{fault:?}");
        done(commit(&behind.table, &[apply(&staged)], &base).await.unwrap());
        assert_eq!(rows(&behind.table).await, texts(&[(MON, None, 1, 11)]), "{fault:?}");
        assert_eq!(behind.snapshots().await, 2, "{fault:?}");
    }
}

#[tokio::test]
async fn conflicts_are_tried_again_without_writing_rows_again() {
    let behind = Behind::new().await;
    for _ in 0..3 {
        behind.server.fail(On::Change, Fault::Before(409));
    }
    done(replace(&behind.table, "fix", &days(&[TUE]), &[(TUE, None, 2, 20)]).await);
    assert_eq!(rows(&behind.table).await, texts(&[(MON, None, 1, 10), (TUE, None, 2, 20)]));
    assert_eq!(behind.snapshots().await, 2);
}

#[tokio::test]
async fn tokens_that_run_out_in_the_middle_are_fetched_again() {
    let rules = Rules { client: Some(("me", "its secret", 3_600)), prefix: Some("lake"), ..Rules::default() };
    let behind = Behind::with(rules, |config| config.with_credential("me:its secret")).await;
    let scope = days(&[MON]);
    let staged =
        stage(&behind.table, "fix", &scope, Intent::Replace, batch(&[(MON, None, 1, 11)])).await.unwrap();
    let base = behind.table.head(&scope).await.unwrap();
    behind.server.forget_tokens();
    let outcome = commit(&behind.table, &[apply(&staged)], &base).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Committed(_)), "{outcome:?}");
    assert_eq!(behind.server.count(&Method::POST, "/oauth/tokens"), 2);
}
