//! The text of a query with its parameters.

use std::collections::BTreeMap;

use reprocess_core::domain::value::Value;
use reprocess_core::{Error, Result};

use crate::layout::date;
use crate::sql::Sql;

/// The text with its parameters bound: `:name` outside of texts, quoted names and comments.
pub(super) fn with_values(sql: &str, params: &BTreeMap<String, Value>) -> Result<Sql> {
    let mut bound = Sql::default();
    let mut rest = sql;
    let mut plain = String::new();
    while let Some(first) = rest.chars().next() {
        let skipped = skipped(rest, first);
        if skipped > 0 {
            let (text, after) = rest.split_at(skipped);
            plain.push_str(text);
            rest = after;
            continue;
        }
        let after = rest.get(first.len_utf8()..).unwrap_or_default();
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let is_name = name.chars().next().is_some_and(|c| !c.is_ascii_digit());
        match first {
            ':' if is_name => {
                let value = params.get(&name).ok_or_else(|| {
                    let known: Vec<_> = params.keys().map(String::as_str).collect();
                    Error::invalid(format!("the query names a parameter :{name} that has no value"))
                        .with_advice(format!("its parameters are: {}", known.join(", ")))
                })?;
                bound = bound.text(std::mem::take(&mut plain)).then(argument(value));
                rest = after.get(name.len()..).unwrap_or_default();
            }
            // The text becomes a part of another, in which its end cannot stand.
            ';' if is_blank(after) => rest = after,
            '$' if !name.is_empty() => {
                return Err(Error::invalid(format!("the query has a parameter `${name}`"))
                    .with_advice("write parameters as :name"));
            }
            _ => {
                plain.push(first);
                rest = after;
            }
        }
    }
    Ok(bound.text(plain))
}

/// Whether nothing follows but comments.
fn is_blank(mut rest: &str) -> bool {
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        if !rest.starts_with("--") && !rest.starts_with("/*") {
            return rest.is_empty();
        }
        let comment = rest.chars().next().map_or(0, |first| skipped(rest, first));
        rest = rest.get(comment..).unwrap_or_default();
    }
}

/// How many bytes at the start are a text, a quoted name, a comment, a cast or a name: nothing in there is a parameter.
fn skipped(rest: &str, first: char) -> usize {
    let until = |mark: &str, from: usize| {
        rest.get(from..).and_then(|tail| tail.find(mark)).map_or(rest.len(), |at| from + at + mark.len())
    };
    match first {
        // A doubled quote ends one text and begins the next.
        '\'' => until("'", 1),
        '"' => until("\"", 1),
        ':' if rest.starts_with("::") || rest.starts_with(":=") => 2,
        '-' if rest.starts_with("--") => until("\n", 2),
        '/' if rest.starts_with("/*") => comment(rest),
        '$' => dollars(rest).map_or(0, |mark| until(mark, mark.len())),
        'e' | 'E' if rest.get(1..).is_some_and(|tail| tail.starts_with('\'')) => escaped(rest),
        // A dollar may stand inside a name.
        c if c.is_alphanumeric() || c == '_' => {
            rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$')).unwrap_or(rest.len())
        }
        _ => 0,
    }
}

/// The mark that begins a text in dollars, like `$$` or `$body$`.
fn dollars(rest: &str) -> Option<&str> {
    let end = rest.get(1..)?.find('$')? + 1;
    let tag = rest.get(1..end)?;
    let is_tag = tag.chars().all(|c| c.is_alphanumeric() || c == '_')
        && !tag.starts_with(|c: char| c.is_ascii_digit());
    rest.get(..=end).filter(|_| is_tag)
}

/// Comments may stand in comments.
fn comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(tail) = rest.get(at..).filter(|tail| !tail.is_empty()) {
        if tail.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if tail.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += tail.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// A text in which a backslash hides the quote after it.
fn escaped(rest: &str) -> usize {
    let mut hidden = false;
    for (at, c) in rest.char_indices().skip(2) {
        match c {
            _ if hidden => hidden = false,
            '\\' => hidden = true,
            '\'' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn argument(value: &Value) -> Sql {
    match value {
        Value::Null => Sql::new("NULL"),
        Value::Boolean(b) => Sql::default().bind(*b),
        Value::Integer(i) => Sql::default().bind(*i),
        Value::Text(t) => Sql::default().bind(t.as_str()),
        Value::Date(d) => date(*d),
        Value::Timestamp(t) => Sql::default().bind(*t),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_where_they_stand_and_nowhere_else() {
        let params = BTreeMap::from([("day".to_owned(), Value::from("x'y"))]);
        let text = |sql: &str| with_values(sql, &params).and_then(Sql::copied).map(|(text, _)| text);
        let check = |sql: &str, expected: &str| {
            let expected = expected
                .replace("<1>", "current_setting('reprocess_value.v1')::text")
                .replace("<2>", "current_setting('reprocess_value.v2')::text");
            assert_eq!(text(sql).unwrap(), expected);
        };
        check(
            "SELECT :day, ':day' -- :day\n, \":day\" /* :other /* :a */ :b */ ; -- end",
            "SELECT <1>, ':day' -- :day\n, \":day\" /* :other /* :a */ :b */  -- end",
        );
        check("SELECT 'it''s :day', :day || :day", "SELECT 'it''s :day', <1> || <2>");
        check(r"SELECT E'it\'s :day', :day::text", r"SELECT E'it\'s :day', <1>::text");
        check(
            "SELECT $$ :day $$, $a$ $$ :day $a$, a$b, x ? 'a', (ARRAY[1])[1:1]",
            "SELECT $$ :day $$, $a$ $$ :day $a$, a$b, x ? 'a', (ARRAY[1])[1:1]",
        );
        assert!(text("SELECT :other").unwrap_err().to_string().contains(":other"));
        assert!(text("SELECT $1").is_err());
    }
}
