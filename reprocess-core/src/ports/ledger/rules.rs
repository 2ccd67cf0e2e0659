//! Decisions that every ledger makes alike: pure functions over what it has read, so that two ledgers never disagree.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::record::{BackfillState, RunRecord, RunStatus, StalePartition, TaskState};
use super::slot::{SlotClass, SlotEntry};
use super::{Overlap, Submitted};
use crate::domain::ids::{RunId, TableId, WorkerId};
use crate::domain::partition::PartitionKey;
use crate::domain::plan::{Plan, Task, TaskId};
use crate::domain::pool::Pool;
use crate::domain::profile::Profile;
use crate::domain::value::Value;
use crate::ports::delivery::{DeliveryDecision, DeliveryEnd, DeliveryOrigin, DeliveryState};
use crate::ports::writer::{Commit, CommitEntry, StampId};

/// What a submission is answered because of the backfill's own past; `None` where it may be filed unless others
/// overlap. `known` is the latest generation: its number, its state, the digest of its plan.
pub fn submission(known: Option<(u32, BackfillState, &str)>, plan: &Plan) -> Option<Submitted> {
    let Some((generation, state, digest)) = known else {
        return (plan.generation != 1).then_some(Submitted::OtherGeneration { next: 1 });
    };
    let next = generation.saturating_add(1);
    if digest == plan.digest() {
        Some(Submitted::Already(state))
    } else if state.holds_partitions() {
        Some(Submitted::OtherPlan { state, digest: digest.to_owned() })
    } else {
        (plan.generation != next).then_some(Submitted::OtherGeneration { next })
    }
}

/// The keys that the tasks of a plan may touch, by table.
pub fn touched(plan: &Plan) -> BTreeMap<TableId, BTreeSet<PartitionKey>> {
    let mut touched = BTreeMap::<_, BTreeSet<_>>::new();
    for task in &plan.tasks {
        touched.entry(task.table.clone()).or_default().extend(task.scope.partitions());
    }
    touched
}

/// What a plan would touch that an open plan holds: one overlap for each table, naming the first key held.
pub fn overlaps(plan: &Plan, held: &Plan, state: BackfillState) -> Vec<Overlap> {
    let (wanted, held_keys) = (touched(plan), touched(held));
    let mut found = Vec::new();
    for (table, keys) in &held_keys {
        let Some(wanted) = wanted.get(table) else { continue };
        if let Some(partition) = first_overlap(wanted, keys) {
            let (backfill, table) = (held.request.id.clone(), table.clone());
            found.push(Overlap { backfill, state, table, partition: partition.clone() });
        }
    }
    found
}

/// The first of `held` that overlaps one of `wanted`. Compares columns by columns, not key by key, so that two plans
/// of many thousand tasks are compared at once.
pub fn first_overlap<'a>(
    wanted: &BTreeSet<PartitionKey>,
    held: &'a BTreeSet<PartitionKey>,
) -> Option<&'a PartitionKey> {
    let mut shapes = BTreeMap::<Vec<&str>, Vec<&PartitionKey>>::new();
    for key in wanted {
        shapes.entry(columns(key)).or_default().push(key);
    }
    let mut projections = BTreeMap::<(Vec<&str>, Vec<&str>), BTreeSet<Vec<&Value>>>::new();
    held.iter().find(|key| {
        shapes.iter().any(|(shape, keys)| {
            let shared: Vec<_> = shape.iter().copied().filter(|c| key.get(c).is_some()).collect();
            let values = project(key, &shared);
            let place = (shape.clone(), shared);
            let known = projections.entry(place).or_insert_with_key(|(_, shared)| {
                keys.iter().map(|wanted| project(wanted, shared)).collect()
            });
            known.contains(&values)
        })
    })
}

/// Things under keys, found by the keys that theirs cover, without comparing with each.
#[derive(Clone, Debug)]
pub struct Covered<T> {
    shapes: BTreeMap<Vec<String>, BTreeMap<Vec<Value>, T>>,
}

impl<T> Covered<T> {
    /// Nothing.
    pub fn new() -> Self {
        Self { shapes: BTreeMap::new() }
    }

