//! The traits that backends implement, and the plain types they exchange. Ports know the domain and nothing else.

pub mod backend;
pub mod clock;
pub mod delivery;
pub mod ledger;
pub mod notify;
pub mod reader;
pub mod staged;
pub(crate) mod throttle;
pub mod transform;
pub mod verbs;
pub mod writer;
