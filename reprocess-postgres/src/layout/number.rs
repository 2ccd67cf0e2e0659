//! The binary form of `numeric`: digits of base 10,000 around the point.

use arrow_buffer::i256;

const POSITIVE: u16 = 0x0000;
const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const MINUS_INFINITY: u16 = 0xF000;

/// More than 256 bits and 76 digits behind the point need.
const MOST_GROUPS: usize = 42;

/// Writes `unscaled × 10^-scale`, with its length before it. `None` where it has more digits than `precision`.
pub(super) fn write(unscaled: i256, precision: u8, scale: u8, out: &mut Vec<u8>) -> Option<()> {
    if !fits(unscaled, precision) {
        return None;
    }
    let negative = unscaled < i256::ZERO;
    let mut groups = [0_u16; MOST_GROUPS];
    let count = match unscaled.checked_abs()?.to_i128() {
        Some(small) => groups_of(small.unsigned_abs(), scale, &mut groups)?,
        None => wide_groups_of(unscaled.checked_abs()?, scale, &mut groups)?,
    };
    // The lowest group is first here, and last on the wire. Groups of zeros at both ends are left out.
    let groups = groups.get(..count)?;
    let low = groups.iter().position(|group| *group != 0).unwrap_or(count);
    let behind_point = usize::from(scale).div_ceil(4);
    let kept = groups.get(low..)?;
    let high = kept.iter().rposition(|group| *group != 0).map_or(0, |last| last + 1);
    let kept = kept.get(..high)?;
    let weight = if kept.is_empty() {
        0
    } else {
        i16::try_from(low + kept.len()).ok()? - i16::try_from(behind_point).ok()? - 1
    };
    let digits = u16::try_from(kept.len()).ok()?;
    out.extend((8 + 2 * i32::from(digits)).to_be_bytes());
    out.extend(digits.to_be_bytes());
    out.extend(weight.to_be_bytes());
    out.extend(if negative { NEGATIVE } else { POSITIVE }.to_be_bytes());
    out.extend(u16::from(scale).to_be_bytes());
    kept.iter().rev().for_each(|group| out.extend(group.to_be_bytes()));
    Some(())
}

fn groups_of(mut rest: u128, scale: u8, groups: &mut [u16]) -> Option<usize> {
    let odd = u32::from(scale % 4);
    let mut count = 0;
    if odd > 0 {
        let part = rest % 10_u128.pow(odd);
        *groups.get_mut(count)? = u16::try_from(part * 10_u128.pow(4 - odd)).ok()?;
        rest /= 10_u128.pow(odd);
        count += 1;
    }
    while rest > 0 {
        *groups.get_mut(count)? = u16::try_from(rest % 10_000).ok()?;
        rest /= 10_000;
        count += 1;
    }
    Some(count)
}

fn wide_groups_of(mut rest: i256, scale: u8, groups: &mut [u16]) -> Option<usize> {
    let odd = u32::from(scale % 4);
    let mut count = 0;
    if odd > 0 {
        let by = i256::from_i128(10_i128.pow(odd));
        let part = rest.checked_rem(by)?.to_i128()?;
        *groups.get_mut(count)? = u16::try_from(part * 10_i128.pow(4 - odd)).ok()?;
        rest = rest.checked_div(by)?;
        count += 1;
    }
    let base = i256::from_i128(10_000);
    while rest != i256::ZERO {
        *groups.get_mut(count)? = u16::try_from(rest.checked_rem(base)?.to_i128()?).ok()?;
        rest = rest.checked_div(base)?;
        count += 1;
    }
    Some(count)
}

/// What a `numeric` of the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// At the scale that was asked for.
    Unscaled(i256),
    /// More digits than the column has, before or behind the point.
    TooLong,
    Nan,
    Infinity,
    MinusInfinity,
}

/// Reads the bytes of a number. `None` where they are none.
pub(super) fn read(bytes: &[u8], precision: u8, scale: u8) -> Option<Number> {
    let (count, rest) = bytes.split_first_chunk::<2>()?;
    let (weight, rest) = rest.split_first_chunk::<2>()?;
    let (sign, rest) = rest.split_first_chunk::<2>()?;
    let (_, digits) = rest.split_first_chunk::<2>()?;
    let negative = match u16::from_be_bytes(*sign) {
        POSITIVE => false,
        NEGATIVE => true,
        NAN => return Some(Number::Nan),
        INFINITY => return Some(Number::Infinity),
        MINUS_INFINITY => return Some(Number::MinusInfinity),
        _ => return None,
    };
    let (groups, odd) = digits.as_chunks::<2>();
    if !odd.is_empty() || groups.len() != usize::from(u16::from_be_bytes(*count)) {
        return None;
    }
    let groups = groups.iter().map(|group| u16::from_be_bytes(*group));
    let exponent = 4 * (i64::from(i16::from_be_bytes(*weight)) + 1 - i64::try_from(groups.len()).ok()?)
        + i64::from(scale);
    let number = scaled(groups, exponent).and_then(|n| if negative { n.checked_neg() } else { Some(n) });
    Some(number.filter(|n| fits(*n, precision)).map_or(Number::TooLong, Number::Unscaled))
}

