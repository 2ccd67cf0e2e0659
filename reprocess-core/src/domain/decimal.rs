//! Exact decimal numbers of 256 bits, for totals and predictions.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use arrow_buffer::i256;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// `unscaled × 10^-scale`, exact. Two decimals are equal when their numbers are, whatever their scale. The text and
/// JSON form is plain digits, for example `"-50.00"`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Decimal {
    unscaled: i256,
    scale: u8,
}

impl Decimal {
    /// Zero.
    pub const ZERO: Self = Self { unscaled: i256::ZERO, scale: 0 };

    /// `unscaled × 10^-scale`.
    pub fn new(unscaled: i256, scale: u8) -> Self {
        Self { unscaled, scale }
    }

    /// The digits without the point.
    pub fn unscaled(&self) -> i256 {
        self.unscaled
    }

    /// How many digits stand behind the point.
    pub fn scale(&self) -> u8 {
        self.scale
    }

    /// The same number with more digits behind the point; `None` where 256 bits do not hold it or `scale` is smaller.
    pub fn rescale(&self, scale: u8) -> Option<Self> {
        let digits = scale.checked_sub(self.scale)?;
        if digits == 0 {
            return Some(*self);
        }
        let factor = i256::from_i128(10).checked_pow(u32::from(digits))?;
        Some(Self { unscaled: self.unscaled.checked_mul(factor)?, scale })
    }

    /// The sum; `None` where 256 bits do not hold it.
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        let scale = self.scale.max(other.scale);
        let (a, b) = (self.rescale(scale)?, other.rescale(scale)?);
        Some(Self { unscaled: a.unscaled.checked_add(b.unscaled)?, scale })
    }

    /// The difference; `None` where 256 bits do not hold it.
    pub fn checked_sub(&self, other: &Self) -> Option<Self> {
        let scale = self.scale.max(other.scale);
        let (a, b) = (self.rescale(scale)?, other.rescale(scale)?);
        Some(Self { unscaled: a.unscaled.checked_sub(b.unscaled)?, scale })
    }

    /// The number without its sign; `None` for the one number that has no positive twin.
    pub fn checked_abs(&self) -> Option<Self> {
        Some(Self { unscaled: self.unscaled.checked_abs()?, scale: self.scale })
    }

    /// The same number with the fewest digits behind the point.
    #[must_use]
    pub fn normalized(&self) -> Self {
        if self.scale == 0 {
            return *self;
        }
        // Division of 256 bits takes some fifty times as long.
        if let Some(mut small) = self.unscaled.to_i128().and_then(|unscaled| i64::try_from(unscaled).ok()) {
            let mut scale = self.scale;
            while scale > 0 && small % 10 == 0 {
                small /= 10;
                scale -= 1;
            }
            return Self { unscaled: i256::from_i128(i128::from(small)), scale };
        }
        let ten = i256::from_i128(10);
        let (mut unscaled, mut scale) = (self.unscaled, self.scale);
        while scale > 0 && unscaled.wrapping_rem(ten) == i256::ZERO {
            unscaled = unscaled.wrapping_div(ten);
            scale -= 1;
        }
        Self { unscaled, scale }
    }

    /// The nearest double.
    pub fn to_f64(&self) -> f64 {
        self.to_string().parse().unwrap_or(f64::NAN)
    }
}

impl PartialEq for Decimal {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.normalized(), other.normalized());
        a.unscaled == b.unscaled && a.scale == b.scale
    }
}

impl Eq for Decimal {}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.scale > other.scale {
            return other.cmp(self).reverse();
        }
        match self.rescale(other.scale) {
            Some(same_scale) => same_scale.unscaled.cmp(&other.unscaled),
            None if self.unscaled == i256::ZERO => i256::ZERO.cmp(&other.unscaled),
            // Too large for the other's scale, so farther from zero than the other can be.
            None => self.unscaled.cmp(&i256::ZERO),
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<i64> for Decimal {
    fn from(integer: i64) -> Self {
        Self { unscaled: i256::from_i128(i128::from(integer)), scale: 0 }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.unscaled.to_string();
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", text.as_str()),
        };
        let scale = usize::from(self.scale);
        let padded = format!("{digits:0>width$}", width = scale + 1);
        let (whole, fraction) = padded.split_at(padded.len() - scale);
        let point = if scale == 0 { "" } else { "." };
        f.pad(&format!("{sign}{whole}{point}{fraction}"))
    }
}

