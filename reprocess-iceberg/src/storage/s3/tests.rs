use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use object_store::path::Path;

use super::*;
use crate::error::Doing;

fn settings(pairs: &[(&str, &str)]) -> Settings {
    Settings::new(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}

fn check(pairs: &[(&str, &str)], said: &[(Key, &str)]) {
    let builder = builder("tables", &settings(pairs)).unwrap();
    for (key, value) in said {
        assert_eq!(builder.get_config_value(key).as_deref(), Some(*value), "{key:?}");
    }
}

#[test]
fn settings_come_under_the_names_of_iceberg() {
    check(
        &[
            ("s3.access-key-id", "id"),
            ("s3.secret-access-key", "secret"),
            ("s3.session-token", "token"),
            ("s3.region", "eu-north-1"),
            ("client.region", "us-east-1"),
        ],
        &[
            (Key::Bucket, "tables"),
            (Key::AccessKeyId, "id"),
            (Key::SecretAccessKey, "secret"),
            (Key::Token, "token"),
            (Key::Region, "eu-north-1"),
        ],
    );
    check(&[("client.region", "eu-north-1")], &[(Key::Region, "eu-north-1")]);
    check(&[("s3.anonymous", "True")], &[(Key::SkipSignature, "true")]);
}

#[test]
fn a_bucket_is_part_of_the_path_or_of_the_host() {
    let endpoint = ("s3.endpoint", "http://store:9000");
    let in_path = [(Key::VirtualHostedStyleRequest, "false"), (Key::S3Endpoint, "http://store:9000")];
    check(&[endpoint], &in_path);
    check(&[endpoint, ("s3.path-style-access", "true")], &in_path);
    let in_host = [(Key::VirtualHostedStyleRequest, "true"), (Key::S3Endpoint, "http://tables.store:9000")];
    check(&[endpoint, ("s3.path-style-access", "false")], &in_host);
    check(&[endpoint, ("s3.force-virtual-addressing", "true")], &in_host);
}

#[test]
fn encryption_is_said_in_the_words_of_java_or_of_pyiceberg() {
    let (kind, key) = (ENCRYPTION.parse().unwrap(), KMS_KEY.parse().unwrap());
    check(&[("s3.sse.type", "s3")], &[(kind, "AES256")]);
    check(&[("s3.sse.type", "kms"), ("s3.sse.key", "arn")], &[(kind, "aws:kms"), (key, "arn")]);
    let python = [("s3.server-side-encryption", "aws:kms"), ("s3.sse-kms-key-id", "arn")];
    check(&python, &[(kind, "aws:kms"), (key, "arn")]);
    assert_eq!(
        builder("tables", &settings(&[("s3.sse.type", "rot13")])).unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[test]
fn requests_that_only_the_catalog_can_sign_are_refused() {
    let remote = ("s3.remote-signing-enabled", "true");
    assert_eq!(builder("tables", &settings(&[remote])).unwrap_err().kind(), ErrorKind::Unsupported);
    check(&[remote, ("s3.access-key-id", "id")], &[(Key::AccessKeyId, "id")]);
}

/// Answers one request as a server does that does not know the key; sends the head of the request.
fn server() -> (String, mpsc::Receiver<Vec<String>>) {
    let (send, heads) = mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_owned());
        }
        let length =
            head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        lines.read_exact(&mut vec![0; length.unwrap_or(0)]).unwrap();
        let body = "<Error><Code>InvalidAccessKeyId</Code><Message>it does not exist</Message></Error>";
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        send.send(head).unwrap();
    });
    (address, heads)
}

#[tokio::test]
async fn a_request_goes_where_the_settings_say_and_its_error_keeps_secrets() {
    let (address, heads) = server();
    let store = open(
        "tables",
        &settings(&[
            ("s3.endpoint", &address),
            ("s3.access-key-id", "known-id"),
            ("s3.secret-access-key", "hunter2"),
            ("s3.session-token", "hunter3"),
            ("s3.region", "eu-north-1"),
        ]),
    )
    .unwrap();
    let path = Path::parse("flights/day=1 %25/ä#b?c").unwrap();
    let put = store.put_opts(&path, "rows".into(), Default::default()).await;
    let error = put.doing("write a file of the table").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage);
    let head = heads.recv().unwrap();
    assert_eq!(head[0], "PUT /tables/flights/day%3D1%20%2525/%C3%A4%23b%3Fc HTTP/1.1");
    let said = |name: &str| {
        let found = head.iter().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        });
        found.unwrap_or_default()
    };
    assert!(
        said("authorization").contains("Credential=known-id/")
            && said("authorization").contains("/eu-north-1/")
    );
    assert_eq!(said("x-amz-security-token"), "hunter3");
    let shown = format!("{error:?} {store:?}");
    assert!(shown.contains("it does not exist") && !shown.contains("hunter"), "{shown}");
}
