//! The rows of one side, read over the columns of both.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use arrow_array::RecordBatch;

use crate::domain::rows::{Cell, CellKind, Column, Columns};
use crate::error::{Error, Result};

/// The batches of one side.
pub(super) struct Side(Vec<Columns>);

impl Side {
    pub(super) fn new(batches: &[RecordBatch]) -> Result<Self> {
        Ok(Self(batches.iter().map(Columns::new).collect::<Result<_>>()?))
    }

    fn columns(&self) -> impl Iterator<Item = &Column> {
        self.0.iter().flat_map(|batch| batch.columns())
    }
}

/// The columns of both sides: keys, then the others, floats last. A column that one side does not have is NULL there.
pub(super) struct Layout {
    names: Vec<String>,
    keys: usize,
    floats_begin: usize,
    kinds: BTreeMap<String, BTreeSet<CellKind>>,
}

impl Layout {
    /// Refuses a key that a side with columns does not have.
    pub(super) fn new(before: &Side, after: &Side, keys: &[String]) -> Result<Self> {
        let mut kinds: BTreeMap<String, BTreeSet<CellKind>> = BTreeMap::new();
        for column in before.columns().chain(after.columns()) {
            kinds.entry(column.name().to_owned()).or_default().insert(column.kind());
        }
        let mut names: Vec<String> = Vec::new();
        for key in keys {
            if [before, after].iter().any(|side| side.0.iter().any(|batch| batch.get(key).is_none())) {
                return Err(Error::invalid(format!("the key `{key}` of the diff is no column of the rows")));
            }
            if !names.contains(key) {
                names.push(key.clone());
            }
        }
        let keys = names.len();
        let others: Vec<_> = kinds.iter().filter(|(name, _)| !names.contains(name)).collect();
        let of = |float: bool| {
            let others = others.iter().filter(move |(_, kinds)| kinds.contains(&CellKind::Float) == float);
            others.map(|(name, _)| (*name).clone())
        };
        names.extend(of(false));
        let floats_begin = names.len();
        names.extend(of(true));
        Ok(Self { names, keys, floats_begin, kinds })
    }

    /// All columns.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no batch told what columns there are.
    pub(super) fn is_unknown(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Number of leading columns that are keys.
    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    /// Place of the first column that may hold floats and is no key.
    pub(super) fn floats_begin(&self) -> usize {
        self.floats_begin
    }

    pub(super) fn name(&self, column: usize) -> &str {
        &self.names[column]
    }

    /// Place of a column.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    /// Whether the column holds numbers, at least on one side.
    pub(super) fn is_numeric(&self, column: usize) -> bool {
        let kinds = self.kinds.get(&self.names[column]);
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.is_numeric()))
    }

    /// The batches of a side with their columns in this order.
    pub(super) fn align<'a>(&self, side: &'a Side) -> Vec<Aligned<'a>> {
        let of = |batch: &'a Columns| Aligned {
            rows: batch.rows(),
            columns: self.names.iter().map(|name| batch.get(name)).collect(),
        };
        side.0.iter().map(of).collect()
    }
}

/// A batch with its columns in the order of a layout.
pub(super) struct Aligned<'a> {
    rows: usize,
    columns: Vec<Option<&'a Column>>,
}

/// One row of an aligned batch.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    batch: &'a Aligned<'a>,
    row: usize,
}

impl<'a> Row<'a> {
    pub(super) fn all(batches: &'a [Aligned<'a>]) -> Vec<Self> {
        batches.iter().flat_map(|batch| (0..batch.rows).map(move |row| Self { batch, row })).collect()
    }

    pub(super) fn cell(&self, column: usize) -> Cell<'a> {
        self.batch.columns[column].map_or(Cell::Null, |c| c.cell(self.row))
    }

    /// Compares the first columns.
    pub(super) fn cmp_first(&self, other: &Self, columns: usize) -> Ordering {
        self.cmp_columns(other, 0..columns)
    }

    pub(super) fn cmp_columns(&self, other: &Self, columns: std::ops::Range<usize>) -> Ordering {
        columns.map(|c| self.cell(c).cmp(&other.cell(c))).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    }
}

/// Rows that were matched, and rows that stand on one side only; each in order.
pub(super) struct Matched<'a> {
    pub(super) pairs: Vec<(Row<'a>, Row<'a>)>,
    pub(super) before: Vec<Row<'a>>,
    pub(super) after: Vec<Row<'a>>,
}

/// Matches two ordered lists, each row at most once.
pub(super) fn merge<'a>(
    before: &[Row<'a>],
    after: &[Row<'a>],
    cmp: impl Fn(&Row<'a>, &Row<'a>) -> Ordering,
) -> Matched<'a> {
    let mut matched = Matched { pairs: Vec::new(), before: Vec::new(), after: Vec::new() };
    let (mut before, mut after) = (before.iter().copied().peekable(), after.iter().copied().peekable());
    while let (Some(b), Some(a)) = (before.peek().copied(), after.peek().copied()) {
        let order = cmp(&b, &a);
        if order.is_le() {
            before.next();
        }
        if order.is_ge() {
            after.next();
        }
        match order {
            Ordering::Less => matched.before.push(b),
            Ordering::Equal => matched.pairs.push((b, a)),
            Ordering::Greater => matched.after.push(a),
        }
    }
    matched.before.extend(before);
    matched.after.extend(after);
    matched
}
