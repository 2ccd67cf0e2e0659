//! Sums of columns: exact for integers and decimals, compensated for floats.

use super::Total;
use crate::domain::decimal::Decimal;
use crate::domain::rows::{Cell, Column};
use crate::error::{Error, Result};

/// The running total of one column.
#[derive(Clone, Debug)]
pub(super) struct Totaller {
    column: String,
    exact: Option<Decimal>,
    float: Option<FloatSum>,
}

impl Totaller {
    pub(super) fn new(column: &str) -> Self {
        Self { column: column.to_owned(), exact: None, float: None }
    }

    pub(super) fn column(&self) -> &str {
        &self.column
    }

    /// Adds the values of a column of so many rows.
    pub(super) fn push(&mut self, column: &Column, rows: usize) -> Result<()> {
        let narrow = column.narrow_sum();
        if let Some(sum) = narrow.filter(|_| column.nulls() < rows) {
            self.add(&sum)?;
        }
        for row in 0..if narrow.is_some() { 0 } else { rows } {
            match column.cell(row) {
                Cell::Null => {}
                Cell::Decimal(value) => self.add(&value)?,
                Cell::Float(value) => self.float.get_or_insert_default().add(value),
                other => {
                    return Err(Error::invalid(format!(
                        "column `{}` is to be totalled, but holds the {} `{other}`",
                        self.column,
                        other.kind()
                    )));
                }
            }
        }
        match (&self.float, &self.exact) {
            (Some(float), _) if !float.sum().is_finite() => Err(self.overflow("a double")),
            (Some(_), Some(_)) => {
                Err(Error::invalid(format!("column `{}` is now a decimal, now a float", self.column)))
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, value: &Decimal) -> Result<()> {
        let sum = self.exact.unwrap_or(Decimal::ZERO);
        self.exact = Some(sum.checked_add(value).ok_or_else(|| self.overflow("256 bits"))?);
        Ok(())
    }

    pub(super) fn finish(&self) -> Total {
        match (&self.float, self.exact) {
            (Some(float), _) => float.total(),
            (None, Some(sum)) => Total::Exact(sum),
            (None, None) => Total::Empty,
        }
    }

    fn overflow(&self, limit: &str) -> Error {
        Error::invalid(format!("the total of column `{}` does not fit into {limit}", self.column))
            .with_advice("name the columns to total, without this one")
    }
}

/// Neumaier's compensated sum: the error does not grow with the number of rows.
#[derive(Clone, Debug, Default)]
struct FloatSum {
    sum: f64,
    lost: f64,
    magnitudes: f64,
    /// As a float, which counts exactly up to 2⁵³.
    count: f64,
    nan: u64,
    infinite: u64,
    negative_infinite: u64,
}

impl FloatSum {
    fn add(&mut self, value: f64) {
        if value.is_nan() {
            self.nan += 1;
        } else if value == f64::INFINITY {
            self.infinite += 1;
        } else if value == f64::NEG_INFINITY {
            self.negative_infinite += 1;
        } else {
            let sum = self.sum + value;
            let (large, small) =
                if self.sum.abs() >= value.abs() { (self.sum, value) } else { (value, self.sum) };
            self.lost += (large - sum) + small;
            self.sum = sum;
            self.magnitudes += value.abs();
            self.count += 1.0;
        }
    }

    fn sum(&self) -> f64 {
        self.sum + self.lost
    }

    fn total(&self) -> Total {
        Total::Float {
            sum: self.sum(),
            // JSON has no infinity.
            tolerance: (self.count * f64::EPSILON * self.magnitudes).min(f64::MAX),
            nan: self.nan,
            infinite: self.infinite,
            negative_infinite: self.negative_infinite,
        }
    }
}
