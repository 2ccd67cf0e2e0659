//! Pages of titled fields, sections and tables.

use chrono::{DateTime, Utc};
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

/// Widest line.
pub(super) const WIDTH: usize = 120;
/// Width of the names of fields.
const NAMES: usize = 13;

const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Text that grows line by line.
#[derive(Debug, Default)]
pub(super) struct Page(String);

impl Page {
    /// A page with its first line.
    pub(super) fn new(title: impl AsRef<str>) -> Self {
        let mut page = Self::default();
        page.wrapped("", "", title.as_ref());
        page
    }

    /// A name and its value.
    pub(super) fn field(&mut self, name: &str, value: impl AsRef<str>) {
        let hang = " ".repeat(NAMES + 3);
        self.wrapped(&format!("  {name:<NAMES$} "), &hang, value.as_ref());
    }

    /// A field that is left out where there is nothing to say.
    pub(super) fn field_of(&mut self, name: &str, value: Option<impl AsRef<str>>) {
        if let Some(value) = value {
            self.field(name, value);
        }
    }

    /// A heading, after an empty line.
    pub(super) fn section(&mut self, heading: impl AsRef<str>) {
        self.0.push('\n');
        self.wrapped("", "", heading.as_ref());
    }

    /// A line of a section.
    pub(super) fn item(&mut self, text: impl AsRef<str>) {
        self.wrapped("  ", "    ", text.as_ref());
    }

    /// Lines of a section, at the most `shown` of them, and how many more there are.
    pub(super) fn items(&mut self, shown: usize, items: impl IntoIterator<Item = String>) {
        let mut left_out = 0_usize;
        for (place, item) in items.into_iter().enumerate() {
            match place < shown {
                true => self.item(item),
                false => left_out += 1,
            }
        }
        self.left_out(left_out);
    }

    /// Says how many lines are missing, where some are.
    pub(super) fn left_out(&mut self, lines: usize) {
        if lines > 0 {
            self.item(format!("… and {lines} more"));
        }
    }

    /// A block of lines as they are.
    pub(super) fn block(&mut self, text: &str) {
        for line in text.lines() {
            self.0.push_str(line.trim_end());
            self.0.push('\n');
        }
    }

    fn wrapped(&mut self, first: &str, next: &str, text: &str) {
        let mut indent = first;
        for line in text.lines() {
            for part in wrap(line, WIDTH.saturating_sub(next.chars().count())) {
                self.0.push_str(indent);
                self.0.push_str(part);
                self.0.push('\n');
                indent = next;
            }
        }
    }

    /// The text, each line ended.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Breaks a line between words; a word that is longer than the width keeps its line.
fn wrap(line: &str, width: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = line.trim_end();
    while rest.chars().count() > width {
        let limit = rest.char_indices().nth(width + 1).map_or(rest.len(), |(at, _)| at);
        let cut = rest[..limit].trim_start().len();
        let start = limit - cut;
        let Some(space) = rest[start..limit].rfind(' ').or_else(|| rest[start..].find(' ')) else { break };
        parts.push(rest[..start + space].trim_end());
        rest = rest[start + space..].trim_start();
    }
    parts.push(rest);
    parts
}

/// A table without borders; columns named in `right` are aligned to the right.
pub(super) fn table(header: &[&str], right: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(WIDTH).unwrap_or(u16::MAX));
    table.set_header(header.to_vec());
    table.add_rows(rows);
    for (place, name) in header.iter().enumerate() {
        if let (true, Some(column)) = (right.contains(name), table.column_mut(place)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// The instant to the second, in UTC.
pub(super) fn instant(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// The instant to the minute, in UTC, for columns that say so.
pub(super) fn minute(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M").to_string()
}

/// The time between two instants.
pub(super) fn duration(from: DateTime<Utc>, to: DateTime<Utc>) -> String {
    span(u64::try_from((to - from).num_milliseconds()).unwrap_or(0))
}

/// A time span in its two largest units.
pub(super) fn span(ms: u64) -> String {
    let (seconds, minutes, hours) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
    match (hours, minutes, seconds) {
        (0, 0, 0) => format!("{ms} ms"),
        (0, 0, s) => format!("{s}.{} s", ms % 1_000 / 100),
        (0, m, s) => format!("{m} min {} s", s % 60),
        (h, m, _) => format!("{h} h {} min", m % 60),
    }
}

/// A number and its noun, which gets an `s` where there is more than one.
pub(super) fn count(n: usize, noun: &str) -> String {
    match n {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    }
}

/// Text of at the most so many characters.
pub(super) fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        None => text.to_owned(),
        Some(_) => text.chars().take(longest.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Things with the same name together, in the order in which the names first occur.
pub(super) fn grouped<N: PartialEq, T>(things: impl IntoIterator<Item = (N, T)>) -> Vec<(N, Vec<T>)> {
    let mut groups: Vec<(N, Vec<T>)> = Vec::new();
    for (name, thing) in things {
        // What belongs together mostly comes together, so the last group is tried first.
        match groups.iter_mut().rev().find(|(known, _)| *known == name) {
            Some((_, all)) => all.push(thing),
            None => groups.push((name, vec![thing])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_nowhere_else() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("onetwothree four", 4), ["onetwothree", "four"]);
        assert_eq!(wrap("ééé ééé", 3), ["ééé", "ééé"]);
        assert_eq!(wrap("   x", 2), ["   x"]);
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
    }
}
