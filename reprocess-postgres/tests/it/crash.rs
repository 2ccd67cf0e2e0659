//! What is left after processes, connections or the server died: what a run leaves that nobody disturbed.

mod hanging;
mod rounds;
mod server;
mod shop;
mod steps;
mod wire;
mod worker;
mod workers;
