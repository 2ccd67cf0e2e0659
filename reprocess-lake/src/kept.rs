//! What a commit kept of what it replaced, as the caller has it: a ticket that only the table understands.

use reprocess_core::domain::slice::Kept;
use reprocess_core::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;

/// The ticket. Refuses one that is of another table or of no backend of ours.
pub fn ticket<T: DeserializeOwned>(kept: &Kept, is_ours: impl FnOnce(&T) -> bool) -> Result<T> {
    let ticket: Option<T> = serde_json::from_value(kept.0.clone()).ok();
    ticket
        .filter(is_ours)
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "what is to be restored was not kept by this table"))
}

/// What was kept has been freed.
pub fn freed() -> Error {
    Error::new(ErrorKind::State, "what the commit replaced is no longer kept")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Ticket {
        table: String,
    }

    #[test]
    fn only_the_table_that_kept_it_takes_a_ticket() {
        let find = |kept| ticket(&Kept(kept), |ticket: &Ticket| ticket.table == "sales").map(|t| t.table);
        assert_eq!(find(json!({"table": "sales"})).unwrap(), "sales");
        for other in [json!({"table": "orders"}), json!({"rows": 1}), json!(null)] {
            assert_eq!(find(other).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
