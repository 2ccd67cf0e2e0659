//! Compares the rows of two sides.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use arrow_array::RecordBatch;

use super::distribution::Differences;
use super::rows::{Layout, Matched, Row, Side, merge};
use super::{Diff, DiffSpec, RowDiff};
use crate::domain::partition::PartitionKey;
use crate::domain::rows::Cell;
use crate::error::{Error, Result};

/// Compares the rows of a partition before and after.
///
/// Rows are matched by key where the spec names keys and they are unique and never NULL on both sides. Else whole rows
/// are compared as a multiset, and a row that changed counts as removed and added. A column that one side does not
/// have is NULL there. Values are compared as [`Cell`]s, floats as [`DiffSpec::float_digits`] says. Refuses columns of
/// the spec that the rows do not have, unless there are no batches at all.
pub fn diff(
    partition: PartitionKey,
    before: &[RecordBatch],
    after: &[RecordBatch],
    spec: &DiffSpec,
) -> Result<Diff> {
    compare(partition, before, after, spec, None)
}

/// As [`diff`], where pairs of rows that are equal in every column have been left out of both sides, so that a backend
/// sends only the rows that differ. The batches have the columns of the sides also where no rows are left.
pub fn diff_of_rest(
    partition: PartitionKey,
    before: &[RecordBatch],
    after: &[RecordBatch],
    spec: &DiffSpec,
    left_out: LeftOut,
) -> Result<Diff> {
    compare(partition, before, after, spec, Some(left_out))
}

/// What was left out of both sides of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// How many pairs of equal rows.
    pub pairs: u64,
    /// Whether the keys of the spec are unique and never NULL on both sides, the pairs included.
    pub identified: bool,
}

fn compare(
    partition: PartitionKey,
    before: &[RecordBatch],
    after: &[RecordBatch],
    spec: &DiffSpec,
    left_out: Option<LeftOut>,
) -> Result<Diff> {
    let (before, after) = (Side::new(before)?, Side::new(after)?);
    let layout = Layout::new(&before, &after, &spec.keys)?;
    let distributions = distributed(&layout, spec)?;
    let (before, after) = (layout.align(&before), layout.align(&after));
    let (mut before, mut after) = (Row::all(&before), Row::all(&after));
    let keyed = left_out.is_none_or(|left_out| left_out.identified)
        && layout.keys() > 0
        && is_identified(&mut before, &layout)
        && is_identified(&mut after, &layout);
    let comparison =
        Comparison { layout: &layout, keyed, tolerance: 0.1_f64.powi(i32::from(spec.float_digits)) };
    let mut diff = if keyed {
        let keys = layout.keys();
        let matched = merge(&before, &after, |b, a| b.cmp_first(a, keys));
        comparison.keyed(partition, &matched, distributions, spec.samples)?
    } else {
        let matched = comparison.multiset(&mut before, &mut after);
        comparison.report(partition, &matched, &[], spec.samples)
    };
    diff.unchanged += left_out.map_or(0, |left_out| left_out.pairs);
    Ok(diff)
}

/// Sorts by key; answers whether each row has a key of its own.
fn is_identified(rows: &mut [Row<'_>], layout: &Layout) -> bool {
    let keys = layout.keys();
    rows.sort_by(|a, b| a.cmp_first(b, keys));
    rows.iter().all(|row| (0..keys).all(|column| !row.cell(column).is_null()))
        && rows.windows(2).all(|pair| pair[0].cmp_first(&pair[1], keys).is_ne())
}

/// The columns whose differences are to be summed up.
fn distributed(layout: &Layout, spec: &DiffSpec) -> Result<BTreeMap<usize, Differences>> {
    let mut columns: Vec<usize> =
        (0..layout.len()).filter(|c| spec.distributions.is_empty() && layout.is_numeric(*c)).collect();
    for name in spec.distributions.iter().filter(|_| !layout.is_unknown()) {
        match layout.find(name) {
            Some(column) if layout.is_numeric(column) => columns.push(column),
            Some(_) => return Err(Error::invalid(format!("column `{name}` of the diff holds no numbers"))),
            None => {
                return Err(Error::invalid(format!("`{name}` of the diff is no column of the rows")));
            }
        }
    }
    Ok(columns.into_iter().filter(|c| *c >= layout.keys()).map(|c| (c, Differences::new())).collect())
}

struct Comparison<'l> {
    layout: &'l Layout,
    keyed: bool,
    /// Relative, for floats that are no key.
    tolerance: f64,
}

