//! What only a server does.

use std::time::Duration;

use axum::http::Method;
use serde_json::json;

use super::rest_server::{Fault, On, RestServer, Rules};
use super::*;

const SECRET: &str = "hunter2-hunter2";

fn no_patience(config: RestConfig) -> RestConfig {
    config.with_retry_timeout_ms(0)
}

async fn refused(rules: Rules, with: impl FnOnce(RestConfig) -> RestConfig) -> reprocess_core::Error {
    let folder = TempDir::new().unwrap();
    let server = RestServer::start_with(folder.path(), rules).await;
    IcebergCatalog::rest(with(RestConfig::new(server.uri()))).await.unwrap_err()
}

#[tokio::test]
async fn a_token_opens_the_catalog_and_no_other_does() {
    let rules = || Rules { token: Some(SECRET), ..Rules::default() };
    let place = Place::behind(rules(), |config| config.with_token(SECRET)).await;
    place.create(&orders(), &[]).await.unwrap();
    for with in [|config: RestConfig| config, |config: RestConfig| config.with_token("another-token")] {
        let error = refused(rules(), with).await;
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(!error.to_string().contains("another-token"), "{error}");
    }
}

#[tokio::test]
async fn a_token_is_fetched_with_the_credential_and_again_when_it_is_no_longer_taken() {
    let rules = Rules { client: Some(("me", SECRET, 3_600)), ..Rules::default() };
    let credential = format!("me:{SECRET}");
    let place = Place::behind(rules, |config| config.with_credential(&credential).with_scope("all")).await;
    let server = place.server.as_ref().unwrap();
    let base = place.create(&orders(), &[]).await.unwrap();
    assert_eq!(server.count(&Method::POST, "/oauth/tokens"), 1);
    server.forget_tokens();
    let base = done(place.change(&orders(), append(&base, 1)).await);
    assert_eq!(server.count(&Method::POST, "/oauth/tokens"), 2);
    // Those who need one at once fetch one.
    server.forget_tokens();
    let orders = orders();
    let (first, second) = tokio::join!(place.load(&orders), place.load(&orders));
    assert_eq!(
        (first.unwrap().metadata, second.unwrap().metadata),
        (base.metadata.clone(), base.metadata.clone())
    );
    assert_eq!(server.count(&Method::POST, "/oauth/tokens"), 3);
}

#[tokio::test]
async fn a_token_that_has_run_out_is_not_sent() {
    let rules = Rules { client: Some(("me", SECRET, 0)), ..Rules::default() };
    let place = Place::behind(rules, |config| config.with_credential(format!("me:{SECRET}"))).await;
    let server = place.server.as_ref().unwrap();
    let before = server.count(&Method::POST, "/oauth/tokens");
    assert!(place.load(&orders()).await.is_none());
    assert!(place.load(&orders()).await.is_none());
    assert_eq!(server.count(&Method::POST, "/oauth/tokens"), before + 2);
}

#[tokio::test]
async fn no_secret_is_in_an_error_although_the_server_repeats_it() {
    let rules = || Rules { client: Some(("me", "another", 3_600)), ..Rules::default() };
    let credential = format!("me:{SECRET}");
    let error = refused(rules(), |config| config.with_credential(&credential)).await;
    assert_eq!(error.kind(), ErrorKind::Storage);
    let shown = format!("{error:?}");
    assert!(shown.contains("no token: invalid_client: not valid") && !shown.contains(SECRET), "{shown}");
}

#[tokio::test]
async fn a_server_of_tokens_that_is_down_is_asked_again() {
    let rules = Rules { client: Some(("me", SECRET, 3_600)), ..Rules::default() };
    let place = Place::behind(rules, |config| config.with_credential(format!("me:{SECRET}"))).await;
    let server = place.server.as_ref().unwrap();
    server.forget_tokens();
    server.fail(On::Token, Fault::Before(503));
    assert!(place.load(&orders()).await.is_none());
}

#[tokio::test]
async fn the_prefix_and_the_headers_that_the_server_says_go_with_every_request() {
    let overrides = [("header.X-Region", "eu".to_owned()), ("namespace-separator", "%1F".to_owned())].into();
    let rules = Rules { prefix: Some("lakes/one"), overrides, ..Rules::default() };
    let place =
        Place::behind(rules, |config| config.with_warehouse("w & w").with_header("X-Team", "data")).await;
    place.create(&orders(), &[]).await.unwrap();
    let seen = place.server.as_ref().unwrap().seen();
    assert_eq!(seen[0].path, "/v1/config?warehouse=w+%26+w");
    for seen in &seen[1..] {
        assert!(seen.path.starts_with("/v1/lakes/one/namespaces"), "{}", seen.path);
        assert_eq!(seen.headers["x-iceberg-access-delegation"], "vended-credentials");
        assert_eq!(
            (&seen.headers["x-region"], &seen.headers["x-team"]),
            (&"eu".parse().unwrap(), &"data".parse().unwrap())
        );
    }
}

