//! Ending the work of a process in good order.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// How much is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    #[default]
    Nothing,
    Finish,
    Release,
}

/// Asks the work of an engine to end; clones of it are the same.
///
/// What has no end by itself, as a signal handler would call it: [`finish`](Self::finish) first, and
/// [`release`](Self::release) where that takes too long.
#[derive(Clone)]
pub struct Stop(Arc<watch::Sender<Level>>);

impl Stop {
    /// Nothing is asked yet.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Level::Nothing)))
    }

    /// No task is begun any more; those that run come to their end.
    pub fn finish(&self) {
        self.raise(Level::Finish);
    }

    /// Tasks that run are given up too, and others may take them at once. What they have staged is gone on with; a commit
    /// on its way is found by whoever takes the task.
    pub fn release(&self) {
        self.raise(Level::Release);
    }

    /// Whether anything is to end.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow() > Level::Nothing
    }

    /// Waits until no task is to be begun any more.
    pub(super) async fn asked(&self) {
        self.reached(Level::Finish).await;
    }

    /// Waits until tasks are to be given up.
    pub(super) async fn released(&self) {
        self.reached(Level::Release).await;
    }

    async fn reached(&self, wanted: Level) {
        // The sender is held here, so that there is always an answer.
        let _ = self.0.subscribe().wait_for(|level| *level >= wanted).await;
    }

    fn raise(&self, to: Level) {
        self.0.send_if_modified(|level| {
            let raised = to > *level;
            *level = to.max(*level);
            raised
        });
    }
}

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&*self.0.borrow()).finish()
    }
}
