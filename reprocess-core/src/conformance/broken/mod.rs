//! Backends that break one promise each: the suite must name it. A law that nothing can break would prove nothing.

mod ledger;
mod table;

use std::sync::Arc;

use arrow_array::RecordBatch;
use async_trait::async_trait;

use self::ledger::BrokenLedger;
use self::table::BrokenTable;
use super::fixture::{Fixture, Handle, Hooks, Place};
use super::memory::{MemoryFixture, MemoryPlace};
use super::report::run_matching;
use crate::domain::job::TableSpec;
use crate::ports::ledger::RunLedger;

/// The promise that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Nothing: the wrapper itself keeps all laws.
    Nothing,
    KeepsPartitionsWithoutRows,
    ReachesBeyondItsScope,
    LosesTheNullPartition,
    ShowsHalfAReplace,
    DropsStrayRows,
    AcceptsBadMergeKeys,
    CreatesOverOtherColumns,
    IgnoresTheBase,
    IgnoresTheBaseWhereItWasEmpty,
    IgnoresTheFence,
    ForgetsTheStamp,
    FindsNoCommit,
    CommitsTheFirstEntryOnly,
    CommitsWhatDoesNotConflict,
    ShowsWhatIsStaged,
    LosesStagedSetsWithTheProcess,
    DiscardsNothing,
    DiscardsWhatIsCommitted,
    DigestsNothing,
    OverlaysNothing,
    FindsNoDifference,
    MergesOlderRows,
    DeletesRowsOfOthers,
    RestoresEverything,
    ForgetsNothing,
    ReadsNewerRows,
    NeverMovesASlice,
    ReadsExpiredVersions,
    CommitsForOtherColumns,
    RevivesASupersededRun,
    ClaimsBeyondTheCap,
    LeasesByEqualityOnly,
    NeverEndsALease,
    CallsEveryFenceCurrent,
    HearsZombies,
    ReleasesWhatIsSuppressed,
    IgnoresOverlaps,
    IgnoresOrder,
    ForgetsWhatIsStale,
    ForgetsWhatWasRead,
}

/// Each broken promise, and a law that names it.
const NAMED_BY: [(Broken, &str, &str); 41] = [
    (Broken::Nothing, "replace", ""),
    (Broken::KeepsPartitionsWithoutRows, "replace", "a_partition_that_receives_no_rows_becomes_empty"),
    (Broken::ReachesBeyondItsScope, "replace", "rows_outside_the_scope_stay"),
    (Broken::LosesTheNullPartition, "replace", "the_partition_of_nulls_is_replaced_alone"),
    (Broken::ShowsHalfAReplace, "replace", "no_reader_sees_half_a_replace"),
    (Broken::DropsStrayRows, "guards", "a_stray_row_is_refused_naming_its_partition"),
    (Broken::AcceptsBadMergeKeys, "guards", "null_and_repeated_merge_keys_are_refused_naming_them"),
    (Broken::CreatesOverOtherColumns, "guards", "a_table_is_created_once_and_with_its_dimensions"),
    (Broken::IgnoresTheBase, "commit", "a_partition_that_moved_conflicts_and_is_not_overwritten"),
    (Broken::IgnoresTheBaseWhereItWasEmpty, "commit", "a_partition_that_was_empty_conflicts_too"),
    (Broken::IgnoresTheFence, "fences", "a_lease_that_passed_on_is_fenced_and_the_new_one_commits"),
    (Broken::ForgetsTheStamp, "commit", "the_same_stamp_again_answers_the_first_commit_and_writes_nothing"),
    (Broken::FindsNoCommit, "commit", "a_commit_is_found_by_its_stamp"),
    (Broken::CommitsTheFirstEntryOnly, "entries", "entries_are_committed_together"),
    (Broken::CommitsWhatDoesNotConflict, "entries", "one_entry_that_conflicts_keeps_all_back"),
    (Broken::ShowsWhatIsStaged, "staged", "staged_rows_are_not_visible"),
    (Broken::LosesStagedSetsWithTheProcess, "staged", "a_staged_set_outlives_the_process_that_staged_it"),
    (Broken::DiscardsNothing, "staged", "a_discarded_set_cannot_be_committed_and_others_can"),
    (Broken::DiscardsWhatIsCommitted, "staged", "what_is_committed_cannot_be_discarded"),
    (Broken::DigestsNothing, "staged", "a_digest_is_of_the_rows_and_binds_the_commit"),
    (Broken::OverlaysNothing, "staged", "the_overlay_shows_what_the_commit_leaves"),
    (Broken::FindsNoDifference, "staged", "the_difference_and_the_profile_after_are_those_of_the_commit"),
    (Broken::MergesOlderRows, "merge", "an_older_or_equally_old_row_never_overwrites"),
    (Broken::DeletesRowsOfOthers, "merge", "vanished_keys_are_deleted_of_their_owner_and_in_the_scope_only"),
    (Broken::RestoresEverything, "restore", "a_restore_brings_back_the_partitions_asked_for_and_no_others"),
    (Broken::ForgetsNothing, "restore", "rows_are_kept_where_asked_for_and_until_forgotten"),
    (Broken::ReadsNewerRows, "reader", "a_pin_reads_the_same_rows_or_breaks"),
    (Broken::NeverMovesASlice, "reader", "the_version_of_a_slice_changes_with_its_content"),
    (Broken::ReadsExpiredVersions, "reader", "an_expired_version_says_so_and_a_held_one_stays"),
    (Broken::CommitsForOtherColumns, "schema", "rows_staged_for_other_columns_are_not_committed"),
    (Broken::RevivesASupersededRun, "ledger_rows", "a_commit_told_again_changes_nothing_and_revives_nothing"),
    (Broken::ClaimsBeyondTheCap, "ledger_tasks", "tasks_are_claimed_in_order_up_to_the_cap"),
    (Broken::LeasesByEqualityOnly, "ledger_tasks", "leases_exclude_each_other_where_their_scopes_overlap"),
    (Broken::NeverEndsALease, "ledger_tasks", "a_lease_that_ran_out_is_free_and_its_fence_void_once_taken"),
    (
        Broken::CallsEveryFenceCurrent,
        "ledger_tasks",
        "a_lease_that_ran_out_is_free_and_its_fence_void_once_taken",
    ),
    (Broken::HearsZombies, "ledger_tasks", "a_claim_that_ran_out_passes_to_the_next_attempt"),
    (Broken::ReleasesWhatIsSuppressed, "ledger_rows", "an_event_is_sent_once"),
    (Broken::IgnoresOverlaps, "ledger_tasks", "overlapping_backfills_are_named_until_they_let_go"),
    (Broken::IgnoresOrder, "ledger_tasks", "a_task_waits_until_those_before_it_succeeded"),
    (
        Broken::ForgetsWhatIsStale,
        "ledger_rows",
        "what_changed_since_makes_downstream_stale_until_it_ran_again",
    ),
    (
        Broken::ForgetsWhatWasRead,
        "ledger_rows",
        "what_was_changed_after_it_was_pinned_makes_what_read_it_stale",
    ),
];