#[tokio::test]
async fn a_namespace_is_made_with_those_above_it() {
    let place = Place::behind(Rules { needs_parents: true, ..Rules::default() }, |config| config).await;
    let deep = TableIdent::from_strs(["a", "b", "c", "orders"]).unwrap();
    place.create(&deep, &[]).await.unwrap();
    let paths: Vec<_> = place.server.as_ref().unwrap().seen().into_iter().map(|seen| seen.path).collect();
    assert!(paths.iter().any(|path| path == "/v1/namespaces/a%1Fb%1Fc/tables"), "{paths:?}");
    assert!(place.load(&deep).await.is_some());
}

#[tokio::test]
async fn credentials_of_the_nearest_prefix_come_with_a_table_and_always_the_newest() {
    let place = Place::behind_rest().await;
    let server = place.server.as_ref().unwrap();
    let made = place.create(&orders(), &[]).await.unwrap();
    let location = made.metadata.location();
    server.vend(
        json!({ "s3.region": "eu", "s3.access-key-id": "of the catalog", "client.retries": 3 }),
        json!([
            { "prefix": "/", "config": { "s3.access-key-id": "of all" } },
            { "prefix": location, "config": { "s3.access-key-id": "of the table" } },
            { "prefix": format!("{location}/elsewhere"), "config": { "s3.access-key-id": "of another" } },
        ]),
    );
    let loaded = place.load(&orders()).await.unwrap();
    let expected = [("client.retries", "3"), ("s3.access-key-id", "of the table"), ("s3.region", "eu")];
    let config = |loaded: &Loaded| loaded.config.clone().into_iter().collect::<Vec<_>>();
    assert_eq!(config(&loaded), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let changed = done(place.change(&orders(), append(&loaded, 1)).await);
    assert_eq!(changed.config, loaded.config);
    server.vend(json!({ "s3.access-key-id": "renewed" }), json!([]));
    let renewed = config(&place.load(&orders()).await.unwrap());
    assert_eq!(renewed, [("s3.access-key-id".to_owned(), "renewed".to_owned())]);
}

#[tokio::test]
async fn a_table_that_comes_with_a_token_is_changed_with_it() {
    let place = Place::behind_rest().await;
    let server = place.server.as_ref().unwrap();
    server.vend(json!({ "token": "of-this-table" }), json!([]));
    let base = place.create(&orders(), &[]).await.unwrap();
    done(place.change(&orders(), append(&base, 1)).await);
    let seen = server.seen().pop().unwrap();
    assert_eq!(seen.headers["authorization"], "Bearer of-this-table");
}

#[tokio::test]
async fn a_conflict_that_the_server_says_did_not_happen() {
    let place = Place::behind_rest().await;
    let base = place.create(&orders(), &[]).await.unwrap();
    place.server.as_ref().unwrap().fail(On::Change, Fault::Before(409));
    let answer = place.change(&orders(), append(&base, 1)).await.unwrap();
    assert!(matches!(answer, Answer::CameFirst), "{answer:?}");
    assert!(history(&place.load(&orders()).await.unwrap().metadata).is_empty());
}

#[tokio::test]
async fn a_conflict_with_what_was_sent_before_is_none() {
    let place = Place::behind_rest().await;
    let base = place.create(&orders(), &[]).await.unwrap();
    // As where something between sends a request twice.
    place.server.as_ref().unwrap().fail(On::Change, Fault::After(409));
    let loaded = done(place.change(&orders(), append(&base, 1)).await);
    assert_eq!(history(&loaded.metadata), [1]);
}

#[tokio::test]
async fn whether_a_change_happened_is_not_known_when_the_server_fails() {
    let faults = [
        (Fault::Before(500), false),
        (Fault::After(500), true),
        (Fault::Before(502), false),
        (Fault::After(504), true),
        (Fault::LostReply, true),
    ];
    for (fault, happened) in faults {
        let place = Place::behind_rest().await;
        let server = place.server.as_ref().unwrap();
        let base = place.create(&orders(), &[]).await.unwrap();
        server.fail(On::Change, fault);
        let error = place.change(&orders(), append(&base, 1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error}");
        assert!(error.is_retryable() && error.to_string().contains("it may have happened"), "{error}");
        assert_eq!(server.count(&Method::POST, "/tables/orders"), 1, "{fault:?}");
        let now = place.load(&orders()).await.unwrap();
        assert_eq!(now.metadata.snapshot_by_id(1).is_some(), happened, "{fault:?}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let place = Place::behind(Rules::default(), |config| config.with_timeout_ms(200)).await;
    let base = place.create(&orders(), &[]).await.unwrap();
    place.server.as_ref().unwrap().fail(On::Change, Fault::Silence);
    let error = place.change(&orders(), append(&base, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(history(&place.load(&orders()).await.unwrap().metadata), [1]);
}

#[tokio::test]
async fn a_busy_server_is_asked_again_after_the_time_that_it_says() {
    let place = Place::behind_rest().await;
    let server = place.server.as_ref().unwrap();
    let base = place.create(&orders(), &[]).await.unwrap();
    for status in [429, 503] {
        server.fail(On::Change, Fault::Busy { status, after_all: false, retry_after: 1 });
    }
    let started = tokio::time::Instant::now();
    done(place.change(&orders(), append(&base, 1)).await);
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(server.count(&Method::POST, "/tables/orders"), 3);
}

#[tokio::test]
async fn a_busy_server_that_has_done_it_is_found_out() {
    let place = Place::behind_rest().await;
    let base = place.create(&orders(), &[]).await.unwrap();
    let server = place.server.as_ref().unwrap();
    server.fail(On::Change, Fault::Busy { status: 503, after_all: true, retry_after: 0 });
    let base = done(place.change(&orders(), append(&base, 1)).await);
    assert_eq!(history(&base.metadata), [1]);
    // Without a snapshot it cannot be known.
    server.fail(On::Change, Fault::Busy { status: 503, after_all: true, retry_after: 0 });
    let tag = TableUpdate::SetSnapshotRef {
        ref_name: "kept".to_owned(),
        reference: SnapshotReference::new(1, SnapshotRetention::Tag { max_ref_age_ms: None }),
    };
    let requirement = TableRequirement::RefSnapshotIdMatch { r#ref: "kept".to_owned(), snapshot_id: None };
    let proposal = Proposal { base: &base, requirements: vec![requirement], updates: vec![tag], told: None };
    let error = place.change(&orders(), proposal).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_server_is_not_asked_for_longer_than_it_is_to_be() {
    let place = Place::behind(Rules::default(), no_patience).await;
    let server = place.server.as_ref().unwrap();
    let base = place.create(&orders(), &[]).await.unwrap();
    server.fail(On::Change, Fault::Busy { status: 429, after_all: false, retry_after: 60 });
    let error = place.change(&orders(), append(&base, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!error.to_string().contains("may have happened"), "{error}");
}

#[tokio::test]
async fn a_read_is_tried_again_whatever_went_wrong_and_a_change_is_not() {
    let place = Place::behind_rest().await;
    let server = place.server.as_ref().unwrap();
    let base = place.create(&orders(), &[]).await.unwrap();
    for fault in [Fault::Before(500), Fault::Before(502), Fault::LostReply] {
        server.fail(On::Load, fault);
    }
    assert_eq!(place.load(&orders()).await.unwrap().metadata, base.metadata);
    server.fail(On::Create, Fault::LostReply);
    let other = TableIdent::from_strs(["shop", "other"]).unwrap();
    let lost = place.catalog.inner().create(&other, creation(&[]), &place.stores).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Unavailable);
    assert!(place.load(&other).await.is_some() && place.create(&other, &[]).await.is_none());
}

#[tokio::test]
async fn a_change_of_a_table_that_is_gone_did_not_happen() {
    let place = Place::behind_rest().await;
    let server = place.server.as_ref().unwrap();
    let base = place.create(&orders(), &[]).await.unwrap();
    let gone = reqwest::Client::new().delete(format!("{}/v1/namespaces/shop/tables/orders", server.uri()));
    assert!(gone.send().await.unwrap().status().is_success());
    let error = place.change(&orders(), append(&base, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test]
async fn a_table_of_a_newer_format_is_refused_by_name() {
    let place = Place::behind_rest().await;
    let server = place.server.as_ref().unwrap();
    place.create(&orders(), &[]).await.unwrap();
    for (answer, kind, word) in [
        (r#"{ "metadata": { "format-version": 4 } }"#, ErrorKind::Unsupported, "format version 4"),
        (r#"{ "metadata": { "format-version": 3 } }"#, ErrorKind::Corrupt, "no table"),
        ("{", ErrorKind::Corrupt, "no table"),
    ] {
        server.fail(On::Load, Fault::Instead(answer));
        let error = place.catalog.inner().load(&orders(), &place.stores).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_can_be_asked_later() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = no_patience(RestConfig::new(format!("http://{free}"))).with_token(SECRET);
    let error = IcebergCatalog::rest(config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!error.to_string().contains(SECRET), "{error}");
}

#[tokio::test]
async fn a_catalog_is_shown_without_secrets() {
    let rules = Rules { token: Some(SECRET), ..Rules::default() };
    let place = Place::behind(rules, |config| config.with_token(SECRET).with_header("X-Key", SECRET)).await;
    let shown = format!("{:?}", place.catalog);
    assert!(shown.contains(&place.server.as_ref().unwrap().uri()) && !shown.contains(SECRET), "{shown}");
}
