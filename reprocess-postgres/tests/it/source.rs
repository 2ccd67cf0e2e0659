//! Tables of others.

mod append_only;
mod crash;
mod engine;
mod exported;
mod fingerprint;
mod high_water_mark;
mod mutable;
mod query;
mod relations;
mod support;
