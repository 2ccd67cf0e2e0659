//! The suite that every backend is judged by.

pub mod simulation;