impl FromStr for Decimal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse =
            || Error::invalid(format!("`{text}` is no decimal number")).with_advice("write it as -50.00");
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let plain = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
        if !plain(whole.strip_prefix('-').unwrap_or(whole)) || !plain(fraction) {
            return Err(refuse());
        }
        let scale = u8::try_from(fraction.len()).map_err(|_| refuse())?;
        let unscaled = i256::from_string(&format!("{whole}{fraction}")).ok_or_else(refuse)?;
        Ok(Self { unscaled, scale })
    }
}

impl TryFrom<String> for Decimal {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Decimal> for String {
    fn from(decimal: Decimal) -> Self {
        decimal.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_scale_does_not_matter() {
        for text in
            ["0", "-0.50", "100.00", "12345678901234567890123456789012345678901234567890.1", "-7", "0.05"]
        {
            assert_eq!(text.parse::<Decimal>().unwrap().to_string(), text);
        }
        assert_eq!("1.50".parse::<Decimal>().unwrap(), "1.5".parse().unwrap());
        assert_ne!("1.50".parse::<Decimal>().unwrap(), "1.51".parse().unwrap());
        for text in ["", "-", ".", "1e5", "1.-5", "--1", "1.2.3", "NaN"] {
            assert!(text.parse::<Decimal>().is_err(), "{text}");
        }
    }

    #[test]
    fn zeros_behind_the_point_are_taken_away_at_any_width() {
        let digits = |unscaled: i256, scale| {
            let short = Decimal::new(unscaled, scale).normalized();
            (short.unscaled().to_string(), short.scale())
        };
        for (text, scale, expected) in [
            ("0", 3, ("0", 0)),
            ("100", 0, ("100", 0)),
            ("-1200", 3, ("-12", 1)),
            ("1200", 1, ("120", 0)),
            ("9223372036854775800", 4, ("92233720368547758", 2)),
            ("-9223372036854775808", 1, ("-9223372036854775808", 1)),
            ("92233720368547758080", 1, ("9223372036854775808", 0)),
            (
                "-170141183460469231731687303715884105728000",
                5,
                ("-170141183460469231731687303715884105728", 2),
            ),
        ] {
            let unscaled = i256::from_string(text).unwrap();
            assert_eq!(digits(unscaled, scale), (expected.0.to_owned(), expected.1), "{text} {scale}");
        }
    }

    #[test]
    fn order_is_that_of_the_numbers_at_any_scale() {
        let largest = Decimal::new(i256::MAX, 0);
        let tiny = Decimal::new(i256::ONE, 200);
        let minus_tiny = Decimal::new(i256::MINUS_ONE, 200);
        let d = |text: &str| text.parse::<Decimal>().unwrap();
        let ascending = [
            Decimal::new(i256::MIN, 0),
            d("-2"),
            d("-1.999"),
            minus_tiny,
            d("0"),
            tiny,
            d("1.5"),
            d("10"),
            largest,
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(a.cmp(b), i.cmp(&j), "{a} and {b}");
            }
        }
        assert_eq!(d("1.50").cmp(&d("1.5")), Ordering::Equal);
        assert_eq!(Decimal::new(i256::ZERO, 200).cmp(&d("0")), Ordering::Equal);
    }

    #[test]
    fn sums_are_exact_or_refused() {
        let d = |text: &str| text.parse::<Decimal>().unwrap();
        assert_eq!(d("0.1").checked_add(&d("0.20")).unwrap().to_string(), "0.30");
        assert_eq!(d("1").checked_sub(&d("1.001")).unwrap().to_string(), "-0.001");
        assert_eq!(Decimal::new(i256::MAX, 0).checked_add(&d("1")), None);
    }

    proptest::proptest! {
        #[test]
        fn what_is_no_decimal_is_refused_and_what_is_one_reads_back(
            text in proptest::prop_oneof!["[-+.0-9]{0,12}", "-?[0-9]{60,90}(\\.[0-9]{0,90})?", "\\PC{0,12}"],
        ) {
            if let Ok(decimal) = text.parse::<Decimal>() {
                let again: Decimal = decimal.to_string().parse().unwrap();
                proptest::prop_assert_eq!(again, decimal);
                proptest::prop_assert_eq!((again.unscaled(), again.scale()), (decimal.unscaled(), decimal.scale()));
                let _ = (decimal.normalized(), decimal.to_f64(), decimal.checked_abs(), decimal.rescale(9));
            }
        }
    }
}
