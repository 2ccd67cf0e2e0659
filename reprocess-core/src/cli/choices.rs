//! Words on the command line for choices of a request.

use clap::ValueEnum;

use crate::domain::interval::Grain;
use crate::domain::request::{Mode, Order, SchemaPolicy, WhenLeased, WhenMoved};
use crate::ports::delivery::{DeliveryDecision, DeliveryState};

/// Gives each choice its words, with the help of each.
macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident for $domain:ident { $($(#[$help:meta])* $choice:ident),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
        pub(super) enum $name {
            $($(#[$help])* $choice),+
        }

        impl From<$name> for $domain {
            fn from(choice: $name) -> Self {
                match choice {
                    $($name::$choice => Self::$choice),+
                }
            }
        }
    )+};
}

choices! {
    /// Whether the output waits for a review.
    ModeChoice for Mode {
        /// Each task commits as it ends
        Direct,
        /// Outputs wait for a review, then one publication commits them
        Shadow,
    }
    /// In which order tasks run.
    OrderChoice for Order {
        /// Any; one that fails does not hold up the others
        Any,
        /// Oldest partition first, one after the other
        OldestFirst,
    }
    /// A period.
    GrainChoice for Grain {
        /// An hour of UTC
        Hour,
        /// A local day
        Day,
        /// A local week, from Monday
        Week,
        /// A local month
        Month,
        /// A local quarter
        Quarter,
        /// A local year
        Year,
    }
    /// What to do where the logic produces other columns.
    SchemaChoice for SchemaPolicy {
        /// Refuse
        Refuse,
        /// Add the new columns, nullable
        AddNullable,
        /// Rebuild the whole table
        Rebuild,
    }
    /// What to do where a partition moved after planning.
    MovedChoice for WhenMoved {
        /// Leave it as it is and say so
        Stop,
        /// Overwrite what moved
        Overwrite,
    }
    /// What to do where another run holds a lease.
    LeasedChoice for WhenLeased {
        /// Wait for it
        Wait,
        /// Leave the partition to the other run
        Skip,
        /// Fail the task
        Fail,
    }
    /// How far a delivery is.
    DeliveryChoice for DeliveryState {
        /// Its output is not committed
        Prepared,
        /// Held back, to be released by name
        Suppressed,
        /// May be sent
        Released,
        /// Taken to be sent
        Sending,
        /// Confirmed
        Sent,
        /// May have been sent, and nobody can say
        Unknown,
        /// Refused, or not taken however often it was tried
        Dead,
        /// One with its key was released before
        Duplicate,
        /// Its output was given up
        Withdrawn,
    }
    /// What is to become of a delivery.
    DecisionChoice for DeliveryDecision {
        /// Send it again: it was not received, or a second one does no harm
        Again,
        /// It was received
        Sent,
        /// Do not send it
        Never,
    }
}
