//! Values as the ledger holds them: integers with a sign, and JSON.

use std::time::Duration;

use reprocess_core::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// No lease is longer than a hundred years, in microseconds.
const LONGEST_US: i64 = 100 * 366 * 86_400 * 1_000_000;

/// A time to live in microseconds.
pub(super) fn ttl_us(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_micros()).unwrap_or(LONGEST_US).min(LONGEST_US)
}

/// A number of the ledger as the type it has outside.
pub(super) fn number<T: TryFrom<i64>>(number: i64) -> Result<T> {
    T::try_from(number).map_err(|_| corrupt(format!("{number} is out of range")))
}

/// A number as PostgreSQL holds it.
pub(super) fn signed<T: Copy + std::fmt::Display + TryInto<i64>>(number: T) -> Result<i64> {
    number.try_into().map_err(|_| Error::invalid(format!("{number} is too large for the ledger")))
}

/// Text for people, without the character that PostgreSQL cannot hold.
pub(super) fn shown(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// The JSON of a value.
pub(super) fn json(value: &(impl Serialize + ?Sized)) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|e| Error::internal("a value of the ledger does not serialise").with_source(e))
}

/// The value of a JSON text.
pub(super) fn parsed<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| corrupt("a value of the ledger does not parse").with_source(e))
}

/// An error about what cannot have been written by this version.
pub(super) fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
        .with_advice("use the version of reprocess that wrote the ledger, or restore the database")
}

/// The word of a plain enum, as it stands in JSON.
pub(super) fn word(value: &impl Serialize) -> Result<String> {
    parsed(&json(value)?)
}

/// The enum value of a word.
pub(super) fn from_word<T: DeserializeOwned>(word: &str) -> Result<T> {
    parsed(&json(word)?)
}
