//! A fingerprint is another one exactly where the rows are others.

use std::collections::BTreeMap;

use reprocess_core::ErrorKind;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::Partitioning;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::reader::SnapshotReader;
use reprocess_postgres::PostgresSource;
use sqlx::{AssertSqlSafe, Executor};

use super::support::*;

/// Types with values that differ in their bytes, though most are equal in SQL, or have one hash, or one form in text
/// under other settings.
const VALUES: &[(&str, &[&str])] = &[
    ("boolean", &["true", "false"]),
    ("smallint", &["1", "0", "-1"]),
    ("integer", &["1", "0", "-1"]),
    ("bigint", &["1", "4294967296", "0", "-1", "-4294967297", "8589934592"]),
    ("numeric", &["1", "1.0", "1.00", "NaN", "Infinity", "-Infinity", "0", "0.0"]),
    ("numeric(10,2)", &["1", "100", "0", "NaN"]),
    ("real", &["0", "-0", "NaN", "Infinity", "0.1", "0.10000001"]),
    ("double precision", &["0", "-0", "NaN", "-Infinity", "0.1", "0.10000000000000002"]),
    ("text", &["a", "A", "a ", " a", "", "é", "e\u{301}", "null"]),
    ("text COLLATE blurred", &["a", "A", "b"]),
    ("varchar(3)", &["a", "a ", ""]),
    ("char(3)", &["a", "b", ""]),
    ("bytea", &["\\x", "\\x00", "\\x0000", "\\x61"]),
    ("uuid", &["00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000001"]),
    ("date", &["2026-10-01", "2026-10-02", "infinity", "-infinity"]),
    // 2^32 microseconds are 4294.967296 seconds.
    ("timestamptz", &["2026-10-01 00:00:00+00", "2026-10-01 01:11:34.967296+00", "infinity", "-infinity"]),
    ("timestamp", &["2000-01-01 00:00:00.000001", "2000-01-01 01:11:34.967296", "infinity"]),
    ("time", &["00:00:00", "24:00:00", "00:00:00.000001"]),
    ("timetz", &["12:00:00+00", "13:00:00+01"]),
    ("interval", &["1 mon", "30 days", "720:00:00", "-1 mon"]),
    ("json", &["{}", "{ }", "1", "1.0", "null"]),
    ("jsonb", &["{\"a\": 1}", "{\"a\": 1.0}", "1", "1.0", "\"1\"", "null"]),
    ("tsvector", &["a b", "a:1 b:2"]),
    ("integer[]", &["{1}", "{1,NULL}", "[0:0]={1}", "{}", "{{1}}"]),
    ("numeric[]", &["{1}", "{1.0}"]),
    ("point", &["(0,0)", "(-0,0)", "(0,1)"]),
    ("inet", &["10.0.0.1", "10.0.0.1/24"]),
    ("bit varying", &["0", "00", ""]),
    ("int4range", &["[1,2)", "empty", "[1,)"]),
    ("mood", &["sad", "glad"]),
    ("code", &["a", "A"]),
];

/// Rows by the places of their values; `None` is NULL.
type Cells = Vec<Option<usize>>;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }

    fn cell(&mut self, column: usize) -> Option<usize> {
        let values = VALUES[column].1.len();
        Some(self.below(values + 1)).filter(|place| *place < values)
    }

    fn row(&mut self) -> Cells {
        (0..VALUES.len()).map(|column| self.cell(column)).collect()
    }

    /// One step away: a value, two rows that swap one, a row more, less or twice, two rows more of the same.
    fn step(&mut self, rows: &mut Vec<Cells>) {
        let column = self.below(VALUES.len());
        if rows.len() < 2 {
            return rows.push(self.row());
        }
        let (a, b) = (self.below(rows.len()), self.below(rows.len()));
        match self.below(12) {
            0..=5 => rows[a][column] = self.cell(column),
            6..=8 => {
                let (left, right) = (rows[a][column], rows[b][column]);
                (rows[a][column], rows[b][column]) = (right, left);
            }
            9 => drop(rows.swap_remove(a)),
            10 => rows.push(rows[a].clone()),
            _ => {
                let row = self.row();
                rows.extend([row.clone(), row]);
            }
        }
        rows.truncate(8);
    }
}

fn insert(rows: &[Cells]) -> String {
    let cell = |(column, place): (usize, &Option<usize>)| match place {
        Some(place) => format!("'{}'", VALUES[column].1[*place]),
        None => "NULL".to_owned(),
    };
    let row = |row: &Cells| format!("({})", row.iter().enumerate().map(cell).collect::<Vec<_>>().join(", "));
    format!("INSERT INTO things VALUES {}", rows.iter().map(row).collect::<Vec<_>>().join(", "))
}

async fn things() -> (Fixture, PostgresSource) {
    let columns: Vec<_> = VALUES.iter().enumerate().map(|(n, (t, _))| format!("c{n} {t}")).collect();
    let f = fixture(&format!(
        // Some servers come without ICU.
        "DO $$ BEGIN
             CREATE COLLATION blurred (PROVIDER = icu, LOCALE = 'und-u-ks-level2', DETERMINISTIC = false);
         EXCEPTION WHEN feature_not_supported THEN
             CREATE COLLATION blurred FROM \"C\";
         END $$;
         CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN code AS varchar(5);
         CREATE TABLE things ({})",
        columns.join(", ")
    ))
    .await;
    let spec = TableSpec::new("things", Partitioning::unpartitioned());
    let source = PostgresSource::mutable(f.db.clone(), spec).unwrap();
    (f, source)
}

