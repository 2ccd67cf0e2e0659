//! Where data files of ours go inside the folder of a table.

use object_store::path::Path;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::value::Value;

/// Name of the folders that hold the files of a staged set, by its
/// [short name](reprocess_core::ports::writer::StagedId::short).
pub fn folder_name(staged: &str) -> String {
    format!("reprocess-{staged}")
}

/// Name of the folder of the rows with a value. People who look at the folders find partitions by their names; what could
/// be read as something else is hashed, since nobody may read values from paths.
pub fn part(column: &str, value: &Value) -> String {
    let text = format!("{column}={value}");
    if text.chars().all(|c| c.is_ascii_alphanumeric() || "=-_.".contains(c)) && !text.starts_with(['_', '.'])
    {
        return text;
    }
    let kind = value.kind().map_or_else(|| "null".to_owned(), |kind| kind.to_string());
    format!("part={}", &blake3::hash(format!("{kind} {text}").as_bytes()).to_hex()[..16])
}

/// The folder of files with these values: one for each of them, and in those one of a name.
pub fn folder_of(values: &PartitionKey, name: &str) -> Path {
    values.bound().map(|(column, value)| part(column, value)).chain([name.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_name_their_folders() {
        let values = PartitionKey::of("day", Value::Date("2026-10-05".parse().unwrap())).and("country", "FR");
        let path = folder_of(&values, &folder_name("0f"));
        assert_eq!(path.as_ref(), "day=2026-10-05/country=FR/reprocess-0f");
        assert_eq!(folder_of(&PartitionKey::whole(), "files").as_ref(), "files");
    }

    #[test]
    fn values_that_could_be_read_as_something_else_are_hashed() {
        let odd = ["../../x", "a b", "a%2Fb", "l'été", "a\\b", "..\u{0}"].map(Value::from);
        for value in odd {
            let part = part("country", &value);
            let hash = part.strip_prefix("part=").unwrap_or_default();
            assert!(hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()), "{value}: {part}");
        }
        for hidden in ["_day", ".day"] {
            assert!(part(hidden, &Value::Integer(1)).starts_with("part="), "{hidden}");
        }
    }

    #[test]
    fn odd_values_of_two_kinds_are_two_folders() {
        let odd = |value: &str| part("c d", &Value::from(value));
        assert_ne!(odd("1"), part("c d", &Value::Integer(1)));
        assert_ne!(odd("1"), odd("2"));
    }
}
