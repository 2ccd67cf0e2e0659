//! Where keys lie in the indexes of the ledger, so that coverage and overlap are index searches.
//!
//! A table has keys of few shapes: sets of columns that they bind. Within one shape, the keys that agree with another
//! key are one text, or a range of texts, or in the worst case those of a range that contain certain segments.

use reprocess_core::domain::ids::TableId;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::{Error, Result};

use super::Session;
use super::row::{json, parsed};
use crate::sql::Statement;

/// Sorts after every key text: in the Hive form all control characters and all that is not ASCII are encoded.
const LAST: &str = "\u{7f}";

/// Stands between the segments of a place where they are one text.
const BETWEEN: &str = "\u{1}";

/// The columns that some keys of a table bind, in alphabetical order.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) id: i64,
    columns: Vec<String>,
}

/// Keys of one shape: those from one text until before another that contain all segments.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) shape: i64,
    pub(super) from: String,
    pub(super) until: String,
    /// Texts like `/country=FR/`.
    pub(super) segments: Vec<String>,
}

impl Place {
    /// Whether it holds every key of its shape.
    pub(super) fn is_shape(&self) -> bool {
        self.from.is_empty() && self.until == LAST && self.segments.is_empty()
    }
}

/// Binds places as four arrays, of which `places!` makes rows.
pub(super) fn bind_places(statement: Statement, places: &[Place]) -> Statement {
    statement
        .bind(places.iter().map(|place| place.shape).collect::<Vec<_>>())
        .bind(places.iter().map(|place| place.from.clone()).collect::<Vec<_>>())
        .bind(places.iter().map(|place| place.until.clone()).collect::<Vec<_>>())
        .bind(places.iter().map(|place| place.segments.join(BETWEEN)).collect::<Vec<_>>())
}

/// The rows of the first four values of a statement: `shape`, `lower`, `upper`, `segments`.
macro_rules! places {
    () => {
        "unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS p (shape, lower, upper, segments)"
    };
}

/// Whether the partition of a row `k` lies at the place `p`.
macro_rules! at_place {
    () => {
        "k.shape = p.shape AND k.partition >= p.lower AND k.partition < p.upper
         AND NOT EXISTS (
             SELECT 1 FROM unnest(string_to_array(p.segments, E'\\x01')) AS s (segment)
             WHERE strpos('/' || k.partition || '/', s.segment) = 0)"
    };
}

pub(super) use {at_place, places};

/// The Hive form with columns in alphabetical order: equal for keys that mean the same.
pub(super) fn text(key: &PartitionKey) -> String {
    sorted(key).to_string()
}

fn sorted(key: &PartitionKey) -> PartitionKey {
    let mut bound: Vec<_> = key.bound().collect();
    bound.sort_by_key(|(column, _)| *column);
    bound.into_iter().fold(PartitionKey::whole(), |key, (column, value)| key.and(column, value.clone()))
}

/// The shapes that keys of a table have had.
pub(super) async fn shapes(s: &mut Session<'_>, table: &TableId) -> Result<Vec<Shape>> {
    if let Some(known) = s.shapes.get(table) {
        return Ok(known.clone());
    }
    let found: Vec<(i64, String)> = s
        .sql("SELECT shape, columns FROM reprocess.shape WHERE table_id = $1 ORDER BY shape")
        .bind(table.as_str())
        .all(s.conn(), "read the shapes of keys")
        .await?;
    let shape = |(id, columns): (i64, String)| Ok(Shape { id, columns: parsed(&columns)? });
    let shapes = found.into_iter().map(shape).collect::<Result<Vec<_>>>()?;
    s.shapes.insert(table.clone(), shapes.clone());
    Ok(shapes)
}