async fn of(source: &PostgresSource) -> String {
    let version = source.slice_versions(&"live".into(), &[Slice::All]).await.unwrap().remove(0);
    version.as_str().to_owned()
}

#[tokio::test]
async fn any_change_of_a_byte_changes_the_fingerprint_and_the_order_of_rows_does_not() {
    let replayed = std::env::var("REPROCESS_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    for seed in replayed.map_or_else(|| (1..=3).collect(), |seed| vec![seed]) {
        let replay = format!("REPROCESS_SEED={seed} cargo test -p reprocess-postgres any_change_of_a_byte");
        let (f, source) = things().await;
        let mut raw = f.other().await;
        let (mut random, mut rows) = (Random(seed), Vec::new());
        let mut by_rows = BTreeMap::<Vec<Cells>, String>::new();
        let mut by_fingerprint = BTreeMap::<String, Vec<Cells>>::new();
        for step in 0..150 {
            random.step(&mut rows);
            let mut shuffled = rows.clone();
            shuffled.rotate_left(random.below(rows.len()));
            raw.execute("DELETE FROM things").await.unwrap();
            raw.execute(AssertSqlSafe(insert(&shuffled))).await.unwrap();
            let now = of(&source).await;
            let mut sorted = rows.clone();
            sorted.sort();
            let before = by_rows.entry(sorted.clone()).or_insert_with(|| now.clone());
            assert_eq!(*before, now, "step {step}: the same rows; replay with {replay}");
            let same = by_fingerprint.entry(now).or_insert_with(|| sorted.clone());
            assert_eq!(*same, sorted, "step {step}: other rows; replay with {replay}");
        }
    }
}

#[tokio::test]
async fn every_two_values_of_a_column_have_two_fingerprints() {
    let (f, source) = things().await;
    let mut raw = f.other().await;
    for (column, (data_type, values)) in VALUES.iter().enumerate() {
        let mut seen = BTreeMap::new();
        for place in (0..values.len()).map(Some).chain([None]) {
            let mut row: Cells = vec![None; VALUES.len()];
            row[column] = place;
            raw.execute("DELETE FROM things").await.unwrap();
            raw.execute(AssertSqlSafe(insert(&[row]))).await.unwrap();
            let other = seen.insert(of(&source).await, place);
            assert_eq!(other, None, "{data_type}: {:?}", place.map(|place| values[place]));
        }
    }
}

#[tokio::test]
async fn settings_of_others_do_not_change_it() {
    let (f, source) = things().await;
    let mut random = Random(7);
    let rows: Vec<_> = (0..5).map(|_| random.row()).collect();
    f.sql(&insert(&rows)).await;
    let before = of(&source).await;
    let role = "GRANT SELECT ON things TO {role}; ALTER ROLE {role} SET datestyle = 'SQL, DMY';
         ALTER ROLE {role} SET intervalstyle = 'iso_8601'; ALTER ROLE {role} SET timezone = 'Asia/Tokyo';
         ALTER ROLE {role} SET extra_float_digits = -5; ALTER ROLE {role} SET bytea_output = 'escape'";
    let address = f.database.role(role).await;
    let db = reprocess_postgres::PostgresDatabase::connect(&address).await.unwrap();
    let spec = TableSpec::new("things", Partitioning::unpartitioned());
    assert_eq!(of(&PostgresSource::mutable(db, spec).unwrap()).await, before);
}

#[tokio::test]
async fn a_fingerprint_says_what_made_it_and_is_not_compared_with_that_of_another_server() {
    let f = fixture("CREATE TABLE things (a integer, b text); INSERT INTO things VALUES (1, 'x')").await;
    let source =
        PostgresSource::mutable(f.db.clone(), TableSpec::new("things", Partitioning::unpartitioned()))
            .unwrap();
    let mut pinned = pin(&source, Slice::All).await.unwrap();
    // The same bytes under another name.
    f.sql("ALTER TABLE things RENAME b TO c").await;
    broken(&source, &pinned, "columns have changed").await;
    f.sql("ALTER TABLE things RENAME c TO b").await;
    let major =
        f.column("SELECT (current_setting('server_version_num')::integer / 10000)::text").await.remove(0);
    let text = pinned.content.as_str().to_owned();
    assert!(text.starts_with(&format!("rows1/pg{major}/")) && text.contains("/1/"), "{text}");
    assert_eq!(read(&source, &pinned).await.unwrap(), ["1/x"]);
    pinned.content = text.replace(&format!("/pg{major}/"), "/pg14/").into();
    broken(&source, &pinned, "their fingerprint is rows1 of pg14").await;
    pinned.content = text.replace("rows1/", "rows0/").into();
    refused(read(&source, &pinned).await, ErrorKind::PinBroken, &["rows0", "not comparable"]);
    pinned.content = "something else".into();
    broken(&source, &pinned, "changed").await;
}
