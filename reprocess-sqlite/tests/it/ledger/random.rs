//! Any sequence of calls has the same answers from a file as from memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use arrow_schema::Schema;
use reprocess_core::Result;
use reprocess_core::domain::ids::{BackfillId, TableId};
use reprocess_core::domain::interval::Interval;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::plan::{Action, TaskId};
use reprocess_core::domain::pool::Pool;
use reprocess_core::domain::request::{Mode, SchemaPolicy};
use reprocess_core::memory::MemoryLedger;
use reprocess_core::ports::delivery::{DeliveryClaim, DeliveryDecision, DeliveryEnd, DeliveryOrigin};
use reprocess_core::ports::ledger::{
    Adjustment, BackfillState, Claim, DeliveryFilter, Fence, Leave, LedgerReader, RunLedger, RunRecord,
    RunStatus, SlotAsk, SlotClass, StateChange, TaskFinish, TaskResult, Trigger,
};
use reprocess_core::ports::writer::{Commit, CommitEntry, Intent, Staged, StagedId, Visibility};
use reprocess_sqlite::SqliteLedger;

use super::fixtures::*;

const BACKFILLS: [&str; 3] = ["a", "b", "c"];
const TABLES: [&str; 2] = [TABLE, "report"];
const STEPS: u32 = 200;

