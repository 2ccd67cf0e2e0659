//! Sums of columns: exact for integers and decimals, compensated for floats.

use super::Total;
use crate::domain::decimal::Decimal;
use crate::domain::rows::{Cell, Column};
use crate::error::{Error, Result};

impl Total {
    /// The sum of totals; `None` where one is not known or the sum does not fit.
    pub fn sum<'a>(totals: impl IntoIterator<Item = Option<&'a Self>>) -> Option<Self> {
        totals.into_iter().try_fold(Self::Empty, |sum, next| {
            Some(match (sum, *next?) {
                (Self::Empty, other) | (other, Self::Empty) => other,
                (Self::Exact(a), Self::Exact(b)) => Self::Exact(a.checked_add(&b)?),
                (a, b) => {
                    let (a, b) = (Float::of(&a), Float::of(&b));
                    Self::Float {
                        sum: a.sum + b.sum,
                        tolerance: a.tolerance + b.tolerance,
                        nan: a.special[0].saturating_add(b.special[0]),
                        infinite: a.special[1].saturating_add(b.special[1]),
                        negative_infinite: a.special[2].saturating_add(b.special[2]),
                    }
                }
            })
        })
    }
}

/// A total as a float.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Float {
    pub(crate) sum: f64,
    pub(crate) tolerance: f64,
    /// NaN, infinite, negative infinite.
    pub(crate) special: [u64; 3],
}

impl Float {
    pub(crate) fn of(total: &Total) -> Self {
        match total {
            Total::Empty => Self { sum: 0.0, tolerance: 0.0, special: [0; 3] },
            Total::Exact(d) => Self { sum: d.to_f64(), tolerance: 0.0, special: [0; 3] },
            Total::Float { sum, tolerance, nan, infinite, negative_infinite } => {
                Self { sum: *sum, tolerance: *tolerance, special: [*nan, *infinite, *negative_infinite] }
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_added_up_where_all_are_known() {
        let exact = |text: &str| Total::Exact(text.parse().unwrap());
        let double = |sum, nan| Total::Float { sum, tolerance: 0.5, nan, infinite: 0, negative_infinite: 0 };
        assert_eq!(
            Total::sum([Some(&exact("1")), Some(&Total::Empty), Some(&exact("2.5"))]),
            Some(exact("3.5"))
        );
        assert_eq!(Total::sum([Some(&exact("1")), None]), None);
        assert_eq!(Total::sum([]), Some(Total::Empty));
        let mixed = Total::Float { sum: 3.5, tolerance: 1.0, nan: 2, infinite: 0, negative_infinite: 0 };
        assert_eq!(Total::sum([&double(1.0, 2), &exact("1.5"), &double(1.0, 0)].map(Some)), Some(mixed));
    }
}
