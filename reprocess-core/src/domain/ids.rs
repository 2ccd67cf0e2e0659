//! Names and ids: one type per idea, so that a run id is never taken for a backfill id. A copy shares the text, since a
//! plan repeats the same names in every task.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text as it is.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into().into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }
    )+};
}

text_id! {
    /// Name of a job, unique in a catalog.
    JobName,
    /// Identity of a table: unique over everything one ledger knows.
    TableId,
    /// What identifies the transformation of one job; part of the fingerprint.
    LogicVersion,
    /// What was running, for example a git commit; recorded, not compared.
    Build,
    /// One execution: scheduled, manual, backfill, propagated or rollback.
    RunId,
    /// Name of a backfill, chosen by its requester; the same name again is the same backfill.
    BackfillId,
    /// One process, or one slot of it, that claims tasks.
    WorkerId,
    /// Who asked for, approved or stopped something: a person or a service.
    Actor,
    /// Version of a whole table, in the words of its storage system; opaque to the engine.
    TableVersion,
    /// Version of the content of one partition or slice; opaque, and compared for equality only. What a backend needs to
    /// recognise its own commits later can be part of it.
    PartitionVersion,
}
