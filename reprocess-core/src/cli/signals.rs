//! Signals to a process that runs tasks.

use std::convert::Infallible;
use std::pin::pin;

use super::console::Invocation;
use crate::engine::Engine;

/// Runs work. A signal ends it in good order: nothing more is begun, and what runs is given up on a second signal or after
/// the time that the settings give.
pub(super) async fn heeded<T>(s: &Invocation<'_>, work: impl Future<Output = T>) -> T {
    if !s.takes_signals() {
        return work.await;
    }
    let work = pin!(work);
    tokio::select! {
        biased;
        done = work => done,
        never = listen(s.engine) => match never {},
    }
}

async fn listen(engine: &Engine) -> Infallible {
    let mut signals = Signals::new();
    signals.next().await;
    tracing::info!("stopping: nothing more is begun");
    engine.stop().finish();
    engine.grace_or(signals.next()).await;
    tracing::warn!("stopping: what runs is left to others");
    engine.stop().release();
    std::future::pending().await
}

/// SIGINT and SIGTERM; none where they cannot be had, so that they end the process as they would without us.
#[cfg(unix)]
struct Signals(Vec<tokio::signal::unix::Signal>);

#[cfg(unix)]
impl Signals {
    fn new() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
        Self(kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect())
    }

    async fn next(&mut self) {
        let received = self.0.iter_mut().map(|signal| Box::pin(signal.recv()));
        match received.len() {
            0 => std::future::pending().await,
            _ => drop(futures::future::select_all(received).await),
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> Self {
        Self
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