    /// Puts a thing under a key, where that key has none; answers whether a key that was there covers this one. Fed
    /// with the partitions of the committed rows of one table, newest first, the rows that answer `false` are current.
    pub fn insert(&mut self, key: &PartitionKey, thing: T) -> bool {
        let covered = self.covering(key).next().is_some();
        let columns = columns(key);
        let values = project(key, &columns).into_iter().cloned().collect();
        let shape = columns.into_iter().map(str::to_owned).collect();
        self.shapes.entry(shape).or_default().entry(values).or_insert(thing);
        covered
    }

    /// What stands under the keys that cover this one.
    pub fn covering(&self, key: &PartitionKey) -> impl Iterator<Item = &T> {
        self.shapes.iter().filter_map(|(shape, known)| {
            let values: Option<Vec<_>> = shape.iter().map(|c| key.get(c).cloned()).collect();
            known.get(&values?)
        })
    }
}

impl<T> Default for Covered<T> {
    fn default() -> Self {
        Self::new()
    }
}

fn columns(key: &PartitionKey) -> Vec<&str> {
    let mut columns: Vec<_> = key.bound().map(|(column, _)| column).collect();
    columns.sort_unstable();
    columns
}

fn project<'a>(key: &'a PartitionKey, columns: &[&str]) -> Vec<&'a Value> {
    columns.iter().filter_map(|c| key.get(c)).collect()
}

/// The state that a change of the backfill's state gives a task; `None` where it stays.
pub fn task_after_change(task: TaskState, from: BackfillState, to: BackfillState) -> Option<TaskState> {
    let again = from == BackfillState::Failed && to == BackfillState::Running;
    if again && matches!(task, TaskState::Failed | TaskState::Blocked) {
        return Some(TaskState::Pending);
    }
    let given_up = to.gives_up() && (task.is_open() || task == TaskState::Staged);
    given_up.then_some(TaskState::Cancelled)
}

/// Whether no task before this one is in its way.
pub fn is_ready(task: &Task, state_of: impl Fn(TaskId) -> Option<TaskState>) -> bool {
    task.after.iter().all(|before| state_of(*before).is_some_and(TaskState::is_settled))
}

/// Whether a task of a backfill in this state may be claimed, as far as the state says.
pub fn may_be_claimed(plan: &Plan, task: &Task, state: BackfillState) -> bool {
    match state {
        BackfillState::Running => !plan.waits_for_publication(task),
        BackfillState::Propagating => true,
        _ => false,
    }
}

/// Every task that waits for one of the given tasks, directly or through others; those that are pending become blocked
/// where one of them fails.
pub fn dependents(plan: &Plan, of: &BTreeSet<TaskId>) -> BTreeSet<TaskId> {
    let mut found = BTreeSet::new();
    // Every task of a plan comes after those it waits for, so that one pass is enough.
    for task in &plan.tasks {
        if task.after.iter().any(|before| of.contains(before) || found.contains(before)) {
            found.insert(task.id);
        }
    }
    found
}

/// What happens to a row of a run where the ledger may have one of the same stamp and partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upsert {
    /// It is new, or it is the success of what had failed: it gets the next position, and a failed one goes.
    Append,
    /// It failed again: it takes the place of the failed one.
    InPlace,
    /// What is there stays: the same again, or a failure told after the commit.
    Keep,
}

/// Decides between the row that is there and the one that comes.
pub fn upsert(known: Option<RunStatus>, new: RunStatus) -> Upsert {
    match (known, new) {
        (None, _) | (Some(RunStatus::Failed), RunStatus::Committed) => Upsert::Append,
        (Some(RunStatus::Failed), RunStatus::Failed) => Upsert::InPlace,
        (Some(RunStatus::Committed), _) => Upsert::Keep,
    }
}

/// Whether a row is of a later commit than one that is only told now, over the same rows: it keeps its place after it.
pub fn came_after(known: &RunRecord, told: &RunRecord) -> bool {
    let both = known.status == RunStatus::Committed && told.status == RunStatus::Committed;
    let later = told.order > 0 && known.order > told.order;
    both && later && known.table == told.table && known.partition.overlaps(&told.partition)
}

/// Whether a run that computed a partition has seen what made it stale: it was there when the inputs were pinned, or an
/// earlier task of the run did it, since a plan lets a task wait for all that it reads.
pub fn has_seen(stale: &StalePartition, run: &RunId, pinned_at: u64) -> bool {
    stale.position <= pinned_at || stale.because == *run
}

