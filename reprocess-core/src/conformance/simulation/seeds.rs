//! Runs histories by seed, over several threads, and explains a failure.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::drive::Sim;
use super::gate::World;
use super::history::{self, Step};
use super::model::{Law, Model};
use super::plant::Plant;
use super::shop::Shop;
use super::shrink::{self, Cut};
use super::{Backend, ending};
use crate::error::{Error, Result};

type Open = dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Backend>>> + Send + Sync;

/// Histories over one kind of backend.
pub struct Simulation {
    open: Box<Open>,
    command: String,
    plant: Option<Plant>,
    threads: u64,
}

/// What was run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Histories.
    pub histories: u64,
    /// Port calls.
    pub calls: u64,
}

/// A history that broke a law.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// The law.
    pub law: String,
    /// What is left of the history when everything is left out without which it fails too.
    pub history: Vec<String>,
    /// The command that replays it.
    pub command: String,
    /// Every call, where it was asked for.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {}: {}", self.seed, self.law)?;
        for step in &self.history {
            writeln!(f, "  {step}")?;
        }
        write!(f, "replay: {}", self.command)
    }
}

/// How one history ended.
struct Ended {
    digest: String,
    calls: u64,
    law: Law,
    lines: Vec<String>,
}

impl Simulation {
    /// Histories over the backends that `open` makes, a fresh one for each. `command` is what replays one, without the
    /// seed: `cargo test …`.
    pub fn new(
        open: impl Fn() -> BoxFuture<'static, Result<Arc<dyn Backend>>> + Send + Sync + 'static,
        command: impl Into<String>,
    ) -> Self {
        Self { open: Box::new(open), command: command.into(), plant: None, threads: 2 }
    }

    /// Builds a defect in.
    #[must_use]
    pub fn with_plant(mut self, plant: Plant) -> Self {
        self.plant = Some(plant);
        self
    }

    /// Sets how many threads run histories.
    #[must_use]
    pub fn with_threads(mut self, threads: u64) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Runs the histories that the environment asks for: `REPROCESS_SEED` one of them, without those of its steps that
    /// `REPROCESS_DROP` names; `REPROCESS_SEEDS` so many, `REPROCESS_FIRST` from there on; otherwise `count`.
    pub fn check(&self, count: u64) -> Result<Summary, Box<Failure>> {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        if let Some(seed) = number("REPROCESS_SEED") {
            return self.replay(seed, &std::env::var("REPROCESS_DROP").unwrap_or_default());
        }
        let first = number("REPROCESS_FIRST").unwrap_or(0);
        self.run(first, number("REPROCESS_SEEDS").unwrap_or(count))
    }

    /// Runs so many histories; answers the first that broke a law.
    pub fn run(&self, first: u64, count: u64) -> Result<Summary, Box<Failure>> {
        let (next, calls, stop) = (AtomicU64::new(first), AtomicU64::new(0), AtomicBool::new(false));
        let work = || {
            while !stop.load(Ordering::SeqCst) {
                let seed = next.fetch_add(1, Ordering::SeqCst);
                if seed >= first + count {
                    break;
                }
                let ended = self.once(seed, &history::of(seed), false);
                calls.fetch_add(ended.calls, Ordering::SeqCst);
                if let Err(law) = ended.law {
                    stop.store(true, Ordering::SeqCst);
                    return Some((seed, law));
                }
            }
            None
        };
        let failed = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).min()
        });
        match failed {
            Some((seed, law)) => Err(Box::new(self.explain(seed, law))),
            None => Ok(Summary { histories: count, calls: calls.into_inner() }),
        }
    }

    /// Runs so many histories to the last, and answers every one that broke a law, as it was.
    pub fn survey(&self, first: u64, count: u64) -> Vec<(u64, String)> {
        let law = |seed: u64| self.once(seed, &history::of(seed), false).law.err();
        (first..first + count).filter_map(|seed| Some((seed, law(seed)?))).collect()
    }

    /// Runs a history twice, and holds that both did exactly the same.
    pub fn check_replay(&self, seed: u64) -> Result<(), String> {
        let steps = history::of(seed);
        let (one, two) = (self.once(seed, &steps, true), self.once(seed, &steps, true));
        if one.digest == two.digest {
            return Ok(());
        }
        let differ = one.lines.iter().zip(&two.lines).position(|(a, b)| a != b).unwrap_or(0);
        let line = |lines: &[String]| lines.get(differ).cloned().unwrap_or_default();
        Err(format!("seed {seed} went two ways: `{}` and `{}`", line(&one.lines), line(&two.lines)))
    }

    fn replay(&self, seed: u64, dropped: &str) -> Result<Summary, Box<Failure>> {
        let cuts = shrink::parse(dropped);
        let steps = shrink::without(&history::of(seed), &cuts);
        let ended = self.once(seed, &steps, true);
        match ended.law {
            Ok(()) => Ok(Summary { histories: 1, calls: ended.calls }),
            Err(law) => {
                Err(Box::new(Failure { trace: ended.lines, ..self.failure(seed, law, &steps, &cuts) }))
            }
        }
    }

    fn explain(&self, seed: u64, law: String) -> Failure {
        let steps = history::of(seed);
        let cuts = shrink::shrink(&steps, |left| self.once(seed, left, false).law.is_err());
        let left = shrink::without(&steps, &cuts);
        let law = self.once(seed, &left, false).law.err().unwrap_or(law);
        self.failure(seed, law, &left, &cuts)
    }

    fn failure(&self, seed: u64, law: String, steps: &[Step], cuts: &[Cut]) -> Failure {
        let drop =
            if cuts.is_empty() { String::new() } else { format!("REPROCESS_DROP={} ", shrink::text(cuts)) };
        Failure {
            seed,
            law,
            history: steps.iter().map(|step| format!("{:?} {:?}", step.act, step.faults)).collect(),
            command: format!("REPROCESS_SEED={seed} {drop}{}", self.command),
            trace: Vec::new(),
        }
    }

    fn once(&self, seed: u64, steps: &[Step], verbose: bool) -> Ended {
        let world = World::new(seed, Model::default(), self.plant, verbose);
        // A call is driven to its end within one poll of its actor, so what a backend does beside it needs a thread.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let law = match runtime {
            Ok(runtime) => {
                let history = AssertUnwindSafe(self.history(seed, steps, &world)).catch_unwind();
                runtime.block_on(history).unwrap_or_else(|panic| Err(format!("panicked: {}", told(&*panic))))
            }
            Err(error) => Err(format!("no runtime: {error}")),
        };
        let mut state = world.lock();
        let lines = state.trace.lines.take().unwrap_or_default();
        Ended { digest: state.trace.digest(), calls: state.trace.calls, law, lines }
    }

    async fn history(&self, seed: u64, steps: &[Step], world: &Arc<World>) -> Law {
        let failed = |e: Error| format!("the backend does not open: {e}");
        let backend = (self.open)().await.map_err(failed)?;
        let (leases, foreign) = (!seed.is_multiple_of(5), seed % 4 == 1);
        let shop = Shop::open(Arc::clone(&backend), leases, foreign).await.map_err(failed)?;
        let mut sim = Sim::new(Arc::clone(world), shop);
        let law = match sim.run(steps).await {
            Ok(started) => ending::end(&mut sim, steps, &started).await,
            Err(law) => Err(law),
        };
        drop(sim);
        backend.close().await;
        law
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").field("plant", &self.plant).finish_non_exhaustive()
    }
}

fn told(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
