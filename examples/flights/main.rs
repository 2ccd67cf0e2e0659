//! Departures from New York in March 2013: a correction of three weeks, from the request to the ledger.
//!
//! `cargo run --example flights` tells the story on real data. With arguments it is the command line over the same jobs,
//! for example `cargo run --example flights -- explain daily_departures day=2013-03-08`. `--db PATH` names the database
//! file; the default is `target/flights.db`.

pub(crate) mod data;
mod jobs;
mod numbers;
mod published;
pub(crate) mod story;

use std::path::PathBuf;
use std::process::ExitCode;

use chrono::NaiveDate;

/// Any error, with its text for the terminal.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<ExitCode> {
    let mut arguments: Vec<String> = std::env::args().collect();
    let mut db = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/flights.db"));
    if arguments.get(1).is_some_and(|first| first == "--db") {
        db = PathBuf::from(arguments.get(2).ok_or("--db needs a path")?);
        arguments.drain(1..3);
    }
    if let Some(folder) = db.parent() {
        std::fs::create_dir_all(folder)?;
    }
    if arguments.len() < 2 {
        story::tell(&db).await?;
        return Ok(ExitCode::SUCCESS);
    }
    data::load(&db, &data::flights()?, false).await?;
    let engine = jobs::engine(&db).await?;
    Ok(reprocess::cli::run(&engine, arguments).await)
}

/// A day of March 2013.
pub(crate) fn day(day: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2013, 3, day).unwrap_or_default()
}