/// Whether a row may have changed what its partition holds.
pub fn changes_content(record: &RunRecord) -> bool {
    let content = |profile: &Option<Profile>| profile.as_ref().map(|p| p.content.clone());
    let (before, after) = (content(&record.before), content(&record.after));
    record.status == RunStatus::Committed && (before.is_none() || before != after)
}

/// The attempt of an entry that was committed, which need not be the one that the entry names.
pub fn committed_attempt(commit: &Commit, entry: &CommitEntry) -> u32 {
    let of = |stamp: &StampId| commit.attempts.iter().find(|(s, _)| s == stamp).map(|(_, attempt)| *attempt);
    of(&entry.stamp).unwrap_or(entry.attempt)
}

/// The record of an entry with what only the commit knows. The version of a unit that is no key of the scope is that of
/// the key above it.
#[must_use]
pub fn fill(mut record: RunRecord, commit: &Commit, entry: &CommitEntry) -> RunRecord {
    let above = || {
        let of_entry = entry.scope.partitions().into_iter().filter(|key| key.covers(&record.partition));
        of_entry.filter_map(|key| commit.partitions.partitions.get(&key)).next()
    };
    record.output_partition = commit.partitions.partitions.get(&record.partition).or_else(above).cloned();
    record.status = RunStatus::Committed;
    record.error = None;
    record.attempt = committed_attempt(commit, entry);
    record.output = Some(commit.version.clone());
    record.order = commit.order;
    record.kept.clone_from(&commit.kept);
    record
}

/// Whether a task that asks has a slot now, among all that ask or have one. Slots that are free go to those that wait, in
/// order: to backfills as long as they have fewer than are theirs, then to the schedule, then to backfills; of one kind
/// by priority, then by how long they have waited.
pub fn has_slot(asks: &[SlotEntry], pool: &Pool, holder: &WorkerId) -> bool {
    let mut of_backfills = 0;
    let mut free = pool.slots.get();
    for taken in asks.iter().filter(|entry| entry.has_slot) {
        if taken.holder == *holder {
            return true;
        }
        free = free.saturating_sub(1);
        of_backfills += u32::from(taken.class == SlotClass::Backfill);
    }
    let waiting = |class: SlotClass| {
        let mut waiting: Vec<_> = asks.iter().filter(|e| !e.has_slot && e.class == class).collect();
        waiting.sort_by_key(|e| (std::cmp::Reverse(e.priority), e.asked_at, e.holder.clone()));
        waiting.into_iter().peekable()
    };
    let (mut scheduled, mut backfills) = (waiting(SlotClass::Scheduled), waiting(SlotClass::Backfill));
    for _ in 0..free {
        let theirs = of_backfills < pool.for_backfills && backfills.peek().is_some();
        let next = if theirs { None } else { scheduled.next() };
        let Some(next) = next.or_else(|| backfills.next()) else { break };
        of_backfills += u32::from(next.class == SlotClass::Backfill);
        if next.holder == *holder {
            return true;
        }
    }
    false
}

/// What other deliveries of a key there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyPast {
    /// None that counts.
    Fresh,
    /// One that waits to be released by name.
    Suppressed,
    /// One that was released.
    Released,
}

impl KeyPast {
    /// What the states of all deliveries of a key say.
    pub fn of(states: impl IntoIterator<Item = DeliveryState>) -> Self {
        let of_state = |state: DeliveryState| match state {
            _ if state.was_released() => Self::Released,
            DeliveryState::Suppressed => Self::Suppressed,
            _ => Self::Fresh,
        };
        states.into_iter().map(of_state).max().unwrap_or(Self::Fresh)
    }
}

/// What a delivery becomes as its stamp is committed; `None` where it stays. One that was withdrawn while the commit was
/// on its way comes back, since its output is in production after all. One outside of any backfill is not sent where a
/// backfill has suppressed its key: that is released by name, and then the latest goes out.
pub fn delivery_at_commit(
    state: DeliveryState,
    of_committed_attempt: bool,
    deliver: bool,
    of_backfill: bool,
    past: KeyPast,
) -> Option<DeliveryState> {
    use DeliveryState::{Duplicate, Prepared, Released, Suppressed, Withdrawn};
    match state {
        Prepared | Withdrawn if of_committed_attempt => Some(match past {
            KeyPast::Released => Duplicate,
            KeyPast::Suppressed if !of_backfill => Suppressed,
            _ if deliver => Released,
            _ => Suppressed,
        }),
        Prepared => Some(Withdrawn),
        _ => None,
    }
}

