//! The list of the laws.

use futures::future::LocalBoxFuture;

use super::engine::{
    crash as engine_crash, outbox as engine_outbox, propagation as engine_propagation,
    stories as engine_stories,
};
use super::fixture::{Fixture, Offer};
use super::ledger::{
    downstream as ledger_downstream, outbox as ledger_outbox, pools as ledger_pools, rows as ledger_rows,
    tasks as ledger_tasks,
};
use super::{commit, entries, fences, guards, merge, needs, reader, replace, restore, schema, staged};

/// One promise, tried by a function.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    /// What it is about.
    pub room: &'static str,
    /// The promise as a sentence.
    pub name: &'static str,
    /// Whether it can be tried.
    pub needs: fn(&Offer) -> bool,
    /// Tries it; panics where it does not hold.
    pub run: for<'a> fn(&'a dyn Fixture) -> LocalBoxFuture<'a, ()>,
}

/// Hands the list of laws to a macro: rooms, and in them each law with what it needs.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_laws {
    ([$($then:tt)*] $($with:tt)*) => { $($then)*! { [$($with)*]
        replace {
            a_partition_that_receives_no_rows_becomes_empty: nothing,
            zero_rows_empty_the_scope_and_are_a_commit_like_any_other: nothing,
            rows_outside_the_scope_stay: nothing,
            the_key_of_a_day_covers_every_country_of_it: nothing,
            the_whole_table_is_replaced_by_its_own_name_only: nothing,
            the_partition_of_nulls_is_replaced_alone: nothing,
            odd_values_are_partitions_of_their_own: nothing,
            the_dynamic_form_leaves_partitions_that_received_nothing: dynamic,
            a_table_without_dimensions_is_replaced_as_a_whole: nothing,
            equal_rows_are_as_many_as_were_written: nothing,
            no_reader_sees_half_a_replace: nothing,
            values_come_back_as_they_were_written: nothing,
            a_local_day_of_instants_is_replaced_from_midnight_to_midnight: nothing,
        }
        guards {
            a_stray_row_is_refused_naming_its_partition: nothing,
            a_scope_over_what_is_no_dimension_is_refused: nothing,
            other_columns_than_the_tables_are_refused_by_name: nothing,
            null_is_refused_where_a_column_takes_none: nothing,
            columns_may_come_in_another_order: nothing,
            null_and_repeated_merge_keys_are_refused_naming_them: merge,
            merge_keys_are_compared_over_a_hundred_thousand_rows_in_many_batches: merge,
            what_is_not_offered_is_refused: nothing,
            a_table_is_created_once_and_with_its_dimensions: nothing,
        }
        commit {
            the_same_stamp_again_answers_the_first_commit_and_writes_nothing: nothing,
            another_attempt_at_committed_work_writes_nothing: nothing,
            a_commit_is_found_by_its_stamp: nothing,
            a_commit_says_the_versions_that_are_there_afterwards: nothing,
            a_partition_that_moved_conflicts_and_is_not_overwritten: nothing,
            a_partition_that_was_empty_conflicts_too: nothing,
            a_key_moves_with_what_is_written_below_and_above_it: nothing,
            of_racing_commits_to_one_empty_partition_one_wins: nothing,
            racing_commits_to_different_partitions_all_land: nothing,
            of_racing_attempts_at_one_stamp_one_is_committed: nothing,
            what_strangers_write_moves_the_partitions_they_touch: strangers,
            a_base_without_a_key_of_the_scope_is_refused: nothing,
        }
        entries {
            entries_are_committed_together: nothing,
            one_entry_that_conflicts_keeps_all_back: nothing,
            one_entry_without_its_staged_set_keeps_all_back: nothing,
            of_entries_that_were_partly_committed_the_others_are: nothing,
            entries_that_were_committed_apart_are_already_committed: nothing,
            requests_that_mean_two_things_are_refused: nothing,
        }
        fences {
            a_lease_that_passed_on_is_fenced_and_the_new_one_commits: nothing,
            what_is_done_is_said_before_what_moved_and_that_before_a_fence: nothing,
            without_a_lease_the_base_guards: nothing,
            the_fence_of_another_scope_is_no_permission: nothing,
            a_commit_says_whether_the_ledger_has_it: nothing,
            a_ledger_elsewhere_is_not_told_by_the_commit: nothing,
            a_worker_thought_dead_cannot_commit_over_the_one_that_went_on: nothing,
        }
        staged {
            staged_rows_are_not_visible: nothing,
            a_staged_set_is_profiled_as_production_will_be: nothing,
            a_staged_set_outlives_the_process_that_staged_it: nothing,
            staged_sets_are_found_by_run_and_id: shadow,
            a_discarded_set_cannot_be_committed_and_others_can: nothing,
            what_is_committed_cannot_be_discarded: nothing,
            staging_an_id_again_replaces_what_was_staged: nothing,
            a_digest_is_of_the_rows_and_binds_the_commit: shadow,
            the_overlay_shows_what_the_commit_leaves: shadow,
            the_overlay_never_shows_other_rows_beside_the_staged_ones: shadow,
            the_difference_and_the_profile_after_are_those_of_the_commit: shadow,
            a_difference_is_right_for_repeated_and_null_keys_and_empty_tables: shadow,
        }
        merge {
            with_a_newer_column_every_order_gives_the_same_table: merge,
            an_older_or_equally_old_row_never_overwrites: merge,
            without_a_newer_column_the_last_merge_wins: merge,
            a_merge_acts_on_its_scope: merge,
            vanished_keys_are_deleted_of_their_owner_and_in_the_scope_only: merge,
            a_merge_that_waited_is_computed_on_what_is_there: merge,
            the_overlay_of_a_merge_shows_what_its_commit_leaves: merge_shadow,
        }
        restore {
            a_restore_brings_back_the_partitions_asked_for_and_no_others: restore,
            a_partition_that_was_empty_is_empty_again: restore,
            a_restore_can_be_taken_back: restore,
            a_restore_has_a_base_and_a_stamp_like_any_commit: restore,
            rows_are_kept_where_asked_for_and_until_forgotten: restore,
            a_commit_of_several_entries_comes_back_apart_or_together: restore,
            a_merge_is_taken_back: merge_restore,
        }
        reader {
            a_pin_reads_the_same_rows_or_breaks: nothing,
            a_pin_of_another_content_is_broken: nothing,
            holding_and_releasing_can_be_repeated: nothing,
            an_expired_version_says_so_and_a_held_one_stays: expiry,
            the_version_of_a_slice_changes_with_its_content: nothing,
            a_version_between_two_changes_of_strangers_names_what_was_there: strangers,
            slices_hold_exactly_their_partitions: nothing,
            nothing_is_read_as_nothing: nothing,
            a_stream_ends_as_it_began: nothing,
            reference_rows_are_those_effective_at_the_date: nothing,
        }
        schema {
            a_new_column_is_null_elsewhere_and_moves_nothing_there: columns,
            old_partitions_are_replaced_with_the_new_columns: columns,
            staging_a_new_column_leaves_production_as_it_is: columns,
            rows_staged_for_other_columns_are_not_committed: columns,
            a_rebuild_changes_the_columns_of_the_whole_table_only: columns,
            a_rebuild_is_taken_back_with_its_columns: columns_restore,
        }
        ledger_tasks {
            a_plan_is_filed_once_and_in_the_next_generation: ledger,
            overlapping_backfills_are_named_until_they_let_go: ledger,
            a_state_changes_only_from_the_one_expected_and_along_allowed_ways: ledger,
            tasks_are_claimed_in_order_up_to_the_cap: ledger,
            a_claim_that_ran_out_passes_to_the_next_attempt: ledger,
            a_task_waits_until_those_before_it_succeeded: ledger,
            a_failure_blocks_all_that_waits_and_a_retry_opens_it_again: ledger,
            a_stop_cancels_what_is_open_and_withdraws_what_it_would_have_sent: ledger,
            restaging_makes_staged_tasks_pending_again: ledger,
            discarding_cancels_staged_tasks_and_those_that_wait_for_them: ledger,
            progress_counts_tasks_and_the_time_they_took: ledger,
            leases_exclude_each_other_where_their_scopes_overlap: ledger,
            a_lease_that_ran_out_is_free_and_its_fence_void_once_taken: ledger,
        }
        ledger_downstream {
            downstream_tasks_of_a_shadow_wait_for_its_publication: ledger,
            downstream_tasks_run_beside_others_where_each_commits_at_once: ledger,
            what_was_discarded_holds_up_no_downstream_task: ledger,
            closing_gives_up_what_is_left_downstream: ledger,
            a_pause_and_another_cap_hold_for_every_worker: ledger,
        }
        ledger_pools {
            no_more_tasks_have_slots_than_there_are: ledger,
            the_schedule_comes_first_and_backfills_keep_their_slots: ledger,
        }
        ledger_rows {
            a_commit_told_again_changes_nothing_and_revives_nothing: ledger,
            a_commit_replaces_a_failure_and_a_failure_never_a_commit: ledger,
            the_current_row_is_the_last_that_covers_the_partition: ledger,
            history_holds_every_row_that_overlaps: ledger,
            what_runs_on_another_logic_is_outdated: ledger,
            what_changed_since_makes_downstream_stale_until_it_ran_again: ledger,
            what_was_changed_after_it_was_pinned_makes_what_read_it_stale: ledger,
            a_committed_task_is_committed_whatever_became_of_it: ledger,
            an_event_is_sent_once: ledger,
            queue_times_are_told_by_trigger: ledger,
        }
        ledger_outbox {
            a_delivery_is_taken_by_one_and_after_its_time_by_another_who_doubts: ledger,
            only_who_took_a_delivery_last_says_how_it_ended: ledger,
            what_was_not_taken_is_tried_again_when_it_is_due: ledger,
            a_person_decides_about_what_is_unknown_or_dead: ledger,
            a_key_is_taken_for_good_and_waits_where_a_backfill_suppressed_it: ledger,
            what_is_announced_is_filed_once: ledger,
        }
        engine_stories {
            a_backfill_replaces_the_planned_days_once: nothing,
            what_is_unchanged_is_skipped_and_writes_no_row: nothing,
            a_day_that_moved_since_the_plan_is_left_alone: nothing,
            several_workers_share_a_backfill: nothing,
            several_workers_share_a_backfill_without_leases: nothing,
            racing_runs_of_one_day_leave_what_one_would: nothing,
            nothing_is_sent_until_it_is_released_by_name: nothing,
            a_shadow_changes_nothing_until_it_is_approved_and_published: shadow,
            what_moved_under_a_shadow_is_staged_again_and_only_that: shadow,
            a_rollback_brings_back_just_the_chosen_day: restore,
        }
        engine_propagation {
            what_reads_a_corrected_day_is_computed_once_and_no_other: nothing,
            a_shadow_is_carried_on_after_its_publication: shadow,
        }
        engine_outbox {
            each_event_is_received_once_whenever_its_sender_dies: ledger,
            no_event_is_received_twice_where_the_receiver_cannot_tell: ledger,
            a_receiver_that_refuses_or_fails_holds_up_no_other: nothing,
        }
        engine_crash {
            a_direct_backfill_survives_a_death_before_any_call: nothing,
            a_direct_backfill_survives_a_death_after_any_call: nothing,
            a_direct_backfill_survives_the_loss_of_any_reply: nothing,
            without_leases_it_survives_a_death_before_any_call: nothing,
            without_leases_it_survives_a_death_after_any_call: nothing,
            without_leases_it_survives_the_loss_of_any_reply: nothing,
            a_shadow_survives_a_death_before_any_call: shadow,
            a_shadow_survives_a_death_after_any_call: shadow,
            a_shadow_survives_the_loss_of_any_reply: shadow,
            without_leases_a_shadow_survives_a_death_after_any_call: shadow,
        }
    } };
}

macro_rules! registered {
    ([] $($room:ident { $($law:ident: $needs:ident,)* })*) => {
        vec![$($(Law {
            room: stringify!($room),
            name: stringify!($law),
            needs: needs::$needs,
            run: |fixture| Box::pin($room::$law(fixture)),
        },)*)*]
    };
}

/// Every law, by room.
pub fn laws() -> Vec<Law> {
    conformance_laws!([registered])
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_test_functions {
    ([$fixture:expr] $($room:ident { $($law:ident: $needs:ident,)* })*) => {$(
        mod $room {
            #[allow(unused_imports, reason = "the fixture may be named in full")]
            use super::*;
            $(
                #[test]
                fn $law() {
                    $crate::conformance::check(&$fixture, stringify!($room), stringify!($law));
                }
            )*
        }
    )*};
}

/// A `#[test]` for every law of the conformance suite, over the fixture of the expression, grouped in modules by room.
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:expr) => {
        $crate::conformance_laws! { [$crate::conformance_test_functions] $fixture }
    };
}
