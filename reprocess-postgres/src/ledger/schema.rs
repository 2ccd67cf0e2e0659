//! The tables of the ledger, and how they get their present form.

/// What leads from each form of the tables to the next; the first from nothing. Never change one that was released.
pub(super) const FORMS: [&str; 3] = [include_str!("v1.sql"), include_str!("v2.sql"), include_str!("v3.sql")];

#[cfg(test)]
mod tests {
    use super::*;
    use reprocess_core::ports::delivery::DeliveryState;
    use reprocess_core::ports::ledger::{BackfillState, TaskState};

    #[test]
    fn the_tables_know_the_states_of_core() {
        let tables = FORMS.concat().split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(");
        let check = |names: Vec<&str>| {
            let list = names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
            assert!(tables.contains(&format!("(state IN ({list}))")), "{list}");
        };
        check(BackfillState::ALL.map(BackfillState::name).to_vec());
        check(
            BackfillState::ALL
                .into_iter()
                .filter(|s| s.holds_partitions())
                .map(BackfillState::name)
                .collect(),
        );
        check(TaskState::ALL.map(TaskState::name).to_vec());
        check(TaskState::ALL.into_iter().filter(|s| s.is_success()).map(TaskState::name).collect());
        check(DeliveryState::ALL.map(DeliveryState::name).to_vec());
        let released = DeliveryState::ALL.into_iter().filter(|s| s.was_released());
        check(released.map(DeliveryState::name).collect());
    }
}
