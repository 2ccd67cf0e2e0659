//! Ids of snapshots: derived from the work that they complete.

use reprocess_core::ports::writer::StampId;

/// The id of the snapshot that completes stamps, the same on every machine and in whichever order they are
/// named; `taken` says which ids are those of other snapshots, which are passed over.
pub(crate) fn identify(stamps: &[&StampId], taken: impl Fn(i64) -> bool) -> i64 {
    let mut texts: Vec<String> = stamps.iter().map(ToString::to_string).collect();
    texts.sort_unstable();
    texts.dedup();
    let mut round = 0;
    loop {
        let id = id_of(&texts, round);
        // No id is below 1: some readers take -1, and some 0, for a table without a snapshot.
        if id > 0 && !taken(id) {
            return id;
        }
        round += 1;
    }
}

fn id_of(texts: &[String], round: u64) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(text.as_bytes()).update(b"\n");
    }
    if round > 0 {
        hasher.update(&round.to_le_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    i64::from_be_bytes(first) & i64::MAX
}

#[cfg(test)]
mod tests {
    use reprocess_core::domain::ids::{JobName, RunId};
    use reprocess_core::ports::writer::Op;

    use super::*;

    fn stamp(run: &str) -> StampId {
        StampId {
            run: RunId::new(run),
            job: JobName::new("orders"),
            op: Op::Replace,
            scope_digest: "d".into(),
            generation: 0,
        }
    }

    #[test]
    fn the_same_work_has_the_same_id_in_any_order_and_other_work_another() {
        let (a, b) = (stamp("a"), stamp("b"));
        let id = identify(&[&a, &b], |_| false);
        assert!(id > 0);
        assert_eq!(identify(&[&b, &a], |_| false), id);
        assert_eq!(identify(&[&b, &a, &b], |_| false), id);
        assert_ne!(identify(&[&a], |_| false), id);
        assert_ne!(identify(&[&a], |_| false), identify(&[&b], |_| false));
    }

    #[test]
    fn an_id_that_is_taken_is_passed_over_for_the_same_next_one() {
        let a = stamp("a");
        let first = identify(&[&a], |_| false);
        let second = identify(&[&a], |id| id == first);
        assert_ne!(second, first);
        assert!(second > 0);
        assert_eq!(identify(&[&a], |id| id == first), second);
    }
}
