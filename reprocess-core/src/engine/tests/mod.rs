//! The engine over the reference backend. Expected values are worked out by hand.

mod backfill;
mod cases;
mod crash;
mod faults;
mod late;
mod review;
mod runs;
mod shop;
