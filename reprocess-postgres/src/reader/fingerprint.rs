//! What the rows of a slice are, in a line of text that the server works out.

use std::fmt;

use reprocess_core::domain::ids::PartitionVersion;
use reprocess_core::domain::slice::Pin;
use reprocess_core::{Error, Result};
use sqlx::PgConnection;

use super::broken;
use crate::layout::Layout;
use crate::sql::Sql;

/// How the rows become numbers. Another name for every change of it.
const ALGORITHM: &str = "rows1";

/// Count, sum and exclusive or of a hash of each row: the same for the same rows in any order, and another one, but for an
/// accident of 1 in 2^64, where any byte of them is another.
///
/// What is hashed of a row are the bytes in which the server would send it. The hashes that the server has for values will
/// not do: what is equal in SQL may have other bytes (`1.0` and `1`, the zeros of a float, one month and thirty days), 64
/// bits of an integer or instant are folded to 32 (1 and 4294967296 have one hash), as are NaN and both infinities of a
/// numeric. Nor will their combination into the hash of a record, which is linear: two rows that swap the values of a column
/// would leave the sum as it was.
///
/// The server promises these hashes for one major version, so that its number is part of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fingerprint {
    server_major: i32,
    /// Of the names and types of the columns.
    columns: String,
    count: i64,
    sum: String,
    xor: i64,
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server_major, columns, count, sum, xor } = self;
        write!(f, "{ALGORITHM}/pg{server_major}/{columns}/{count}/{sum}/{xor}")
    }
}

/// The version of the rows of a statement that selects readable columns of the layout.
pub(super) async fn of(
    connection: &mut PgConnection,
    rows: Sql,
    layout: &Layout,
) -> Result<PartitionVersion> {
    let (server_major, count, sum, xor) = Sql::new(format!(
        "SELECT current_setting('server_version_num')::integer / 10000, count(*), coalesce(sum(x.h), 0)::text,
                coalesce(bit_xor(x.h), 0)
         FROM (SELECT hash_record_extended(ROW(record_send(ROW({}))), 0) AS h FROM (",
        layout.plain("r.")
    ))
    .then(rows)
    .text(") AS r) AS x")
    .statement()
    .one(connection, "work out the fingerprint of rows")
    .await?;
    let fingerprint = Fingerprint { server_major, columns: columns(layout), count, sum, xor };
    Ok(PartitionVersion::new(fingerprint.to_string()))
}

/// Refuses rows that are not those of the pin.
pub(super) async fn check(
    connection: &mut PgConnection,
    pin: &Pin,
    rows: Sql,
    layout: &Layout,
) -> Result<()> {
    let now = of(connection, rows, layout).await?;
    if now == pin.content { Ok(()) } else { Err(differ(pin, &now)) }
}

fn differ(pin: &Pin, now: &PartitionVersion) -> Error {
    let part = |version: &PartitionVersion, place| version.as_str().split('/').nth(place).map(str::to_owned);
    let origin = |version| Some((part(version, 0)?, part(version, 1)?));
    match (origin(&pin.content), origin(now)) {
        (Some((algorithm, server)), Some(ours)) if (&algorithm, &server) != (&ours.0, &ours.1) => broken(
            pin,
            &format!(
                "their fingerprint is {algorithm} of {server} and would now be {} of {}, and those of two servers or \
                 two releases are not comparable",
                ours.0, ours.1
            ),
        ),
        _ if part(&pin.content, 2) != part(now, 2) => broken(pin, "the columns have changed since"),
        _ => broken(pin, "the rows have changed since"),
    }
}

fn columns(layout: &Layout) -> String {
    let mut hasher = blake3::Hasher::new();
    for (field, store) in layout.columns() {
        for text in [field.name().as_str(), &store.kind.plain()] {
            hasher.update(text.as_bytes());
            hasher.update(&[0]);
        }
    }
    hasher.finalize().to_hex()[..8].to_owned()
}
