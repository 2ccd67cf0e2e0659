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
use super::registry::{Law, laws};
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
    TakesDeliveriesAtOnce,
    NeverDoubts,
    HearsEveryTaker,
    EndsNoDelivery,
    ForgetsWhenItIsDue,
    DecidesNothing,
    AnnouncesAgain,
    IgnoresOverlaps,
    IgnoresOrder,
    TakesAShadowForDirect,
    PausesNothing,
    GivesEverySlot,
    ServesInTurn,
    ClosesNothing,
    ForgetsWhatIsStale,
    ForgetsWhatWasRead,
    TakesEmptyTextForNull,
    AcceptsAnyScope,
    AcceptsOtherColumns,
    DropsRowsWithNull,
    WantsColumnsInOrder,
    DoesWhatItDoesNotOffer,
    FillsInTheBase,
    SaysTheLedgerKnows,
    ProfilesWhatCameOnly,
    KeepsTheFirstStaged,
    ReadsEveryCountry,
    ForgetsTheColumnsOfNothing,
    EndsStreamsEarly,
    ChangesFromAnyState,
    CountsNoTime,
    CountsTheEndToo,
    KeepsAFailure,
    KnowsEqualKeysOnly,
    RemembersEqualKeysOnly,
    OutdatesKnownLogicOnly,
}