/// What that is of which is announced with the commit of a record.
pub fn announced_by(record: &RunRecord) -> DeliveryOrigin {
    DeliveryOrigin { staged: None, run: Some(record.run.clone()), backfill: record.backfill.clone() }
}

/// Whether a delivery can be taken to be sent: it was released and is due, or whoever took it has not come back.
pub fn may_be_sent(
    state: DeliveryState,
    due_at: Option<DateTime<Utc>>,
    taken_until: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> bool {
    match state {
        DeliveryState::Released => due_at.is_none_or(|due| due <= now),
        DeliveryState::Sending => taken_until.is_none_or(|until| until <= now),
        _ => false,
    }
}

/// What an attempt to send makes of a delivery.
pub fn delivery_after(end: &DeliveryEnd) -> DeliveryState {
    match end {
        DeliveryEnd::Sent { .. } => DeliveryState::Sent,
        DeliveryEnd::Again { .. } => DeliveryState::Released,
        DeliveryEnd::Unknown { .. } => DeliveryState::Unknown,
        DeliveryEnd::Dead { .. } => DeliveryState::Dead,
    }
}

/// What a person's decision makes of a delivery; `None` where there is nothing to decide.
pub fn delivery_decided(state: DeliveryState, decision: DeliveryDecision) -> Option<DeliveryState> {
    use DeliveryState::{Dead, Released, Sent, Unknown};
    match (state, decision) {
        (Unknown | Dead, DeliveryDecision::Again) => Some(Released),
        (Unknown | Dead, DeliveryDecision::Sent) => Some(Sent),
        (Unknown, DeliveryDecision::Never) => Some(Dead),
        _ => None,
    }
}

/// What suppressed deliveries of one key become as the key is released, given in the order in which they were prepared:
/// the last one goes out, since it tells the latest numbers.
pub fn deliveries_at_release(suppressed: usize, key_was_released: bool) -> Vec<DeliveryState> {
    let mut states = vec![DeliveryState::Duplicate; suppressed];
    if let (Some(last), false) = (states.last_mut(), key_was_released) {
        *last = DeliveryState::Released;
    }
    states
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(d: i64) -> PartitionKey {
        PartitionKey::of("day", d)
    }

    #[test]
    fn overlaps_are_found_across_keys_of_different_depth() {
        let set = |keys: &[PartitionKey]| keys.iter().cloned().collect::<BTreeSet<_>>();
        let french = || PartitionKey::of("country", "FR").and("day", 1);
        let check = |wanted: &[PartitionKey], held: &[PartitionKey], found: Option<PartitionKey>| {
            assert_eq!(first_overlap(&set(wanted), &set(held)), found.as_ref(), "{wanted:?} {held:?}");
        };
        check(&[day(1), day(2)], &[day(2), day(3)], Some(day(2)));
        check(&[day(1)], &[day(2), day(3)], None);
        check(&[day(1)], &[french()], Some(french()));
        check(&[day(1).and("country", "FR")], &[french()], Some(french()));
        check(&[day(1).and("country", "DE")], &[french()], None);
        check(&[PartitionKey::of("shard", 7)], &[french()], Some(french()));
        check(&[PartitionKey::whole()], &[day(5)], Some(day(5)));
        check(&[], &[day(5)], None);
    }

    #[test]
    fn fast_answers_agree_with_comparing_each_with_each() {
        let values: [Option<Value>; 3] = [None, Some(Value::Null), Some(Value::from(1))];
        let mut keys = Vec::new();
        for (a, b) in values.iter().flat_map(|a| values.iter().map(move |b| (a, b))) {
            let key = a.iter().fold(PartitionKey::whole(), |k, v| k.and("a", (*v).clone()));
            keys.push(b.iter().fold(key, |k, v| k.and("b", (*v).clone())));
        }
        for x in &keys {
            for y in &keys {
                let (xs, ys) = (BTreeSet::from([x.clone()]), BTreeSet::from([y.clone()]));
                assert_eq!(first_overlap(&xs, &ys).is_some(), x.overlaps(y), "{x} {y}");
                let mut covered = Covered::new();
                assert!(!covered.insert(x, ()));
                assert_eq!(covered.insert(y, ()), x.covers(y), "{x} {y}");
            }
        }
    }

    #[test]
    fn a_commit_is_never_undone_by_a_failure_that_is_told_late() {
        use RunStatus::{Committed, Failed};
        assert_eq!(upsert(None, Failed), Upsert::Append);
        assert_eq!(upsert(Some(Failed), Failed), Upsert::InPlace);
        assert_eq!(upsert(Some(Failed), Committed), Upsert::Append);
        assert_eq!(upsert(Some(Committed), Failed), Upsert::Keep);
        assert_eq!(upsert(Some(Committed), Committed), Upsert::Keep);
    }

    /// Tasks by name: `s` of the schedule, `b` of a backfill; a capital one has a slot; a number is its priority. In the
    /// order in which they asked.
    fn asks(names: &[&str]) -> Vec<SlotEntry> {
        let entry = |(n, name): (i64, &&str)| {
            let kind = name.chars().next().unwrap();
            SlotEntry {
                holder: WorkerId::new(*name),
                class: match kind.to_ascii_lowercase() {
                    's' => SlotClass::Scheduled,
                    _ => SlotClass::Backfill,
                },
                priority: name.split(':').nth(1).map_or(0, |priority| priority.parse().unwrap()),
                asked_at: DateTime::from_timestamp(n, 0).unwrap(),
                has_slot: kind.is_uppercase(),
            }
        };
        (0..).zip(names).map(entry).collect()
    }

    #[test]
    fn slots_go_to_the_schedule_first_and_backfills_keep_theirs() {
        let check = |slots: u32, for_backfills: u32, names: &[&str], served: &[&str]| {
            let pool = Pool::new("db", slots.try_into().unwrap()).with_slots_for_backfills(for_backfills);
            let asks = asks(names);
            let have: Vec<_> =
                names.iter().filter(|name| has_slot(&asks, &pool, &WorkerId::new(**name))).collect();
            assert_eq!(have, served.iter().collect::<Vec<_>>(), "{names:?}");
        };
        check(2, 0, &["b1", "s1", "s2"], &["s1", "s2"]);
        check(3, 0, &["b1", "s1", "b2", "b3"], &["b1", "s1", "b2"]);
        check(2, 0, &["B1", "B2", "s1"], &["B1", "B2"]);
        check(2, 0, &["B1", "b2", "s1"], &["B1", "s1"]);
        check(2, 1, &["b1", "s1", "s2"], &["b1", "s1"]);
        check(2, 1, &["S1", "s2", "b1"], &["S1", "b1"]);
        check(2, 1, &["B1", "s2", "b3"], &["B1", "s2"]);
        check(1, 0, &["s1", "s2:5", "s3:5"], &["s2:5"]);
        check(1, 0, &["S1", "S2", "s3:9"], &["S1", "S2"]);
        check(4, 2, &["s1", "s2", "s3"], &["s1", "s2", "s3"]);
    }

    #[test]
    fn an_event_is_delivered_once_and_with_the_latest_numbers() {
        use DeliveryState::{Duplicate, Prepared, Released, Suppressed, Withdrawn};
        let check = |state, of_committed, deliver, of_backfill, past, next| {
            assert_eq!(delivery_at_commit(state, of_committed, deliver, of_backfill, past), next);
        };
        for of_backfill in [false, true] {
            check(Prepared, true, true, of_backfill, KeyPast::Fresh, Some(Released));
            check(Prepared, true, false, of_backfill, KeyPast::Fresh, Some(Suppressed));
            check(Prepared, true, false, of_backfill, KeyPast::Suppressed, Some(Suppressed));
            check(Prepared, true, true, of_backfill, KeyPast::Released, Some(Duplicate));
            check(Prepared, true, false, of_backfill, KeyPast::Released, Some(Duplicate));
            check(Prepared, false, true, of_backfill, KeyPast::Fresh, Some(Withdrawn));
            check(Withdrawn, true, true, of_backfill, KeyPast::Fresh, Some(Released));
            check(Released, true, true, of_backfill, KeyPast::Released, None);
        }
        check(Prepared, true, true, false, KeyPast::Suppressed, Some(Suppressed));
        check(Prepared, true, true, true, KeyPast::Suppressed, Some(Released));
        assert_eq!(deliveries_at_release(2, false), [Duplicate, Released]);
        assert_eq!(deliveries_at_release(2, true), [Duplicate, Duplicate]);
    }
}