#[tokio::test]
async fn a_file_answers_as_memory_does() {
    let replayed = std::env::var("REPROCESS_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = replayed.map_or_else(|| (1..=6).collect(), |seed| vec![seed]);
    for seed in seeds {
        let replay =
            format!("REPROCESS_SEED={seed} cargo test -p reprocess-sqlite a_file_answers_as_memory_does");
        let folder = tempfile::tempdir().unwrap();
        let mut both = Both::new(MemoryLedger::new(), open(&folder).await, seed);
        for _ in 0..3 {
            both.submit().await;
            both.transition().await;
            both.transition().await;
        }
        for step in 0..STEPS {
            both.now += both.below(40);
            let what = both.step().await;
            println!("step {step}, {what}; replay with {replay}");
            if step % 3 == 0 {
                both.same().await;
            }
        }
    }
}

struct Both {
    memory: MemoryLedger,
    file: SqliteLedger,
    random: u64,
    now: i64,
    claims: Vec<Claim>,
    taken: Vec<DeliveryClaim>,
    fences: Vec<Fence>,
    told: Vec<(Commit, CommitEntry)>,
    runs: u32,
}

/// The same call to both; checks that the answers are equal, and gives them.
macro_rules! call {
    ($both:ident.$method:ident($($argument:expr),*)) => {{
        let memory = $both.memory.$method($($argument),*).await;
        let file = $both.file.$method($($argument),*).await;
        agree(stringify!($method), memory, file)
    }};
}

fn agree<T: PartialEq + Debug>(method: &str, memory: Result<T>, file: Result<T>) -> Option<T> {
    match (memory, file) {
        (Ok(memory), Ok(file)) => {
            assert_eq!(memory, file, "{method}");
            Some(memory)
        }
        (Err(memory), Err(file)) => {
            assert_eq!(memory.to_string(), file.to_string(), "{method}");
            None
        }
        (memory, file) => panic!("{method}: {memory:?} is not {file:?}"),
    }
}

impl Both {
    fn new(memory: MemoryLedger, file: SqliteLedger, seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self {
            memory,
            file,
            random,
            now: 0,
            claims: vec![],
            taken: vec![],
            fences: vec![],
            told: vec![],
            runs: 0,
        }
    }

    /// A random number from 0 that is below the limit (xorshift64).
    fn below(&mut self, limit: i64) -> i64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        i64::try_from(self.random % u64::try_from(limit).unwrap()).unwrap()
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let limit = i64::try_from(from.len()).unwrap();
        from[usize::try_from(self.below(limit)).unwrap()].clone()
    }

    async fn step(&mut self) -> String {
        let what = self.below(32);
        match what {
            0 => self.submit().await,
            1 | 2 => self.transition().await,
            3..=5 => self.claim().await,
            6 | 7 | 16 | 17 | 18 if !self.claims.is_empty() => self.leave().await,
            8 => self.restage().await,
            21 => self.discard().await,
            9 => self.acquire().await,
            10 if !self.fences.is_empty() => self.leases().await,
            11 => self.prepare().await,
            12 => self.release().await,
            22 | 23 => self.take().await,
            24 | 25 if !self.taken.is_empty() => self.end().await,
            26 => self.decide().await,
            27 => self.announce().await,
            28 => self.adjust().await,
            29..=31 => self.slot().await,
            19 => self.record_failed().await,
            20 => self.found_unchanged().await,
            13 if !self.told.is_empty() => self.tell_again().await,
            _ => self.finish().await,
        }
        format!("kind {what}")
    }

    async fn submit(&mut self) {
        let id = self.pick(&BACKFILLS);
        // Mostly keys that no other backfill holds.
        let own = |country: &str| PartitionKey::of("of", id).and("country", country);
        let picked = match self.below(5) {
            0 => vec![self.pick(&keys())],
            _ => ["DE", "FR", "GB", "IT", "US"].map(own).to_vec(),
        };
        let chains: [&[&[u32]]; 3] = [&[], &[&[], &[0], &[1], &[0, 2]], &[&[], &[], &[0, 1], &[2, 2], &[0]]];
        let mut plan = plan(id, &picked, self.pick(&chains));
        // Some of the later ones are downstream, in a shadow or not.
        for task in plan.tasks.iter_mut().skip(2) {
            if self.below(2) == 0 {
                task.action = Action::Propagate { inputs: BTreeMap::new() };
            }
        }
        plan.request.mode = self.pick(&[Mode::Direct, Mode::Shadow]);
        let latest = self.memory.backfill(&id.into()).await.unwrap().map_or(0, |b| b.plan.generation);
        plan.generation = self.pick(&[1, latest + 1, latest + 1, latest + 2]);
        let now = at(self.now);
        let _ = call!(self.submit(&plan, &me(), now));
    }

    async fn transition(&mut self) {
        let id: BackfillId = self.pick(&BACKFILLS).into();
        let state = self.memory.backfill(&id).await.unwrap().map(|backfill| backfill.state);
        let from = state.unwrap_or(BackfillState::Planned);
        let allowed: Vec<_> = BackfillState::ALL.into_iter().filter(|to| from.may_become(*to)).collect();
        // Mostly to where tasks run; sometimes to where it may not go, which is refused.
        let onward = match from {
            BackfillState::Planned => BackfillState::Approved,
            BackfillState::Running => self.pick(&[BackfillState::Failed, BackfillState::Published]),
            BackfillState::Published => BackfillState::Propagating,
            BackfillState::Propagating => self.pick(&[BackfillState::Failed, BackfillState::Done]),
            _ => BackfillState::Running,
        };
        let to = match self.below(8) {
            0 => self.pick(&BackfillState::ALL),
            1 if !allowed.is_empty() => self.pick(&allowed),
            _ => onward,
        };
        let from = if self.below(8) == 0 { self.pick(&BackfillState::ALL) } else { from };
        let mut change = change(from, to);
        change.note = self.pick(&[None, Some("why".to_owned())]);
        let now = at(self.now);
        let _ = call!(self.transition(&id, &change, now));
    }

    async fn adjust(&mut self) {
        let id: BackfillId = self.pick(&BACKFILLS).into();
        let tasks = self.pick(&[1, 2, 3]).try_into().unwrap();
        let what = self.pick(&[
            Adjustment::Pause,
            Adjustment::Resume,
            Adjustment::Resume,
            Adjustment::Concurrency(tasks),
        ]);
        call!(self.adjust(&id, what, &me()));
    }

    async fn slot(&mut self) {
        let slots = self.pick(&[1, 2]).try_into().unwrap();
        let class = self.pick(&[SlotClass::Scheduled, SlotClass::Backfill]);
        let ask = SlotAsk {
            pool: Pool::new("db", slots).with_slots_for_backfills(self.pick(&[0, 1])),
            holder: self.pick(&["a", "b", "c", "d"]).into(),
            class,
            priority: self.pick(&[0, 0, 3]),
        };
        let now = at(self.now);
        match self.below(4) {
            0 => drop(call!(self.end_slot(&ask))),
            _ => drop(call!(self.ask_slot(&ask, TTL, now))),
        }
    }

    async fn claim(&mut self) {
        let (id, worker) = (self.pick(&BACKFILLS).into(), self.pick(&["w1", "w2"]).into());
        let can_run = self.pick(&[can_run(), can_run(), vec![(JOB.into(), "v1".into())]]);
        let limit = self.pick(&[1, 2, 9]);
        let now = at(self.now);
        self.claims.extend(call!(self.claim(&id, &worker, &can_run, limit, TTL, now)).unwrap_or_default());
    }

    async fn leave(&mut self) {
        let recent = self.claims.iter().rev().take(4).cloned().collect::<Vec<_>>();
        let (claim, now) = (self.pick(&recent), at(self.now));
        let result = self.result(&claim);
        match self.below(6) {
            0 => {
                call!(self.renew_claim(&claim, TTL, now));
            }
            1 => {
                call!(self.note_staged(&claim, &result));
            }
            how => {
                let note = "so".to_owned();
                let mut failed =
                    record(&format!("{}.{}", claim.backfill, claim.generation), &self.pick(&keys()));
                failed.status = RunStatus::Failed;
                failed.attempt = claim.attempt;
                let how = match how {
                    2 => Leave::Pending { note },
                    3 => Leave::Skipped { note },
                    4 => Leave::Failed { note, records: vec![failed] },
                    _ => Leave::Staged(Box::new(result)),
                };
                call!(self.leave(&claim, how.clone(), now));
            }
        }
    }

    fn result(&mut self, claim: &Claim) -> TaskResult {
        let key = self.pick(&keys());
        let run = format!("{}.{}", claim.backfill, claim.generation);
        let staged = Staged {
            id: StagedId { stamp: stamp(&run, &key), attempt: claim.attempt },
            scope: scope(&key),
            intent: Intent::Replace,
            visibility: Visibility::Direct,
            schema_policy: SchemaPolicy::Refuse,
            schema: Arc::new(Schema::empty()),
            received: BTreeSet::from([key]),
            profiles: Vec::new(),
            digest: "d".into(),
            payload: serde_json::Value::Null,
        };
        let mut result = result();
        result.staged = Some(staged);
        result
    }

    async fn restage(&mut self) {
        let id = self.pick(&BACKFILLS).into();
        let tasks = [TaskId(0), self.pick(&[TaskId(1), TaskId(2)])];
        let now = at(self.now);
        let known = self.memory.backfill(&id).await.unwrap().map(|record| record.state);
        let to = self.pick(&[BackfillState::Stale, BackfillState::AwaitingReview]);
        let from = known.unwrap_or(BackfillState::Publishing);
        let stale = StateChange { note: Some("moved".into()), ..change(from, to) };
        let _ = call!(self.restage(&id, &tasks, &stale, now));
    }

    async fn discard(&mut self) {
        let id: BackfillId = self.pick(&BACKFILLS).into();
        let tasks = [self.pick(&[TaskId(0), TaskId(1), TaskId(7)])];
        let known = self.memory.backfill(&id).await.unwrap().map(|record| record.state);
        let from = known.unwrap_or(BackfillState::AwaitingReview);
        let change =
            StateChange { note: Some("wrong".into()), ..change(from, BackfillState::AwaitingReview) };
        let now = at(self.now);
        let _ = call!(self.discard_staged(&id, &tasks, &change, now));
    }

    async fn found_unchanged(&mut self) {
        let (table, run) = (self.pick(&TABLES).into(), self.pick(&["a.1", "b.1"]).into());
        let keys = [self.pick(&keys()), self.pick(&keys())];
        let position = self.memory.position().await.unwrap();
        let pinned_at = position.saturating_sub(u64::try_from(self.below(3)).unwrap());
        call!(self.found_unchanged(&table, &keys, &run, pinned_at));
    }

    async fn acquire(&mut self) {
        let (table, holder) = (self.pick(&TABLES).into(), self.pick(&["h1", "h2"]).into());
        let (scope, now) = (scope(&self.pick(&keys())), at(self.now));
        self.fences.extend(call!(self.acquire(&table, &scope, &holder, TTL, now)).flatten());
    }

    async fn leases(&mut self) {
        let (fence, now) = (self.pick(&self.fences.clone()), at(self.now));
        if self.below(2) == 0 {
            call!(self.renew(&fence, TTL, now));
        } else {
            call!(self.release(&fence));
        }
    }

    async fn prepare(&mut self) {
        let backfill = self.pick(&[None, Some("a"), Some("b")]).map(BackfillId::from);
        let run = self.pick(&["a.1", "a.2", "b.1", "r1", "r2"]);
        let attempt = self.pick(&[1, 2]);
        let mut id = StagedId { stamp: stamp(run, &self.pick(&keys())), attempt };
        id.stamp.generation = self.pick(&[1, 1, 2]);
        let events = ["e1", "e2", "e3"];
        let batch: Vec<_> = (0..self.below(3)).map(|_| mail(self.pick(&events))).collect();
        let now = at(self.now);
        call!(self.prepare_deliveries(&id, backfill.as_ref(), &batch, now));
    }

    async fn release(&mut self) {
        let keys = [self.pick(&["e1", "e2"]).to_owned(), self.pick(&["e2", "e3"]).to_owned()];
        let now = at(self.now);
        call!(self.release_deliveries(&keys, &me(), now));
    }

    async fn take(&mut self) {
        let (worker, limit) = (self.pick(&["w1", "w2"]).into(), self.pick(&[1, 2, 9]));
        let channels =
            self.pick(&[vec!["mail".to_owned()], vec!["fax".to_owned(), "mail".to_owned()], vec![]]);
        let now = at(self.now);
        let taken = call!(self.claim_deliveries(&channels, &worker, limit, TTL, now));
        self.taken.extend(taken.unwrap_or_default());
    }

    async fn end(&mut self) {
        let recent = self.taken.iter().rev().take(4).cloned().collect::<Vec<_>>();
        let (claim, now, note) = (self.pick(&recent), at(self.now), "so".to_owned());
        let (due_at, in_doubt) = (at(self.now + self.below(60)), self.below(2) == 0);
        let ends = [
            DeliveryEnd::Sent { note: None },
            DeliveryEnd::Again { due_at, in_doubt, note: note.clone() },
            DeliveryEnd::Unknown { note: note.clone() },
            DeliveryEnd::Dead { note },
        ];
        let end = self.pick(&ends);
        call!(self.end_delivery(&claim, &end, now));
    }

    async fn decide(&mut self) {
        let keys = [self.pick(&["e1", "e2"]).to_owned(), self.pick(&["e2", "e3", "e4"]).to_owned()];
        let decision = self.pick(&[DeliveryDecision::Again, DeliveryDecision::Sent, DeliveryDecision::Never]);
        let now = at(self.now);
        call!(self.decide_deliveries(&keys, decision, &me(), now));
    }

    async fn announce(&mut self) {
        let backfill = self.pick(&[None, Some("a")]).map(BackfillId::from);
        let origin = DeliveryOrigin { staged: None, run: self.pick(&[None, Some("a.1".into())]), backfill };
        let batch = [mail(self.pick(&["e1", "n1"])), mail(self.pick(&["n1", "n2"]))];
        let now = at(self.now);
        call!(self.announce(&origin, &batch, now));
    }

    async fn finish(&mut self) {
        self.runs += 1;
        let run = self.pick(&["a.1".to_owned(), "b.1".to_owned(), format!("r{}", self.runs)]);
        let key = self.pick(&keys());
        let mut told = record(&run, &key);
        told.table = self.pick(&TABLES).into();
        told.logic = self.pick(&[None, Some("v1".into()), Some("v2".into())]);
        told.trigger = self.pick(&[Trigger::Scheduled, Trigger::Propagated]);
        told.started_at = at(self.below(50));
        let mut records: Vec<RunRecord> = vec![told];
        if self.below(3) == 0 {
            let mut below = records[0].clone();
            below.partition = key.and("hour", self.below(2));
            records.push(below);
        }
        let position = self.memory.position().await.unwrap();
        let stale = self.pick(&keys());
        let stale = vec![(JOB.into(), self.pick(&TABLES).into(), stale), ("x".into(), TABLE.into(), day(1))];
        let task = self.claims.last().filter(|_| self.runs.is_multiple_of(2));
        let told = TaskFinish {
            task: task.map(|claim| (claim.backfill.clone(), claim.generation, claim.task)),
            deliver: self.below(2) == 0,
            stale,
            pinned_at: position.saturating_sub(u64::try_from(self.below(3)).unwrap()),
            reads: vec![(self.pick(&TABLES).into(), vec![self.pick(&keys())])],
            announce: vec![mail(self.pick(&["n2", "n3"]))],
            ..finish(records)
        };
        let entry = entry(told, 1);
        let commit = commit("7", &entry, self.pick(&[1, 2]));
        call!(self.finish(&commit, std::slice::from_ref(&entry)));
        self.told.push((commit, entry));
    }

    async fn record_failed(&mut self) {
        let run = self.pick(&["a.1".to_owned(), format!("r{}", self.runs)]);
        let mut failed = [record(&run, &self.pick(&keys()))];
        failed[0].status = RunStatus::Failed;
        call!(self.record_failed(&failed));
    }

    async fn tell_again(&mut self) {
        let (commit, entry) = self.pick(&self.told.clone());
        call!(self.finish(&commit, std::slice::from_ref(&entry)));
    }

    /// Checks that both answer every question alike.
    async fn same(&self) {
        call!(self.position());
        call!(self.backfills(&[]));
        call!(self.backfills(&[BackfillState::Running, BackfillState::Failed]));
        for id in BACKFILLS {
            call!(self.tasks(&id.into()));
            call!(self.progress(&id.into()));
            call!(self.changes(&id.into()));
        }
        call!(self.run(&"a.1".into()));
        for table in TABLES.map(TableId::from) {
            call!(self.current(&table, &keys()));
            call!(self.partitions(&table));
            for key in [day(1), day(2).and("country", "FR"), PartitionKey::of("country", "FR")] {
                call!(self.history(&table, &key, 3));
            }
            call!(self.history(&table, &PartitionKey::whole(), 5));
        }
        call!(self.recent(&JOB.into(), 4));
        call!(self.outdated(&[(JOB.into(), "v2".into())].into()));
        call!(self.stale());
        call!(self.queue_times(&Interval::new(at(5), at(40)).unwrap()));
        call!(self.deliveries(&DeliveryFilter::default()));
        for fence in &self.fences {
            call!(self.is_current(fence));
        }
    }
}

/// Keys of every shape, in two days and two countries.
fn keys() -> Vec<PartitionKey> {
    let countries = [None, Some("FR"), Some("F/R")];
    let with = |key: PartitionKey| {
        countries.map(|c| c.map_or_else(|| key.clone(), |c| key.clone().and("country", c)))
    };
    [PartitionKey::whole(), day(1), day(2)].into_iter().flat_map(with).collect()
}
