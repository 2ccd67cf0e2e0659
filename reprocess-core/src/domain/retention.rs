//! What is read from where, when an input no longer holds all of it.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::interval::Interval;
use crate::error::{Error, Result};

/// Where a segment of a replay is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The declared raw archive.
    Archive,
    /// The log itself.
    Log,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Archive => "archive",
            Self::Log => "log",
        })
    }
}

/// A part of a replay: exactly these instants, from this source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// Where it is read.
    pub source: Source,
    /// What is read.
    pub interval: Interval,
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from the {}", self.interval, self.source)
    }
}

/// Divides an interval into what the log still holds and what only the archive does, oldest first and without gap or
/// overlap. `log` and `archive` are what is readable, and stays so until the plan ends.
///
/// Never shortened: what neither holds is an error that names it.
pub fn segments(
    interval: Interval,
    log: Option<Interval>,
    archive: Option<Interval>,
) -> Result<Vec<Segment>> {
    let mut cuts = vec![interval.start(), interval.end()];
    let bounds = log.iter().chain(&archive).flat_map(|readable| [readable.start(), readable.end()]);
    cuts.extend(bounds.filter(|cut| interval.contains(*cut)));
    cuts.sort_unstable();
    cuts.dedup();
    let holds = |readable: Option<Interval>, at: DateTime<Utc>| readable.is_some_and(|r| r.contains(at));
    let mut pieces: Vec<(Option<Source>, Interval)> = Vec::new();
    for piece in cuts.windows(2).filter_map(|pair| Interval::new(pair[0], pair[1])) {
        let source = match piece.start() {
            at if holds(log, at) => Some(Source::Log),
            at if holds(archive, at) => Some(Source::Archive),
            _ => None,
        };
        match pieces.last_mut() {
            Some((last, so_far)) if *last == source => *so_far = so_far.hull(&piece),
            _ => pieces.push((source, piece)),
        }
    }
    let missing: Vec<_> =
        pieces.iter().filter(|(source, _)| source.is_none()).map(|(_, i)| i.to_string()).collect();
    if !missing.is_empty() {
        return Err(refuse(&missing, log, archive));
    }
    Ok(pieces
        .into_iter()
        .filter_map(|(source, interval)| Some(Segment { source: source?, interval }))
        .collect())
}

fn refuse(missing: &[String], log: Option<Interval>, archive: Option<Interval>) -> Error {
    let text = |readable: Option<Interval>| readable.map_or("nothing".to_owned(), |r| r.to_string());
    Error::invalid(format!("neither log nor archive holds {}", missing.join(" and ")))
        .with_context("log", text(log))
        .with_context("archive", text(archive))
        .with_advice("declare an archive that holds it, or select partitions that do not need it")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hours(start: i64, end: i64) -> Interval {
        let at = |hour: i64| DateTime::from_timestamp(hour * 3600, 0).unwrap();
        Interval::new(at(start), at(end)).unwrap()
    }

    fn check(log: Option<Interval>, archive: Option<Interval>, expected: &[(Source, Interval)]) {
        let found = segments(hours(10, 20), log, archive).unwrap();
        let found: Vec<_> = found.into_iter().map(|s| (s.source, s.interval)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn the_archive_serves_what_the_log_no_longer_holds() {
        use Source::{Archive, Log};
        check(Some(hours(0, 30)), None, &[(Log, hours(10, 20))]);
        check(Some(hours(10, 20)), Some(hours(0, 20)), &[(Log, hours(10, 20))]);
        check(Some(hours(15, 30)), Some(hours(0, 15)), &[(Archive, hours(10, 15)), (Log, hours(15, 20))]);
        check(Some(hours(15, 30)), Some(hours(0, 18)), &[(Archive, hours(10, 15)), (Log, hours(15, 20))]);
        check(None, Some(hours(10, 20)), &[(Archive, hours(10, 20))]);
        check(Some(hours(20, 30)), Some(hours(9, 25)), &[(Archive, hours(10, 20))]);
        let around = [(Archive, hours(10, 12)), (Log, hours(12, 14)), (Archive, hours(14, 20))];
        check(Some(hours(12, 14)), Some(hours(0, 30)), &around);
    }

    #[test]
    fn what_nothing_holds_is_named() {
        let error = segments(hours(10, 20), Some(hours(15, 19)), Some(hours(11, 14))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "neither log nor archive holds [1970-01-01T10:00:00Z, 1970-01-01T11:00:00Z) and \
             [1970-01-01T14:00:00Z, 1970-01-01T15:00:00Z) and [1970-01-01T19:00:00Z, 1970-01-01T20:00:00Z) \
             (log [1970-01-01T15:00:00Z, 1970-01-01T19:00:00Z), archive [1970-01-01T11:00:00Z, \
             1970-01-01T14:00:00Z)); declare an archive that holds it, or select partitions that do not need it"
        );
        assert!(
            segments(hours(10, 20), None, None)
                .unwrap_err()
                .to_string()
                .contains("(log nothing, archive nothing)")
        );
    }

    fn any_interval() -> impl Strategy<Value = Interval> {
        (0..12_i64, 1..6_i64).prop_map(|(start, length)| hours(start, start + length))
    }

    proptest! {
        #[test]
        fn each_hour_is_read_exactly_once_from_the_log_where_it_can_be(
            interval in any_interval(), log in prop::option::of(any_interval()), archive in prop::option::of(any_interval()),
        ) {
            let hour = |h: i64| DateTime::from_timestamp(h * 3600, 0).unwrap();
            let expected: Vec<_> = (0..20).map(hour).filter(|t| interval.contains(*t)).map(|t| {
                if log.is_some_and(|l| l.contains(t)) { Some(Source::Log) }
                else if archive.is_some_and(|a| a.contains(t)) { Some(Source::Archive) }
                else { None }
            }).collect();
            match segments(interval, log, archive) {
                Err(_) => prop_assert!(expected.contains(&None)),
                Ok(found) => {
                    let read: Vec<_> = (0..20).map(hour).flat_map(|t| {
                        found.iter().filter(move |s| s.interval.contains(t)).map(|s| Some(s.source))
                    }).collect();
                    prop_assert_eq!(read, expected);
                    prop_assert!(found.windows(2).all(|p| p[0].interval.end() == p[1].interval.start() && p[0].source != p[1].source));
                }
            }
        }
    }
}