/// The number of the shape of a key, which is new where no key of the table had it.
pub(super) async fn shape_of(s: &mut Session<'_>, table: &TableId, key: &PartitionKey) -> Result<i64> {
    let key = sorted(key);
    let columns: Vec<_> = key.bound().map(|(column, _)| column.to_owned()).collect();
    if let Some(shape) = shapes(s, table).await?.iter().find(|shape| shape.columns == columns) {
        return Ok(shape.id);
    }
    // One at a time adds shapes to a table, so that no two wait for shapes that the other has added.
    s.sql("SELECT pg_advisory_xact_lock(hashtextextended('reprocess shape ' || $1 || ' ' || $2, 0))")
        .bind(s.schema.name())
        .bind(table.as_str())
        .execute(s.conn(), "wait for its turn to number a shape of keys")
        .await?;
    let text = json(&columns)?;
    let added = "INSERT INTO reprocess.shape (table_id, columns) VALUES ($1, $2) ON CONFLICT DO NOTHING
        RETURNING shape";
    let known = "SELECT shape FROM reprocess.shape WHERE table_id = $1 AND columns = $2";
    // Another may have added it before.
    for sql in [added, known] {
        let shape: Option<(i64,)> = s
            .sql(sql)
            .bind(table.as_str())
            .bind(text.as_str())
            .first(s.conn(), "number a shape of keys")
            .await?;
        if let Some((id,)) = shape {
            s.shapes.entry(table.clone()).or_default().push(Shape { id, columns });
            return Ok(id);
        }
    }
    Err(Error::internal("a shape of keys that is there is not found").with_context("table", table))
}

/// Shape and text of every key that covers this one, as far as keys of the table have had that shape.
pub(super) async fn covering(
    s: &mut Session<'_>,
    table: &TableId,
    key: &PartitionKey,
) -> Result<Vec<(i64, String)>> {
    let shapes = shapes(s, table).await?;
    Ok(shapes.iter().filter_map(|shape| Some((shape.id, shape.covering(key)?))).collect())
}

impl Shape {
    /// The text of the one key of this shape that covers the key; `None` where the key leaves one of the columns open.
    pub(super) fn covering(&self, key: &PartitionKey) -> Option<String> {
        self.bound_by(key).then(|| text(&key.only(self.columns.iter().map(String::as_str))))
    }

    /// The keys of this shape that the key covers; `None` where it covers none, since they leave one of its columns open.
    pub(super) fn below(&self, key: &PartitionKey) -> Option<Place> {
        let deeper = key.bound().all(|(column, _)| self.columns.iter().any(|c| c == column));
        deeper.then(|| self.overlapping(key))
    }

    /// The keys of this shape that overlap the key.
    pub(super) fn overlapping(&self, key: &PartitionKey) -> Place {
        let shared = sorted(&key.only(self.columns.iter().map(String::as_str)));
        let prefix = shared.bound().zip(&self.columns).all(|((column, _), own)| column == own);
        let text = shared.to_string();
        let (from, until) = match (self.bound_by(key), prefix && !text.is_empty()) {
            (true, _) => (text.clone(), format!("{text}\u{1}")),
            // `0` follows `/`, which ends a segment.
            (false, true) => (format!("{text}/"), format!("{text}0")),
            (false, false) => (String::new(), LAST.to_owned()),
        };
        let segments = if prefix { Vec::new() } else { text.split('/').map(|s| format!("/{s}/")).collect() };
        Place { shape: self.id, from, until, segments }
    }

    fn bound_by(&self, key: &PartitionKey) -> bool {
        self.columns.iter().all(|column| key.get(column).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reprocess_core::domain::value::Value;

    fn holds(place: &Place, key: &PartitionKey) -> bool {
        let text = text(key);
        let inside = place.from.as_str() <= text.as_str() && text.as_str() < place.until.as_str();
        inside && place.segments.iter().all(|s| format!("/{text}/").contains(s))
    }

    #[test]
    fn places_agree_with_comparing_key_by_key() {
        let values =
            [Value::Null, Value::from(""), Value::from("a"), Value::from("a/b"), Value::from("a0é~")];
        let mut keys = vec![PartitionKey::whole()];
        for column in ["c", "a", "b/"] {
            let with = |k: &PartitionKey| values.iter().map(|v| k.clone().and(column, v.clone())).collect();
            let more: Vec<Vec<PartitionKey>> = keys.iter().map(with).collect();
            keys.extend(more.into_iter().flatten());
        }
        for key in &keys {
            for other in &keys {
                let mut columns: Vec<_> = other.bound().map(|(c, _)| c.to_owned()).collect();
                columns.sort();
                let shape = Shape { id: 1, columns };
                assert_eq!(holds(&shape.overlapping(key), other), key.overlaps(other), "{key} {other}");
                assert_eq!(
                    shape.below(key).is_some_and(|place| holds(&place, other)),
                    key.covers(other),
                    "{key} {other}"
                );
                assert_eq!(
                    shape.covering(key).is_some_and(|t| t == text(other)),
                    other.covers(key),
                    "{key} {other}"
                );
            }
        }
    }
}
