//! The reference backend keeps all laws.

use super::MemoryFixture;

crate::conformance_tests!(MemoryFixture);
