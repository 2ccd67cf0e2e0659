//! Versions of partitions by their files.

use reprocess_core::domain::ids::PartitionVersion;

/// Version of a table that is not there.
pub const ABSENT: &str = "none";
/// Version of what holds no files.
pub const EMPTY: &str = "empty";

/// The version of a set of files, by what tells the content of each from that of others: another one where a file comes,
/// goes or loses rows.
pub fn version_of(identities: impl IntoIterator<Item = String>) -> PartitionVersion {
    let mut sorted: Vec<_> = identities.into_iter().collect();
    if sorted.is_empty() {
        return EMPTY.into();
    }
    sorted.sort();
    let mut hasher = blake3::Hasher::new();
    for identity in sorted {
        hasher.update(identity.as_bytes());
        hasher.update(b"\n\n");
    }
    PartitionVersion::new(&hasher.finalize().to_hex()[..32])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> PartitionVersion {
        version_of(files.iter().map(|file| (*file).to_owned()))
    }

    #[test]
    fn a_version_is_of_the_files_whatever_their_order() {
        assert_eq!(of(&["b", "a"]), of(&["a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["a"]));
        assert_ne!(of(&["a", "b"]), of(&["ab"]));
        assert_eq!(of(&[]).as_str(), "empty");
        // Written into plans and ledgers, so that it must not become another.
        assert_eq!(of(&["a", "b"]).as_str(), hash("a\n\nb\n\n"));
    }

    fn hash(text: &str) -> String {
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }
}
