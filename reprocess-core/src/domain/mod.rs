//! Words and rules of reprocessing, without I/O: the same arguments give the same bytes.

pub mod decimal;
pub mod determinism;
pub mod diff;
pub mod effective;
pub mod estimate;
pub mod event_time;
pub mod fingerprint;
pub mod ids;
pub mod interval;
pub mod job;
pub mod lineage;
pub mod partition;
pub mod plan;
pub mod pool;
pub mod profile;
pub mod request;
pub mod retention;
pub mod rows;
pub mod schema;
pub mod scope;
pub mod slice;
pub mod validate;
pub mod value;
