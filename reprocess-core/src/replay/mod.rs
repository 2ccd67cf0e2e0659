//! Streams that are read again: from their log as far as it reaches, and from an archive beyond that.

mod archived_log;

pub use archived_log::ArchivedLog;
