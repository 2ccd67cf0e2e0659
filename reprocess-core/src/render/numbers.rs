//! Numbers before and after.

use crate::domain::decimal::Decimal;
use crate::domain::profile::{Float, Total};

/// A number before, after, and by how much it changed, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) before: String,
    pub(super) after: String,
    pub(super) change: String,
}

impl Pair {
    /// Two counts; `None` is a side of which nothing is known.
    pub(super) fn of_counts(before: Option<u64>, after: Option<u64>) -> Self {
        let exact = |n: Option<u64>| n.map(|n| Total::Exact(decimal(n)));
        Self::of_totals(exact(before).as_ref(), exact(after).as_ref())
    }

    /// Two totals; `None` is a side of which nothing is known.
    pub(super) fn of_totals(before: Option<&Total>, after: Option<&Total>) -> Self {
        let text = |total: Option<&Total>| total.map_or_else(|| "?".to_owned(), text);
        let change = before.zip(after).and_then(|(b, a)| difference(b, a));
        Self { before: text(before), after: text(after), change: change.unwrap_or_default() }
    }

    /// Whether the two are known to be equal.
    pub(super) fn is_same(&self) -> bool {
        self.change == "0"
    }
}

/// The numbers of one column of a table, aligned: `900 → 870  -30`.
pub(super) fn aligned(pairs: &[Pair]) -> Vec<String> {
    let width = |of: fn(&Pair) -> &String| pairs.iter().map(|p| of(p).chars().count()).max().unwrap_or(0);
    let (before, after, change) = (width(|p| &p.before), width(|p| &p.after), width(|p| &p.change));
    let line = |p: &Pair| format!("{:>before$} → {:>after$}  {:>change$}", p.before, p.after, p.change);
    pairs.iter().map(line).collect()
}

/// A count as a decimal.
pub(super) fn decimal(n: u64) -> Decimal {
    n.to_string().parse().unwrap_or(Decimal::ZERO)
}

fn text(total: &Total) -> String {
    match total {
        Total::Empty | Total::Exact(_) => total.to_string(),
        Total::Float { sum, nan, infinite, negative_infinite, .. } => {
            let mut text = float(*sum);
            for (n, name) in [(nan, "NaN"), (infinite, "∞"), (negative_infinite, "-∞")] {
                if *n > 0 {
                    text.push_str(&format!(" and {n} {name}"));
                }
            }
            text
        }
    }
}

/// A double with six digits behind the point, or with its exponent where that would hide it.
pub(super) fn float(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return format!("{number:.6e}");
    }
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn difference(before: &Total, after: &Total) -> Option<String> {
    if let (Some(b), Some(a)) = (exact(before), exact(after)) {
        let change = a.checked_sub(&b)?;
        return Some(match change.cmp(&Decimal::ZERO) {
            std::cmp::Ordering::Equal => "0".to_owned(),
            std::cmp::Ordering::Greater => format!("+{change}"),
            std::cmp::Ordering::Less => change.to_string(),
        });
    }
    let (b, a) = (Float::of(before), Float::of(after));
    let change = a.sum - b.sum;
    if change.abs() <= a.tolerance + b.tolerance {
        return Some(if a.special == b.special { "0" } else { "≠" }.to_owned());
    }
    Some(if change > 0.0 { format!("+{}", float(change)) } else { float(change) })
}

fn exact(total: &Total) -> Option<Decimal> {
    match total {
        Total::Empty => Some(Decimal::ZERO),
        Total::Exact(d) => Some(*d),
        Total::Float { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_signed_and_floats_are_equal_within_their_tolerance() {
        let exact = |text: &str| Total::Exact(text.parse().unwrap());
        let double = |sum, nan| Total::Float { sum, tolerance: 1e-9, nan, infinite: 0, negative_infinite: 0 };
        let check = |b: &Total, a: &Total, change: &str| {
            assert_eq!(Pair::of_totals(Some(b), Some(a)).change, change);
        };
        check(&exact("900"), &exact("870"), "-30");
        check(&exact("0.5"), &exact("1.50"), "+1.00");
        check(&Total::Empty, &exact("0.00"), "0");
        check(&double(0.1 + 0.2, 0), &double(0.3, 0), "0");
        check(&double(0.3, 0), &double(0.3, 1), "≠");
        check(&double(1.0, 0), &double(0.25, 0), "-0.75");
        assert_eq!(
            Pair::of_counts(None, Some(3)),
            Pair { before: "?".into(), after: "3".into(), change: String::new() }
        );
        assert_eq!(
            [float(0.1 + 0.2), float(1e-9), float(-0.0), float(12.0)],
            ["0.3", "1.000000e-9", "-0", "12"]
        );
    }
}