/// The groups times a power of ten, that of the last group; `None` where the result is no whole number of 256 bits.
fn scaled(groups: impl ExactSizeIterator<Item = u16>, exponent: i64) -> Option<i256> {
    let mut number = i256::ZERO;
    let mut exponent = exponent + 4 * i64::try_from(groups.len()).ok()?;
    for group in groups {
        exponent -= 4;
        // How many digits of the group stand behind the end of the number, where there may only be zeros.
        let behind = u32::try_from((-exponent).clamp(0, 4)).ok()?;
        let (kept, cut) = (group / 10_u16.pow(behind), group % 10_u16.pow(behind));
        if cut != 0 {
            return None;
        }
        number = number
            .checked_mul(i256::from_i128(10_i128.pow(4 - behind)))?
            .checked_add(i256::from_i128(i128::from(kept)))?;
    }
    if number == i256::ZERO || exponent <= 0 {
        return Some(number);
    }
    number.checked_mul(i256::from_i128(10).checked_pow(u32::try_from(exponent).ok()?)?)
}

fn fits(number: i256, precision: u8) -> bool {
    let limit = i256::from_i128(10).checked_pow(u32::from(precision));
    limit.is_none_or(|limit| number.checked_abs().is_some_and(|number| number < limit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(unscaled: i256, precision: u8, scale: u8) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        write(unscaled, precision, scale, &mut out)?;
        Some(out)
    }

    fn number(i: i128) -> i256 {
        i256::from_i128(i)
    }

    /// As `numeric_send` writes it: count, weight, sign, scale, groups.
    fn wire(words: &[i32]) -> Vec<u8> {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()[2..].to_vec()).collect();
        let mut bytes = i32::try_from(words.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend(words);
        bytes
    }

    #[test]
    fn numbers_are_written_in_groups_around_the_point() {
        let check = |unscaled: i128, precision: u8, scale: u8, words: &[i32]| {
            let bytes = written(number(unscaled), precision, scale).unwrap();
            assert_eq!(bytes, wire(words), "{unscaled} at {scale}");
            assert_eq!(read(&bytes[4..], precision, scale), Some(Number::Unscaled(number(unscaled))));
        };
        check(0, 5, 2, &[0, 0, 0, 2]);
        check(1, 1, 0, &[1, 0, 0, 0, 1]);
        check(12_345_678, 8, 0, &[2, 1, 0, 0, 1234, 5678]);
        check(-12_345, 8, 2, &[2, 0, 0x4000, 2, 123, 4500]);
        check(10_000, 8, 0, &[1, 1, 0, 0, 1]);
        check(1, 8, 5, &[1, -2, 0, 5, 1000]);
        check(100_000_000, 9, 8, &[1, 0, 0, 8, 1]);
        check(
            10_i128.pow(38) - 1,
            38,
            37,
            &[11, 0, 0, 37, 9, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9000],
        );
    }

    #[test]
    fn the_longest_numbers_come_back_at_every_scale() {
        let longest = i256::from_string(&"9".repeat(76)).unwrap();
        for scale in 0..=76 {
            for number in [longest, longest.wrapping_neg()] {
                let bytes = written(number, 76, scale).unwrap();
                assert_eq!(read(&bytes[4..], 76, scale), Some(Number::Unscaled(number)), "{scale}");
            }
        }
    }

    #[test]
    fn what_a_column_does_not_hold_is_told() {
        assert_eq!(written(number(1_000), 3, 0), None);
        assert_eq!(written(i256::MIN, 76, 0), None);
        let read = |words: &[i32]| read(&wire(words)[4..], 5, 2);
        assert_eq!(read(&[0, 0, 0xC000, 0]), Some(Number::Nan));
        assert_eq!(read(&[0, 0, 0xD000, 0]), Some(Number::Infinity));
        assert_eq!(read(&[0, 0, 0xF000, 0]), Some(Number::MinusInfinity));
        assert_eq!(read(&[1, 0, 0, 0, 1000]), Some(Number::TooLong));
        assert_eq!(read(&[2, 0, 0, 3, 1, 1230]), Some(Number::TooLong), "a third digit behind the point");
        assert_eq!(read(&[1, 30_000, 0, 0, 1]), Some(Number::TooLong));
        assert_eq!(read(&[1, -30_000, 0, 0, 1]), Some(Number::TooLong));
        assert_eq!(read(&[2, 0, 0, 0, 1]), None, "fewer groups than it says");
        assert_eq!(read(&[0, 0, 0x1234, 0]), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(high in any::<i128>(), shift in 0_u8..120, scale in 0_u8..=76, wide in any::<bool>()) {
            let mut unscaled = number(high >> shift);
            if wide {
                unscaled = unscaled.wrapping_mul(number(10_i128.pow(37)));
            }
            prop_assume!(fits(unscaled, 76));
            let bytes = written(unscaled, 76, scale).unwrap();
            prop_assert_eq!(read(&bytes[4..], 76, scale), Some(Number::Unscaled(unscaled)));
        }
    }
}
