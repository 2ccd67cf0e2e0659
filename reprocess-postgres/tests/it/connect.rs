//! Addresses, servers and databases that are refused, and what an error tells.

use reprocess_core::ErrorKind;
use reprocess_postgres::{PostgresConfig, PostgresDatabase};

use crate::server::{TestDatabase, in_database};

#[tokio::test]
async fn a_database_says_its_name_and_no_password() {
    let database = TestDatabase::fresh().await;
    let role = database.role("SELECT 1").await;
    assert!(role.contains("its%20word"), "{role}");
    let db = PostgresDatabase::connect(&role).await.unwrap();
    assert_eq!(db.name(), database.name());
    let shown = format!("{db:?}");
    assert!(shown.contains(db.name()) && !shown.contains("word"), "{shown}");
}

#[tokio::test]
async fn a_wrong_password_is_said_and_not_told() {
    let database = TestDatabase::fresh().await;
    let address = database.role("SELECT 1").await.replace("its%20word", "s3cret");
    let error = PostgresDatabase::connect(&address).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Storage, false));
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    assert!(error.to_string().contains("28P01"), "{error}");
}

#[tokio::test]
async fn addresses_that_are_none_are_refused_without_being_told() {
    for address in ["postgres://user:s3cret@host:port/db", "s3cret", "postgres://user:s3cret@[x/db"] {
        let error = PostgresDatabase::connect(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_unavailable() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = PostgresConfig::new().with_connect_timeout_ms(50);
    let error = config.connect(&format!("postgres://user@{nobody}/db")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
}

#[tokio::test]
async fn a_database_that_is_absent_is_not_found() {
    let database = TestDatabase::fresh().await;
    let error = PostgresDatabase::connect(&in_database(&format!("{}x", database.name()))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_database_in_another_encoding_is_refused() {
    let database = TestDatabase::fresh().await;
    let name = format!("{}_latin", database.name());
    let latin = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'");
    database.execute(&latin).await;
    let error = PostgresDatabase::connect(&in_database(&name)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("LATIN1"), "{error}");
    database.execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

#[tokio::test]
async fn names_that_no_schema_of_ours_has_are_refused() {
    let database = TestDatabase::fresh().await;
    for name in ["a\"b", "pg_mine", ""] {
        let error = PostgresConfig::new().with_schema(name).connect(database.address()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
