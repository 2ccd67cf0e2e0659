//! The gate before every port call: one actor passes at a time, where the scheduler says so.

use std::collections::BTreeMap;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use futures::executor::block_on;

use super::dice::Dice;
use super::history::{Fault, What};
use super::model::Model;
use super::plant::Plant;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::clock::Clock;

/// The calls after which the tables are audited.
const TABLE_WRITES: [&str; 5] = ["create", "stage", "discard", "commit", "forget"];

/// The calls after which the ledger is.
const LEDGER_WRITES: [&str; 8] =
    ["commit", "transition", "leave", "restage", "prepare", "release_deliveries", "finish", "record_failed"];

/// What all actors of one history share.
pub(super) struct World {
    state: Mutex<State>,
    /// A defect that is built in on purpose.
    pub(super) plant: Option<Plant>,
}

pub(super) struct State {
    pub(super) dice: Dice,
    pub(super) now: DateTime<Utc>,
    pub(super) model: Model,
    /// The actor that may make the next call.
    pub(super) permit: Option<usize>,
    /// How many gates of that actor let another of its gates go first.
    pub(super) refusals: u32,
    /// Whether the poll led anywhere.
    pub(super) progress: bool,
    pub(super) parked: Vec<Waker>,
    /// What becomes of the rows that are being staged.
    pub(super) amid: Amid,
    sleepers: BTreeMap<u64, DateTime<Utc>>,
    next_sleeper: u64,
    pub(super) actors: Vec<Seat>,
    pub(super) steps: u64,
    pub(super) trace: Trace,
    /// The first law that was broken.
    pub(super) broken: Option<String>,
    /// What calls since the last audit may have written.
    pub(super) written: Written,
}

/// What is to be audited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) tables: bool,
    pub(super) ledger: bool,
}

impl Written {
    pub(super) const ALL: Self = Self { tables: true, ledger: true };
}

/// What the world knows of an actor.
#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) name: String,
    pub(super) faults: Vec<Fault>,
    pub(super) calls: BTreeMap<&'static str, u32>,
    pub(super) all: u32,
    pub(super) dead: bool,
    /// The step until which it is not scheduled.
    pub(super) paused_until: u64,
}

/// A stream of rows that breaks off.
#[derive(Clone, Debug, Default)]
pub(super) enum Amid {
    /// It does not.
    #[default]
    Whole,
    /// After so many rows, with an error that may be worth a retry, or with the death of the process.
    After { rows: u32, error: Option<bool> },
    /// It has come there, and the process dies.
    Dead,
}

/// What happened, as lines and as their digest.
#[derive(Debug, Default)]
pub(super) struct Trace {
    hasher: blake3::Hasher,
    pub(super) lines: Option<Vec<String>>,
    pub(super) calls: u64,
}

impl Trace {
    pub(super) fn push(&mut self, line: String) {
        self.hasher.update(line.as_bytes());
        self.hasher.update(b"\n");
        if let Some(lines) = &mut self.lines {
            lines.push(line);
        }
    }

    pub(super) fn digest(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }
}