impl Comparison<'_> {
    fn keyed(
        &self,
        partition: PartitionKey,
        matched: &Matched<'_>,
        mut distributions: BTreeMap<usize, Differences>,
        samples: usize,
    ) -> Result<Diff> {
        let others = self.layout.keys()..self.layout.len();
        let mut columns: BTreeMap<usize, u64> = others.clone().map(|column| (column, 0)).collect();
        let mut changed = Vec::new();
        for (before, after) in &matched.pairs {
            let differs = |c: &usize| !self.same(&before.cell(*c), &after.cell(*c));
            if !others.clone().any(|c| differs(&c)) {
                continue;
            }
            changed.push((*before, *after));
            columns.iter_mut().filter(|(c, _)| differs(c)).for_each(|(_, count)| *count += 1);
            for (column, differences) in &mut distributions {
                differences.add(&before.cell(*column), &after.cell(*column))?;
            }
        }
        let mut diff = self.report(partition, matched, &changed, samples);
        let name = |column: usize| self.layout.name(column).to_owned();
        diff.columns = columns.into_iter().map(|(c, count)| (name(c), count)).collect();
        diff.distributions =
            distributions.into_iter().filter_map(|(c, d)| Some((name(c), d.finish()?))).collect();
        Ok(diff)
    }

    /// Matches equal rows first and then those that only rounding tells apart, so that a tolerance never finds more
    /// differences than an exact comparison.
    fn multiset<'a>(&self, before: &mut [Row<'a>], after: &mut [Row<'a>]) -> Matched<'a> {
        let (floats, all) = (self.layout.floats_begin(), self.layout.len());
        before.sort_by(|a, b| a.cmp_first(b, all));
        after.sort_by(|a, b| a.cmp_first(b, all));
        let equal = merge(before, after, |b, a| b.cmp_first(a, all));
        if floats == all {
            return equal;
        }
        let mut matched = merge(&equal.before, &equal.after, |b, a| match b.cmp_first(a, floats) {
            Ordering::Equal if (floats..all).all(|c| self.same(&b.cell(c), &a.cell(c))) => Ordering::Equal,
            Ordering::Equal => b.cmp_columns(a, floats..all),
            order => order,
        });
        matched.pairs.extend(equal.pairs);
        matched
    }

    fn same(&self, before: &Cell<'_>, after: &Cell<'_>) -> bool {
        match (before, after) {
            (Cell::Float(b), Cell::Float(a)) if b.is_finite() && a.is_finite() => {
                (b - a).abs() <= self.tolerance * b.abs().max(a.abs())
            }
            _ => before == after,
        }
    }

    fn report(
        &self,
        partition: PartitionKey,
        matched: &Matched<'_>,
        changed: &[(Row<'_>, Row<'_>)],
        samples: usize,
    ) -> Diff {
        let count = |rows: usize| u64::try_from(rows).unwrap_or(u64::MAX);
        let removed = matched.before.iter().take(samples).map(|row| (*row, self.sample(Some(row), None)));
        let added = matched.after.iter().take(samples).map(|row| (*row, self.sample(None, Some(row))));
        let both = changed.iter().take(samples).map(|(b, a)| (*b, self.sample(Some(b), Some(a))));
        let mut samples: Vec<_> = removed.chain(added).chain(both).collect();
        let keys = if self.keyed { self.layout.keys() } else { self.layout.len() };
        samples.sort_by(|(a, _), (b, _)| a.cmp_first(b, keys));
        Diff {
            partition,
            keyed: self.keyed,
            added: count(matched.after.len()),
            removed: count(matched.before.len()),
            changed: count(changed.len()),
            unchanged: count(matched.pairs.len() - changed.len()),
            columns: BTreeMap::new(),
            distributions: BTreeMap::new(),
            samples: samples.into_iter().map(|(_, sample)| sample).collect(),
        }
    }

    /// A row as text; of a row on both sides only the columns that differ.
    fn sample(&self, before: Option<&Row<'_>>, after: Option<&Row<'_>>) -> RowDiff {
        let keys = if self.keyed { self.layout.keys() } else { 0 };
        let shown: Vec<usize> = (keys..self.layout.len())
            .filter(|c| match (before, after) {
                (Some(b), Some(a)) => !self.same(&b.cell(*c), &a.cell(*c)),
                _ => true,
            })
            .collect();
        let texts = |row: &Row<'_>, columns: &[usize]| {
            columns.iter().map(|c| (self.layout.name(*c).to_owned(), row.cell(*c).text())).collect()
        };
        let key: Vec<usize> = (0..keys).collect();
        RowDiff {
            key: before.or(after).map(|row| texts(row, &key)).unwrap_or_default(),
            before: before.map(|row| texts(row, &shown)),
            after: after.map(|row| texts(row, &shown)),
        }
    }
}
