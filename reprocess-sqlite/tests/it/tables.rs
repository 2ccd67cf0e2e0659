//! Tables in SQLite: what is replaced, merged, restored, pinned, refused and waited for.

mod busy;
mod foreign;
mod guards;
mod merge;
mod names;
mod query;
mod random;
mod replace;
mod restore;
mod schema;
mod shadow;
mod source;
mod support;
mod types;
