//! Defects that can be built into a backend on purpose, to see whether the simulation names them.

/// One defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plant {
    /// The writer does not compare the base.
    NoBase,
    /// The writer does not recognise a stamp.
    NoStamp,
    /// What is found committed is not told to the ledger.
    NoAdopt,
    /// Neither the fence nor the claim is compared at the commit. No law need break: they only say who may try.
    NoFence,
    /// The ledger writes a second row when it is told the same again.
    NoUpsert,
    /// A commit leaves out one of its partitions.
    Half,
    /// Suppressed deliveries are released at the commit.
    Delivers,
    /// A commit is told to the ledger only where the reply came.
    NoFinish,
}

impl Plant {
    /// Every defect that breaks a law.
    pub const ALL: [Self; 7] = [
        Self::NoBase,
        Self::NoStamp,
        Self::NoAdopt,
        Self::NoUpsert,
        Self::Half,
        Self::Delivers,
        Self::NoFinish,
    ];
}
