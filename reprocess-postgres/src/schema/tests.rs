use super::*;
use crate::config::PostgresConfig;
use crate::server::TestDatabase;

const STEPS: [&str; 2] = [
    "CREATE TABLE reprocess.thing (id bigint PRIMARY KEY)",
    "ALTER TABLE reprocess.thing ADD COLUMN name text; INSERT INTO reprocess.thing VALUES (1, 'one')",
];

#[test]
fn statements_are_those_of_the_schema() {
    let schema = Schema::new("Mine_2").unwrap();
    assert_eq!(schema.text("SELECT * FROM reprocess.run"), r#"SELECT * FROM "Mine_2".run"#);
    for name in ["", "a b", "a\"b", "pg_own", "é", &"a".repeat(64)] {
        assert!(Schema::new(name).is_err(), "{name}");
    }
}

async fn things(db: &PostgresDatabase) -> Vec<(i64, Option<String>)> {
    let mut tx = db.begin_read().await.unwrap();
    db.schema().sql("SELECT id, name FROM reprocess.thing").all(&mut tx, "look").await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_processes_that_make_the_tables_at_once_one_does() {
    let database = TestDatabase::fresh().await;
    let mut racing = Vec::new();
    for _ in 0..8 {
        let db = database.connect().await;
        racing.push(tokio::spawn(async move { db.migrate("things", &STEPS).await.unwrap() }));
    }
    for one in racing {
        one.await.unwrap();
    }
    let db = database.connect().await;
    db.migrate("things", &STEPS).await.unwrap();
    assert_eq!(things(&db).await, [(1, Some("one".to_owned()))]);
}

#[tokio::test]
async fn tables_are_led_on_from_where_they_are_and_a_newer_version_is_refused() {
    let database = TestDatabase::fresh().await;
    let db = database.connect().await;
    db.migrate("things", &STEPS[..1]).await.unwrap();
    db.migrate("others", &["CREATE TABLE reprocess.other ()"]).await.unwrap();
    db.migrate("things", &STEPS).await.unwrap();
    assert_eq!(things(&db).await.len(), 1);
    let error = db.migrate("things", &STEPS[..1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("things of version 2, and this library knows 1"), "{error}");
    assert!(error.advice().is_some());
}

#[tokio::test]
async fn a_step_that_fails_leaves_nothing() {
    let database = TestDatabase::fresh().await;
    let db = database.connect().await;
    let broken = [STEPS[0], "CREATE TABLE reprocess.other (); SELECT 1 / 0"];
    assert_eq!(db.migrate("things", &broken).await.unwrap_err().kind(), ErrorKind::Invalid);
    db.migrate("things", &STEPS).await.unwrap();
    assert_eq!(things(&db).await.len(), 1);
}

#[tokio::test]
async fn two_schemas_of_one_database_do_not_meet() {
    let database = TestDatabase::fresh().await;
    let db = database.connect().await;
    let other = PostgresConfig::new().with_schema("Other").connect(database.address()).await.unwrap();
    db.migrate("things", &STEPS).await.unwrap();
    other.migrate("things", &STEPS[..1]).await.unwrap();
    let mut tx = other.begin_read().await.unwrap();
    let ids: Vec<(i64,)> =
        other.schema().sql("SELECT id FROM reprocess.thing").all(&mut tx, "look").await.unwrap();
    assert_eq!(ids, []);
    assert!(!db.is_same_database(&other));
    assert!(db.is_same_database(&database.connect().await));
}

#[tokio::test]
async fn a_user_who_may_make_nothing_can_use_what_is_there() {
    let database = TestDatabase::fresh().await;
    database.connect().await.migrate("things", &STEPS).await.unwrap();
    let role = database.role("GRANT USAGE ON SCHEMA reprocess TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA reprocess TO {role}").await;
    let db = PostgresConfig::new().connect(&role).await.unwrap();
    db.migrate("things", &STEPS).await.unwrap();
    assert_eq!(things(&db).await.len(), 1);
    let error = db.migrate("others", &["CREATE TABLE reprocess.other ()"]).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Storage, false));
}