#[test]
fn every_broken_promise_is_named_by_its_law() {
    let mut unnamed = Vec::new();
    for (broken, room, law) in NAMED_BY {
        let report = run_matching(&BrokenFixture(broken), |candidate| candidate.room == room);
        println!("{broken:?}: {:?}", report.failed());
        if !law.is_empty() && !report.failed().contains(&law) {
            unnamed.push(broken);
        }
    }
    assert_eq!(unnamed, []);
}

#[test]
fn the_wrapper_that_breaks_nothing_keeps_every_law() {
    let slow = |room: &str| room == "engine_crash";
    let report = run_matching(&BrokenFixture(Broken::Nothing), |law| !slow(law.room));
    assert_eq!(report.failed(), [""; 0], "{report}");
}

/// What the ports of a broken backend lead to under the engine: the same switches, told by what people would see.
#[test]
fn the_stories_of_the_engine_name_what_people_would_see() {
    let told = [
        (Broken::IgnoresTheBase, "a_day_that_moved_since_the_plan_is_left_alone"),
        (Broken::IgnoresTheBase, "what_moved_under_a_shadow_is_staged_again_and_only_that"),
        (Broken::ReleasesWhatIsSuppressed, "nothing_is_sent_until_it_is_released_by_name"),
        (Broken::ShowsWhatIsStaged, "a_shadow_changes_nothing_until_it_is_approved_and_published"),
        (Broken::KeepsPartitionsWithoutRows, "a_backfill_replaces_the_planned_days_once"),
    ];
    for (broken, law) in told {
        let report = run_matching(&BrokenFixture(broken), |candidate| {
            (candidate.room, candidate.name) == ("engine_stories", law)
        });
        assert_eq!(report.failed(), [law], "{broken:?}");
    }
}

/// Memory with one promise broken.
struct BrokenFixture(Broken);

#[async_trait]
impl Fixture for BrokenFixture {
    fn hooks(&self) -> Hooks {
        MemoryFixture.hooks()
    }

    async fn fresh(&self) -> Box<dyn Place> {
        let inner = MemoryPlace::default();
        let ledger = Arc::new(BrokenLedger::new(inner.memory_ledger(), self.0));
        Box::new(BrokenPlace { inner, ledger, broken: self.0 })
    }
}

struct BrokenPlace {
    inner: MemoryPlace,
    ledger: Arc<BrokenLedger>,
    broken: Broken,
}

#[async_trait]
impl Place for BrokenPlace {
    async fn open(&self, spec: &TableSpec) -> Handle {
        Handle::of(BrokenTable::new(self.inner.table(spec), spec, self.broken))
    }

    async fn ledger(&self) -> Arc<dyn RunLedger> {
        Arc::clone(&self.ledger) as Arc<dyn RunLedger>
    }

    async fn raw_rows(&self, spec: &TableSpec) -> Vec<String> {
        self.inner.raw_rows(spec).await
    }

    async fn write_as_stranger(&self, spec: &TableSpec, rows: &RecordBatch) {
        self.inner.write_as_stranger(spec, rows).await;
    }

    async fn expire(&self, spec: &TableSpec) {
        self.inner.expire(spec).await;
    }
}
