//! Which transactions a moment saw, in the text of the server.

use std::fmt;
use std::str::FromStr;

/// A text of `pg_current_snapshot()`, like `10:20:10,14`: transactions below 10 had ended, 20 and later had not begun,
/// and of those between 10 and 14 were running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    text: String,
    /// The first transaction that had not begun.
    pub(super) next: u64,
}

impl FromStr for Seen {
    type Err = ();

    /// Refuses what the server would not write, since it is going to read it.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split(':');
        let (Some(oldest), Some(next), Some(running), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        let (oldest, next) = (number(oldest)?, number(next)?);
        let running: Vec<u64> = if running.is_empty() {
            vec![]
        } else {
            running.split(',').map(number).collect::<Result<_, ()>>()?
        };
        let in_order =
            running.is_sorted_by(|a, b| a < b) && running.iter().all(|x| (oldest..next).contains(x));
        if oldest == 0 || oldest > next || !in_order {
            return Err(());
        }
        Ok(Self { text: text.to_owned(), next })
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn number(text: &str) -> Result<u64, ()> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().map_err(|_| ()) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_server_writes_is_read() {
        for text in ["3:3:", "10:20:10,14", "10:20:19", "4294967300:4294967301:4294967300"] {
            assert_eq!(text.parse::<Seen>().unwrap().to_string(), text);
        }
        assert_eq!("10:20:10,14".parse::<Seen>().unwrap().next, 20);
        for text in [
            "", "3:3", "3:3::", "0:3:", "5:3:", "3:5:5", "3:5:2", "3:5:4,4", "3:5:4,3", "+3:3:", "3:3: ",
            "a:3:", "3:5:,",
        ] {
            assert!(text.parse::<Seen>().is_err(), "{text}");
        }
    }
}