impl World {
    pub(super) fn new(seed: u64, model: Model, plant: Option<Plant>, verbose: bool) -> Arc<Self> {
        let trace = Trace { lines: verbose.then(Vec::new), ..Trace::default() };
        let state = State {
            dice: Dice::new(seed ^ 0x5eed),
            now: DateTime::from_timestamp(1_791_590_400, 0).unwrap_or_default(),
            model,
            permit: None,
            refusals: 0,
            progress: false,
            parked: Vec::new(),
            amid: Amid::default(),
            sleepers: BTreeMap::new(),
            next_sleeper: 0,
            actors: Vec::new(),
            steps: 0,
            trace,
            broken: None,
            written: Written::default(),
        };
        Arc::new(Self { state: Mutex::new(state), plant })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

impl State {
    /// Notes that a law was broken; the first one counts.
    pub(super) fn breaks(&mut self, law: impl Into<String>) {
        let law = law.into();
        self.trace.push(format!("BROKEN {law}"));
        self.broken.get_or_insert(law);
    }

    pub(super) fn advance(&mut self, by: TimeDelta) {
        self.now = self.now.checked_add_signed(by).unwrap_or(self.now);
    }

    /// When the next sleeper wakes.
    pub(super) fn next_deadline(&self) -> Option<DateTime<Utc>> {
        self.sleepers.values().min().copied()
    }

    /// Another number at every call.
    pub(super) fn next_salt(&mut self) -> u32 {
        u32::try_from(self.trace.calls % 100_000).unwrap_or(0)
    }

    /// Whether the stream of rows goes on after so many; `None` where the process dies there.
    pub(super) fn goes_on(&mut self, given: u32) -> Option<Result<()>> {
        match &self.amid {
            Amid::After { rows, error: Some(retryable) } if *rows == given => Some(Err(lost(*retryable))),
            Amid::After { rows, error: None } if *rows == given => {
                self.amid = Amid::Dead;
                None
            }
            _ => Some(Ok(())),
        }
    }

    fn fault(&mut self, actor: usize, call: &'static str) -> Option<What> {
        let seat = self.actors.get_mut(actor)?;
        let nth = seat.calls.entry(call).or_insert(0);
        *nth += 1;
        let (nth, all) = (*nth, seat.all + 1);
        seat.all = all;
        let hit = |fault: &Fault| match fault.on {
            Some(on) => on == call && fault.nth == nth,
            None => fault.nth == all,
        };
        let place = seat.faults.iter().position(hit)?;
        Some(seat.faults.remove(place).what)
    }
}

/// One actor's way to the ports.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) world: Arc<World>,
    pub(super) actor: usize,
}

impl Port {
    /// Waits until the scheduler lets this actor make a call.
    async fn pass(&self) {
        poll_fn(|cx| {
            let mut state = self.world.lock();
            if state.permit == Some(self.actor) {
                if state.refusals == 0 {
                    state.permit = None;
                    state.progress = true;
                    return Poll::Ready(());
                }
                state.refusals -= 1;
            }
            state.parked.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    async fn die<T>(&self) -> T {
        if let Some(seat) = self.world.lock().actors.get_mut(self.actor) {
            seat.dead = true;
        }
        pending().await
    }

    fn pause(&self, steps: u32, ms: i64) {
        let mut state = self.world.lock();
        let until = state.steps + u64::from(steps);
        state.advance(TimeDelta::milliseconds(ms));
        if let Some(seat) = state.actors.get_mut(self.actor) {
            seat.paused_until = until;
        }
    }

    fn say(&self, text: &str) {
        let mut state = self.world.lock();
        let line = format!("{} {text}", state.actors.get(self.actor).map_or("", |a| a.name.as_str()));
        state.trace.push(line);
    }

    /// Drops a call into the backend where the process dies in the midst of it.
    async fn unless_dead<T>(&self, inner: impl Future<Output = T>) -> Option<T> {
        let mut inner = pin!(inner);
        poll_fn(|cx| match inner.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if matches!(self.world.lock().amid, Amid::Dead) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// A call with its scheduling point and its fault. `saw` is told the answer while no other call can come between.
    pub(super) async fn around<T>(
        &self,
        call: &'static str,
        inner: impl Future<Output = Result<T>>,
        saw: impl FnOnce(&mut State, &Result<T>),
    ) -> Result<T> {
        self.pass().await;
        let fault = self.world.lock().fault(self.actor, call);
        if let Some(fault) = fault {
            self.say(&format!("{call}: {fault:?}"));
        }
        match fault {
            Some(What::DieBefore) => self.die().await,
            Some(What::FailBefore { retryable }) => return Err(lost(retryable)),
            Some(What::DieAmid { rows }) => self.world.lock().amid = Amid::After { rows, error: None },
            Some(What::FailAmid { rows, retryable }) => {
                self.world.lock().amid = Amid::After { rows, error: Some(retryable) };
            }
            Some(What::Pause { steps, ms }) => {
                self.pause(steps, ms);
                self.pass().await;
            }
            _ => {}
        }
        // To its end within this poll: nothing comes between, in whatever order the threads of a backend answer.
        // Unconstrained, since tokio would stop a future that goes on for long until its task, which stands here, yields.
        let answer = block_on(tokio::task::unconstrained(self.unless_dead(inner)));
        self.world.lock().amid = Amid::Whole;
        let Some(answer) = answer else { return self.die().await };
        {
            let mut state = self.world.lock();
            state.trace.calls += 1;
            state.written.tables |= TABLE_WRITES.contains(&call);
            state.written.ledger |= LEDGER_WRITES.contains(&call);
            saw(&mut state, &answer);
        }
        match &answer {
            Ok(_) => self.say(call),
            Err(error) => self.say(&format!("{call}: {error}")),
        }
        match fault {
            Some(What::DieAfter | What::DieAmid { .. }) => self.die().await,
            Some(What::LoseReply { retryable }) => Err(lost(retryable)),
            _ => answer,
        }
    }
}

fn lost(retryable: bool) -> Error {
    match retryable {
        true => Error::new(ErrorKind::Unavailable, "the reply was lost"),
        false => Error::new(ErrorKind::Storage, "the disk is broken"),
    }
}

/// The clock of the history: it stands still until the scheduler puts it forward.
#[derive(Debug)]
pub(super) struct SimClock(pub(super) Arc<World>);

#[async_trait]
impl Clock for SimClock {
    fn now(&self) -> DateTime<Utc> {
        self.0.lock().now
    }

    async fn sleep(&self, duration: Duration) {
        let (sleeper, until) = {
            let mut state = self.0.lock();
            let id = state.next_sleeper;
            state.next_sleeper += 1;
            let by = TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX);
            let until = state.now.checked_add_signed(by).unwrap_or(DateTime::<Utc>::MAX_UTC);
            state.sleepers.insert(id, until);
            (Sleeper { world: &self.0, id }, until)
        };
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if state.now >= until {
                state.progress = true;
                return Poll::Ready(());
            }
            state.parked.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        drop(sleeper);
    }
}

struct Sleeper<'a> {
    world: &'a World,
    id: u64,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.world.lock().sleepers.remove(&self.id);
    }
}
