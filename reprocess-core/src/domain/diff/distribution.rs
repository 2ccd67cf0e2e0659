//! How far the values of a column moved.

use super::Distribution;
use crate::domain::decimal::Decimal;
use crate::domain::rows::Cell;
use crate::error::{Error, Result};

/// The differences of one column.
#[derive(Debug)]
pub(super) struct Differences {
    values: Vec<f64>,
    /// `None` as soon as a float was met.
    sum: Option<Decimal>,
}

impl Differences {
    pub(super) fn new() -> Self {
        Self { values: Vec::new(), sum: Some(Decimal::ZERO) }
    }

    /// Adds `after - before` where both are finite numbers.
    pub(super) fn add(&mut self, before: &Cell<'_>, after: &Cell<'_>) -> Result<()> {
        if let (Cell::Decimal(b), Cell::Decimal(a)) = (before, after) {
            let overflow =
                || Error::invalid(format!("the difference of {a} and {b} does not fit into 256 bits"));
            let difference = a.checked_sub(b).ok_or_else(overflow)?;
            if let Some(sum) = self.sum {
                self.sum = Some(sum.checked_add(&difference).ok_or_else(overflow)?);
            }
            self.values.push(difference.to_f64());
        } else if let (Some(b), Some(a)) = (finite(before), finite(after)) {
            self.sum = None;
            // JSON has no infinity.
            self.values.push((a - b).clamp(f64::MIN, f64::MAX));
        }
        Ok(())
    }

    /// `None` where there was nothing to subtract.
    pub(super) fn finish(mut self) -> Option<Distribution> {
        self.values.sort_by(f64::total_cmp);
        let rows = self.values.len();
        let at = |percent: usize| {
            let rank = (rows * percent).div_ceil(100).max(1);
            self.values.get(rank - 1).copied()
        };
        Some(Distribution {
            rows: u64::try_from(rows).unwrap_or(u64::MAX),
            min: at(0)?,
            p01: at(1)?,
            p50: at(50)?,
            p99: at(99)?,
            max: at(100)?,
            sum: self.sum,
        })
    }
}

fn finite(cell: &Cell<'_>) -> Option<f64> {
    let number = match cell {
        Cell::Decimal(d) => d.to_f64(),
        Cell::Float(f) => *f,
        _ => return None,
    };
    number.is_finite().then_some(number)
}
