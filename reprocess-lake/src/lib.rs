//! What the lake backends of reprocess share: documents beside a table, staged sets, what a commit carries, how rows are
//! guarded and encoded, and the queries and merges of DataFusion. For backends; hosts use those.

pub mod encode;
pub mod error;
mod folder;
pub mod held;
pub mod kept;
pub mod merge;
pub mod placement;
pub mod query;
pub mod record;
pub mod session;
pub mod sets;
pub mod slices;
pub mod stage;
#[cfg(test)]
mod testing;
pub mod versions;

pub use folder::{Folder, place};