/// Each broken promise, and the laws that are shown to name it; every law is among them.
const NAMED_BY: &[(Broken, &[(&str, &str)])] = &[
    (
        Broken::KeepsPartitionsWithoutRows,
        &[
            ("replace", "a_partition_that_receives_no_rows_becomes_empty"),
            ("replace", "the_whole_table_is_replaced_by_its_own_name_only"),
            ("replace", "equal_rows_are_as_many_as_were_written"),
            ("schema", "a_rebuild_changes_the_columns_of_the_whole_table_only"),
            ("engine_stories", "a_backfill_replaces_the_planned_days_once"),
        ],
    ),
    (
        Broken::ReachesBeyondItsScope,
        &[
            ("replace", "rows_outside_the_scope_stay"),
            ("replace", "zero_rows_empty_the_scope_and_are_a_commit_like_any_other"),
            ("replace", "the_key_of_a_day_covers_every_country_of_it"),
            ("commit", "a_commit_says_the_versions_that_are_there_afterwards"),
            ("commit", "a_key_moves_with_what_is_written_below_and_above_it"),
            ("restore", "a_partition_that_was_empty_is_empty_again"),
            ("schema", "a_new_column_is_null_elsewhere_and_moves_nothing_there"),
        ],
    ),
    (
        Broken::LosesTheNullPartition,
        &[
            ("replace", "the_partition_of_nulls_is_replaced_alone"),
            ("replace", "a_table_without_dimensions_is_replaced_as_a_whole"),
            ("replace", "values_come_back_as_they_were_written"),
            ("merge", "a_merge_acts_on_its_scope"),
            ("reader", "reference_rows_are_those_effective_at_the_date"),
        ],
    ),
    (
        Broken::ShowsHalfAReplace,
        &[
            ("replace", "no_reader_sees_half_a_replace"),
            ("replace", "the_dynamic_form_leaves_partitions_that_received_nothing"),
            ("merge", "without_a_newer_column_the_last_merge_wins"),
            ("restore", "a_restore_can_be_taken_back"),
            ("schema", "a_rebuild_is_taken_back_with_its_columns"),
        ],
    ),
    (
        Broken::DropsStrayRows,
        &[
            ("guards", "a_stray_row_is_refused_naming_its_partition"),
            ("replace", "a_local_day_of_instants_is_replaced_from_midnight_to_midnight"),
        ],
    ),
    (
        Broken::AcceptsBadMergeKeys,
        &[
            ("guards", "null_and_repeated_merge_keys_are_refused_naming_them"),
            ("guards", "merge_keys_are_compared_over_a_hundred_thousand_rows_in_many_batches"),
        ],
    ),
    (Broken::CreatesOverOtherColumns, &[("guards", "a_table_is_created_once_and_with_its_dimensions")]),
    (
        Broken::IgnoresTheBase,
        &[
            ("commit", "a_partition_that_moved_conflicts_and_is_not_overwritten"),
            ("commit", "what_strangers_write_moves_the_partitions_they_touch"),
            ("restore", "a_restore_has_a_base_and_a_stamp_like_any_commit"),
            ("engine_stories", "a_day_that_moved_since_the_plan_is_left_alone"),
            ("engine_stories", "what_moved_under_a_shadow_is_staged_again_and_only_that"),
        ],
    ),
    (
        Broken::IgnoresTheBaseWhereItWasEmpty,
        &[
            ("commit", "a_partition_that_was_empty_conflicts_too"),
            ("commit", "of_racing_commits_to_one_empty_partition_one_wins"),
            ("fences", "without_a_lease_the_base_guards"),
        ],
    ),
    (
        Broken::IgnoresTheFence,
        &[
            ("fences", "a_lease_that_passed_on_is_fenced_and_the_new_one_commits"),
            ("fences", "the_fence_of_another_scope_is_no_permission"),
        ],
    ),
    (
        Broken::ForgetsTheStamp,
        &[
            ("commit", "the_same_stamp_again_answers_the_first_commit_and_writes_nothing"),
            ("commit", "another_attempt_at_committed_work_writes_nothing"),
            ("fences", "a_worker_thought_dead_cannot_commit_over_the_one_that_went_on"),
        ],
    ),
    (
        Broken::FindsNoCommit,
        &[
            ("engine_crash", "a_direct_backfill_survives_a_death_before_any_call"),
            ("engine_crash", "a_direct_backfill_survives_a_death_after_any_call"),
            ("engine_crash", "without_leases_it_survives_a_death_before_any_call"),
            ("engine_crash", "without_leases_it_survives_a_death_after_any_call"),
            ("commit", "a_commit_is_found_by_its_stamp"),
            ("entries", "of_entries_that_were_partly_committed_the_others_are"),
        ],
    ),
    (
        Broken::CommitsTheFirstEntryOnly,
        &[
            ("entries", "entries_are_committed_together"),
            ("entries", "entries_that_were_committed_apart_are_already_committed"),
            ("entries", "requests_that_mean_two_things_are_refused"),
        ],
    ),
    (Broken::CommitsWhatDoesNotConflict, &[("entries", "one_entry_that_conflicts_keeps_all_back")]),
    (
        Broken::ShowsWhatIsStaged,
        &[
            ("staged", "staged_rows_are_not_visible"),
            ("fences", "a_commit_says_whether_the_ledger_has_it"),
            ("schema", "old_partitions_are_replaced_with_the_new_columns"),
            ("schema", "staging_a_new_column_leaves_production_as_it_is"),
            ("engine_stories", "racing_runs_of_one_day_leave_what_one_would"),
            ("engine_stories", "a_shadow_changes_nothing_until_it_is_approved_and_published"),
        ],
    ),
    (
        Broken::LosesStagedSetsWithTheProcess,
        &[
            ("engine_crash", "a_shadow_survives_a_death_before_any_call"),
            ("engine_crash", "a_shadow_survives_a_death_after_any_call"),
            ("engine_crash", "without_leases_a_shadow_survives_a_death_after_any_call"),
            ("staged", "a_staged_set_outlives_the_process_that_staged_it"),
            ("commit", "racing_commits_to_different_partitions_all_land"),
            ("commit", "of_racing_attempts_at_one_stamp_one_is_committed"),
        ],
    ),
    (
        Broken::DiscardsNothing,
        &[
            ("staged", "a_discarded_set_cannot_be_committed_and_others_can"),
            ("entries", "one_entry_without_its_staged_set_keeps_all_back"),
        ],
    ),
    (Broken::DiscardsWhatIsCommitted, &[("staged", "what_is_committed_cannot_be_discarded")]),
    (
        Broken::DigestsNothing,
        &[
            ("staged", "a_digest_is_of_the_rows_and_binds_the_commit"),
            ("staged", "staged_sets_are_found_by_run_and_id"),
        ],
    ),
    (
        Broken::OverlaysNothing,
        &[
            ("staged", "the_overlay_shows_what_the_commit_leaves"),
            ("staged", "the_overlay_never_shows_other_rows_beside_the_staged_ones"),
            ("merge", "the_overlay_of_a_merge_shows_what_its_commit_leaves"),
        ],
    ),
    (
        Broken::FindsNoDifference,
        &[
            ("staged", "the_difference_and_the_profile_after_are_those_of_the_commit"),
            ("staged", "a_difference_is_right_for_repeated_and_null_keys_and_empty_tables"),
        ],
    ),
    (
        Broken::MergesOlderRows,
        &[
            ("merge", "an_older_or_equally_old_row_never_overwrites"),
            ("merge", "with_a_newer_column_every_order_gives_the_same_table"),
            ("merge", "a_merge_that_waited_is_computed_on_what_is_there"),
        ],
    ),
    (
        Broken::DeletesRowsOfOthers,
        &[
            ("merge", "vanished_keys_are_deleted_of_their_owner_and_in_the_scope_only"),
            ("restore", "a_merge_is_taken_back"),
        ],
    ),
    (
        Broken::RestoresEverything,
        &[
            ("restore", "a_restore_brings_back_the_partitions_asked_for_and_no_others"),
            ("restore", "a_commit_of_several_entries_comes_back_apart_or_together"),
        ],
    ),
    (Broken::ForgetsNothing, &[("restore", "rows_are_kept_where_asked_for_and_until_forgotten")]),
    (
        Broken::ReadsNewerRows,
        &[
            ("reader", "a_pin_reads_the_same_rows_or_breaks"),
            ("reader", "a_pin_of_another_content_is_broken"),
        ],
    ),
    (
        Broken::NeverMovesASlice,
        &[
            ("reader", "the_version_of_a_slice_changes_with_its_content"),
            ("reader", "holding_and_releasing_can_be_repeated"),
            ("reader", "a_version_between_two_changes_of_strangers_names_what_was_there"),
            ("engine_stories", "what_is_unchanged_is_skipped_and_writes_no_row"),
        ],
    ),
    (Broken::ReadsExpiredVersions, &[("reader", "an_expired_version_says_so_and_a_held_one_stays")]),
    (Broken::CommitsForOtherColumns, &[("schema", "rows_staged_for_other_columns_are_not_committed")]),
    (
        Broken::RevivesASupersededRun,
        &[
            ("engine_crash", "a_direct_backfill_survives_the_loss_of_any_reply"),
            ("engine_crash", "without_leases_it_survives_the_loss_of_any_reply"),
            ("engine_crash", "a_shadow_survives_the_loss_of_any_reply"),
            ("ledger_rows", "a_commit_told_again_changes_nothing_and_revives_nothing"),
        ],
    ),
    (
        Broken::ClaimsBeyondTheCap,
        &[
            ("ledger_tasks", "tasks_are_claimed_in_order_up_to_the_cap"),
            ("ledger_tasks", "a_plan_is_filed_once_and_in_the_next_generation"),
            ("engine_stories", "several_workers_share_a_backfill"),
            ("engine_stories", "several_workers_share_a_backfill_without_leases"),
            ("engine_stories", "a_rollback_brings_back_just_the_chosen_day"),
        ],
    ),
    (
        Broken::LeasesByEqualityOnly,
        &[("ledger_tasks", "leases_exclude_each_other_where_their_scopes_overlap")],
    ),
    (
        Broken::NeverEndsALease,
        &[
            ("ledger_tasks", "a_lease_that_ran_out_is_free_and_its_fence_void_once_taken"),
            ("fences", "what_is_done_is_said_before_what_moved_and_that_before_a_fence"),
        ],
    ),
    (
        Broken::CallsEveryFenceCurrent,
        &[("ledger_tasks", "a_lease_that_ran_out_is_free_and_its_fence_void_once_taken")],
    ),
    (Broken::HearsZombies, &[("ledger_tasks", "a_claim_that_ran_out_passes_to_the_next_attempt")]),
    (
        Broken::ReleasesWhatIsSuppressed,
        &[
            ("ledger_rows", "an_event_is_sent_once"),
            ("ledger_tasks", "a_stop_cancels_what_is_open_and_withdraws_what_it_would_have_sent"),
            ("engine_stories", "nothing_is_sent_until_it_is_released_by_name"),
            ("ledger_outbox", "a_key_is_taken_for_good_and_waits_where_a_backfill_suppressed_it"),
        ],
    ),
    (
        Broken::TakesDeliveriesAtOnce,
        &[("ledger_outbox", "a_delivery_is_taken_by_one_and_after_its_time_by_another_who_doubts")],
    ),
    (
        Broken::NeverDoubts,
        &[
            ("ledger_outbox", "a_delivery_is_taken_by_one_and_after_its_time_by_another_who_doubts"),
            ("engine_outbox", "each_event_is_received_once_whenever_its_sender_dies"),
            ("engine_outbox", "no_event_is_received_twice_where_the_receiver_cannot_tell"),
        ],
    ),
    (Broken::HearsEveryTaker, &[("ledger_outbox", "only_who_took_a_delivery_last_says_how_it_ended")]),
    (Broken::EndsNoDelivery, &[("engine_outbox", "a_receiver_that_refuses_or_fails_holds_up_no_other")]),
    (Broken::ForgetsWhenItIsDue, &[("ledger_outbox", "what_was_not_taken_is_tried_again_when_it_is_due")]),
    (Broken::DecidesNothing, &[("ledger_outbox", "a_person_decides_about_what_is_unknown_or_dead")]),
    (Broken::AnnouncesAgain, &[("ledger_outbox", "what_is_announced_is_filed_once")]),
    (Broken::IgnoresOverlaps, &[("ledger_tasks", "overlapping_backfills_are_named_until_they_let_go")]),
    (
        Broken::IgnoresOrder,
        &[
            ("ledger_tasks", "a_task_waits_until_those_before_it_succeeded"),
            ("ledger_tasks", "a_failure_blocks_all_that_waits_and_a_retry_opens_it_again"),
            ("ledger_tasks", "restaging_makes_staged_tasks_pending_again"),
            ("ledger_tasks", "discarding_cancels_staged_tasks_and_those_that_wait_for_them"),
            ("ledger_downstream", "downstream_tasks_run_beside_others_where_each_commits_at_once"),
            ("ledger_rows", "a_committed_task_is_committed_whatever_became_of_it"),
        ],
    ),
    (
        Broken::ForgetsWhatIsStale,
        &[
            ("ledger_rows", "what_changed_since_makes_downstream_stale_until_it_ran_again"),
            ("engine_propagation", "what_reads_a_corrected_day_is_computed_once_and_no_other"),
            ("engine_propagation", "a_shadow_is_carried_on_after_its_publication"),
        ],
    ),
    (
        Broken::TakesAShadowForDirect,
        &[
            ("ledger_downstream", "downstream_tasks_of_a_shadow_wait_for_its_publication"),
            ("ledger_downstream", "what_was_discarded_holds_up_no_downstream_task"),
        ],
    ),
    (Broken::PausesNothing, &[("ledger_downstream", "a_pause_and_another_cap_hold_for_every_worker")]),
    (Broken::GivesEverySlot, &[("ledger_pools", "no_more_tasks_have_slots_than_there_are")]),
    (Broken::ServesInTurn, &[("ledger_pools", "the_schedule_comes_first_and_backfills_keep_their_slots")]),
    (Broken::ClosesNothing, &[("ledger_downstream", "closing_gives_up_what_is_left_downstream")]),
    (
        Broken::ForgetsWhatWasRead,
        &[("ledger_rows", "what_was_changed_after_it_was_pinned_makes_what_read_it_stale")],
    ),
    (Broken::TakesEmptyTextForNull, &[("replace", "odd_values_are_partitions_of_their_own")]),
    (Broken::AcceptsAnyScope, &[("guards", "a_scope_over_what_is_no_dimension_is_refused")]),
    (Broken::AcceptsOtherColumns, &[("guards", "other_columns_than_the_tables_are_refused_by_name")]),
    (Broken::DropsRowsWithNull, &[("guards", "null_is_refused_where_a_column_takes_none")]),
    (Broken::WantsColumnsInOrder, &[("guards", "columns_may_come_in_another_order")]),
    (Broken::DoesWhatItDoesNotOffer, &[("guards", "what_is_not_offered_is_refused")]),
    (Broken::FillsInTheBase, &[("commit", "a_base_without_a_key_of_the_scope_is_refused")]),
    (Broken::SaysTheLedgerKnows, &[("fences", "a_ledger_elsewhere_is_not_told_by_the_commit")]),
    (Broken::ProfilesWhatCameOnly, &[("staged", "a_staged_set_is_profiled_as_production_will_be")]),
    (Broken::KeepsTheFirstStaged, &[("staged", "staging_an_id_again_replaces_what_was_staged")]),
    (Broken::ReadsEveryCountry, &[("reader", "slices_hold_exactly_their_partitions")]),
    (Broken::ForgetsTheColumnsOfNothing, &[("reader", "nothing_is_read_as_nothing")]),
    (Broken::EndsStreamsEarly, &[("reader", "a_stream_ends_as_it_began")]),
    (
        Broken::ChangesFromAnyState,
        &[("ledger_tasks", "a_state_changes_only_from_the_one_expected_and_along_allowed_ways")],
    ),
    (Broken::CountsNoTime, &[("ledger_tasks", "progress_counts_tasks_and_the_time_they_took")]),
    (Broken::CountsTheEndToo, &[("ledger_rows", "queue_times_are_told_by_trigger")]),
    (Broken::KeepsAFailure, &[("ledger_rows", "a_commit_replaces_a_failure_and_a_failure_never_a_commit")]),
    (Broken::KnowsEqualKeysOnly, &[("ledger_rows", "the_current_row_is_the_last_that_covers_the_partition")]),
    (Broken::RemembersEqualKeysOnly, &[("ledger_rows", "history_holds_every_row_that_overlaps")]),
    (Broken::OutdatesKnownLogicOnly, &[("ledger_rows", "what_runs_on_another_logic_is_outdated")]),
];

#[test]
fn every_broken_promise_is_named_by_its_laws() {
    let mut unnamed = Vec::new();
    for (broken, named_by) in NAMED_BY {
        let report = run_matching(&BrokenFixture(*broken), |law| named_by.contains(&(law.room, law.name)));
        let failed = report.failed();
        unnamed.extend(named_by.iter().filter(|(_, law)| !failed.contains(law)).map(|named| (broken, named)));
    }
    assert_eq!(unnamed, []);
}

/// A law that nothing breaks would prove nothing.
#[test]
fn every_law_names_a_broken_promise() {
    let shown = |law: &Law| NAMED_BY.iter().any(|(_, named_by)| named_by.contains(&(law.room, law.name)));
    let unshown: Vec<_> = laws().iter().filter(|law| !shown(law)).map(|law| law.name).collect();
    assert_eq!(unshown, [""; 0]);
}

#[test]
fn the_wrapper_that_breaks_nothing_keeps_every_law() {
    let slow = |room: &str| room == "engine_crash";
    let report = run_matching(&BrokenFixture(Broken::Nothing), |law| !slow(law.room));
    assert_eq!(report.failed(), [""; 0], "{report}");
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
