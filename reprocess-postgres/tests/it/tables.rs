//! Tables.

mod beside;
mod foreign;
mod guards;
mod merge;
mod names;
mod partitioned;
mod query;
mod random;
mod replace;
mod restore;
mod schema;
mod shadow;
pub(crate) mod support;
mod types;
