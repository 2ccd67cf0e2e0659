//! Two runs that replace one partition at once: whatever isolation transactions have by default, whether there were rows
//! and whether a unique index would refuse a second copy, the rows of one run are left.

use reprocess_core::ports::writer::{Intent, PartitionWriter};
use reprocess_postgres::{PostgresDatabase, PostgresTable};

use super::race::{Racer, race};
use crate::server::{TestDatabase, rounds};
use crate::tables::support::*;

const DAY: &str = "2026-10-01";
const ROWS: i64 = 20;

/// What sets the isolation.
#[derive(Clone, Copy, Debug)]
enum Setter {
    Database,
    Role,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    isolation: &'static str,
    by: Setter,
    filled: bool,
    unique: bool,
}

struct Field {
    database: TestDatabase,
    workers: [PostgresTable; 2],
}

impl Cell {
    async fn field(self) -> Field {
        let database = TestDatabase::fresh().await;
        let key = if self.unique { ", PRIMARY KEY (day, id)" } else { "" };
        let columns = format!("day date, country text, id bigint, amount bigint, rev bigint{key}");
        let (name, level) = (database.name(), self.isolation);
        let set = match self.by {
            Setter::Database => {
                format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
            }
            Setter::Role => format!("ALTER ROLE {{role}} SET default_transaction_isolation = '{level}'"),
        };
        let address = database
            .role(&format!("ALTER ROLE {{role}} SUPERUSER; {set}; CREATE TABLE sales ({columns})"))
            .await;
        let open = async || {
            let db = PostgresDatabase::connect(&address).await.unwrap();
            table_of(&db, "sales", by_day_and_country()).await
        };
        let workers = [open().await, open().await];
        workers[0].adopt().await.unwrap();
        Field { database, workers }
    }
}

/// The rows of a run, of which only a few are its own where the others are to be left as they are.
fn rows_of(run: i64, few: bool) -> Vec<Row<'static>> {
    let own = |id: i64| !few || id < ROWS / 10;
    (0..ROWS).map(|id| (DAY, "FR", id, if own(id) { run } else { 0 }, 0)).collect()
}

fn texts_of(run: i64, few: bool) -> Vec<String> {
    let mut texts: Vec<_> = rows_of(run, few)
        .iter()
        .map(|(day, c, id, amount, rev)| format!("{day}/{c}/{id}/{amount}/{rev}"))
        .collect();
    texts.sort();
    texts
}

async fn round(field: &Field, cell: Cell, number: i64) {
    let few = number % 2 == 0;
    let (scope, runs) = (days(&[DAY]), [number * 10 + 1, number * 10 + 2]);
    let write = async |table: &PostgresTable, run: i64, rows: &[Row<'_>]| {
        table.stage(&request(&format!("r{run}"), &scope, Intent::Replace), of(batch(rows))).await.unwrap()
    };
    let before = if cell.filled { rows_of(number * 10, few) } else { vec![] };
    let first = write(&field.workers[0], number * 10, &before).await;
    let base = field.workers[0].head(&scope).await.unwrap();
    committed(commit(&field.workers[0], &[apply(&first)], &base, false).await.unwrap());
    let base = field.workers[0].head(&scope).await.unwrap();
    let mut racers = Vec::new();
    for (table, run) in field.workers.iter().zip(runs) {
        let staged = write(table, run, &rows_of(run, few)).await;
        racers.push(Racer { table: table.clone(), staged, base: base.clone() });
    }
    let conflicts = race(&field.database, "sales", racers).await;
    // Who waited found that the other had been there, and came after it.
    let last = match conflicts.as_slice() {
        [0, 1] => runs[1],
        [1, 0] => runs[0],
        other => panic!("{cell:?}: conflicts {other:?}"),
    };
    assert_eq!(rows(&field.workers[0]).await, texts_of(last, few), "{cell:?}, round {number}");
}

async fn every_cell(isolation: &'static str) {
    for by in [Setter::Database, Setter::Role] {
        for (filled, unique) in [(true, true), (true, false), (false, true), (false, false)] {
            let cell = Cell { isolation, by, filled, unique };
            let field = cell.field().await;
            for number in 1..=i64::try_from(rounds(2)).unwrap() {
                round(&field, cell, number).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_run_is_left_where_read_committed_is_the_default() {
    every_cell("read committed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_run_is_left_where_repeatable_read_is_the_default() {
    every_cell("repeatable read").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_run_is_left_where_serializable_is_the_default() {
    every_cell("serializable").await;
}
