use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap as Headers, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::post;
use serde_json::{Value, json};

use super::*;

type Seen = Arc<Mutex<Vec<(Headers, Value)>>>;

/// A server whose paths answer with their number.
async fn server() -> (String, Seen) {
    let seen = Seen::default();
    async fn answer(
        State(seen): State<Seen>,
        axum::extract::Path(status): axum::extract::Path<u16>,
        headers: Headers,
        body: String,
    ) -> Response {
        seen.lock().unwrap().push((headers, serde_json::from_str(&body).unwrap()));
        match status {
            307 => Redirect::temporary("/200").into_response(),
            status => StatusCode::from_u16(status).unwrap().into_response(),
        }
    }
    let app = Router::new().route("/{status}", post(answer)).with_state(Arc::clone(&seen));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, seen)
}

fn mail() -> Delivery {
    Delivery { key: "mail-1".to_owned(), channel: "mail".to_owned(), payload: json!({ "to": "ada" }) }
}

#[tokio::test]
async fn the_answer_says_whether_it_was_received() {
    let (address, seen) = server().await;
    let send = async |path: &str| {
        WebhookSink::new("mail", &format!("{address}/{path}")).unwrap().send(&mail()).await
    };
    for path in ["200", "202", "204"] {
        assert_eq!(send(path).await.unwrap(), Answer::Accepted { note: None });
    }
    for path in ["408", "425", "429"] {
        assert_eq!(send(path).await.unwrap(), Answer::Busy { why: format!("127.0.0.1 answered {path}") });
    }
    for path in ["307", "400", "401", "404", "410", "422"] {
        assert_eq!(send(path).await.unwrap(), Answer::Refused { why: format!("127.0.0.1 answered {path}") });
    }
    for path in ["500", "502", "503", "504"] {
        assert!(send(path).await.unwrap_err().is_retryable(), "{path}");
    }
    let all = seen.lock().unwrap().clone();
    assert_eq!(all.len(), 16, "no redirect is followed");
    let (headers, body) = &all[0];
    assert_eq!(*body, json!({ "key": "mail-1", "channel": "mail", "payload": { "to": "ada" } }));
    assert_eq!(
        (&headers["idempotency-key"], &headers["content-type"]),
        (&"mail-1".parse().unwrap(), &"application/json".parse().unwrap())
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_has_received_nothing() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let sink = WebhookSink::new("mail", &format!("http://{free}/hook/s3cret")).unwrap();
    let Answer::Busy { why } = sink.send(&mail()).await.unwrap() else { panic!("nobody is there") };
    assert!(!why.contains("s3cret"), "{why}");
}

/// The connection ends after the request.
#[tokio::test]
async fn what_is_cut_off_may_have_been_received() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        stream.readable().await.unwrap();
        drop(stream);
    });
    let sink = WebhookSink::new("mail", &format!("http://{address}/hook/s3cret")).unwrap();
    let error = sink.send(&mail()).await.unwrap_err();
    assert!(error.is_retryable() && !format!("{error:?}").contains("s3cret"), "{error:?}");
    assert_eq!(sink.ask(&mail()).await.unwrap(), Known::CannotTell);
    let sink = sink.to_a_receiver_that_drops_repeats();
    assert_eq!(sink.ask(&mail()).await.unwrap(), Known::NotReceived);
}

#[tokio::test]
async fn headers_go_along_and_are_not_shown() {
    let (address, seen) = server().await;
    let sink = WebhookSink::new("mail", &format!("{address}/200?token=s3cret")).unwrap();
    let sink = sink.with_header("Authorization", "Bearer hunter2").unwrap();
    let _ = sink.send(&mail()).await.unwrap();
    assert_eq!(seen.lock().unwrap()[0].0["authorization"], "Bearer hunter2");
    let shown = format!("{sink:?}");
    assert!(
        shown.contains("127.0.0.1") && !shown.contains("hunter2") && !shown.contains("s3cret"),
        "{shown}"
    );
    for (url, header) in
        [("ftp://example.com/s3cret", None), ("no address", None), ("http://x", Some("a\nb"))]
    {
        let made = WebhookSink::new("mail", url);
        let error = match header {
            None => made.unwrap_err(),
            Some(value) => made.unwrap().with_header("x", value).unwrap_err(),
        };
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
    let odd = Delivery { key: "line\nbreak".to_owned(), ..mail() };
    assert!(matches!(sink.send(&odd).await.unwrap(), Answer::Refused { .. }));
}
