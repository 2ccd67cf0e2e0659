//! Versions of a table.

use reprocess_core::domain::ids::TableVersion;

/// Which changes of a table there had been: ours by the number of the last, those of others by which of their
/// transactions had ended. As text `12`, or `12@734:740:736` once others have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) seq: i64,
    pub(crate) others: Others,
}

/// Which changes of others count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    All,
    None,
    /// Those that a snapshot of PostgreSQL sees.
    Ended(String),
}

impl Moment {
    /// Later than every number.
    pub(super) const NOW: i64 = i64::MAX;

    pub(crate) fn now() -> Self {
        Self { seq: Self::NOW, others: Others::All }
    }

    pub(crate) fn first() -> Self {
        Self { seq: 0, others: Others::None }
    }

    /// `None` for what this backend never gave.
    pub(crate) fn of(version: &TableVersion) -> Option<Self> {
        let (seq, others) = match version.as_str().split_once('@') {
            Some((seq, snapshot)) => (seq, Others::Ended(checked(snapshot)?)),
            None => (version.as_str(), Others::None),
        };
        Some(Self { seq: number(seq).filter(|seq| *seq < Self::NOW)?, others })
    }

    pub(crate) fn table(&self) -> TableVersion {
        TableVersion::new(match &self.others {
            Others::Ended(snapshot) => format!("{}@{snapshot}", self.seq),
            Others::All | Others::None => self.seq.to_string(),
        })
    }
}

/// Numbers of the first transaction that had not ended, of the next to come, and of those between that had not ended.
fn checked(snapshot: &str) -> Option<String> {
    let mut parts = snapshot.split(':');
    let (first, next, open) = (number(parts.next()?)?, number(parts.next()?)?, parts.next()?);
    let mut last = first - 1;
    for open in open.split(',').filter(|open| !open.is_empty()) {
        let open = number(open).filter(|open| *open > last && *open < next)?;
        last = open;
    }
    (first > 0 && first <= next && parts.next().is_none()).then(|| snapshot.to_owned())
}

/// Digits alone.
fn number(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_it_was_given_and_others_are_none() {
        for text in ["0", "12", "12@734:740:", "12@734:740:734,736"] {
            let moment = Moment::of(&TableVersion::new(text)).unwrap();
            assert_eq!(moment.table().as_str(), text);
        }
        for text in [
            "",
            "-1",
            "+1",
            "x",
            "12@",
            "12@1:2",
            "12@5:4:",
            "12@1:5:5",
            "12@1:9:4,3",
            "12@0:1:",
            "12@1:2:;",
            "12@1:2::",
        ] {
            assert_eq!(Moment::of(&TableVersion::new(text)), None, "{text}");
        }
    }
}
