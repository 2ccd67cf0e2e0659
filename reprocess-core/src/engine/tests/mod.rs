//! The engine over the reference backend. Expected values are worked out by hand.

mod backfill;
mod cases;
mod determinism;
mod late;
mod limits;
mod moved;
mod pools;
mod propagate;
mod review;
mod runs;
mod shop;
mod told;
mod work;
