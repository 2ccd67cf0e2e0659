use std::sync::Arc;

use arrow_array::*;
use arrow_schema::{Field, Schema};
use proptest::prelude::*;

use super::*;
use crate::domain::decimal::Decimal;
use crate::domain::diff::{DiffSpec, diff};
use crate::domain::profile::{ProfileBuilder, ProfileSpec, Total};
use crate::domain::value::Value;

/// Origin, departures, fee in cents, delay, note.
type Row = (&'static str, i64, i128, f64, Option<&'static str>);

const EWR: Row = ("EWR", 300, 1050, 1.5, Some("ok"));
const JFK: Row = ("JFK", 310, 2000, 2.5, None);
const LGA: Row = ("LGA", 268, 995, 0.25, Some("late"));

fn batch(rows: &[Row]) -> RecordBatch {
    let fees =
        Decimal128Array::from_iter_values(rows.iter().map(|r| r.2)).with_precision_and_scale(12, 2).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("origin", Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.0)))),
        ("departures", Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.1)))),
        ("fee", Arc::new(fees)),
        ("delay", Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| r.3)))),
        ("note", Arc::new(StringArray::from_iter(rows.iter().map(|r| r.4)))),
    ];
    let fields: Vec<_> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, a)| a).collect())
        .unwrap()
}

fn day(day: u32) -> PartitionKey {
    PartitionKey::of("day", Value::Date(chrono::NaiveDate::from_ymd_opt(2013, 3, day).unwrap()))
}

fn profile(partition: PartitionKey, rows: &[Row]) -> Profile {
    let batch = batch(rows);
    let mut builder =
        ProfileBuilder::new(&batch.schema(), &ProfileSpec::new().with_keys(["origin"])).unwrap();
    builder.push(&batch).unwrap();
    builder.finish(partition)
}

/// What the validator sees of the days that stand in both lists, the first being day 1.
struct Case {
    before: Vec<Profile>,
    after: Vec<Profile>,
    diffs: Vec<Diff>,
}

fn case(before: &[&[Row]], after: &[&[Row]], keys: &[&str]) -> Case {
    let profiles = |sides: &[&[Row]]| (1..).zip(sides).map(|(d, rows)| profile(day(d), rows)).collect();
    let spec = DiffSpec::new(keys.iter().copied());
    let diffs = (1..).zip(before.iter().zip(after));
    let diffs = diffs.map(|(d, (b, a))| diff(day(d), &[batch(b)], &[batch(a)], &spec).unwrap()).collect();
    Case { before: profiles(before), after: profiles(after), diffs }
}

impl Case {
    fn without_diffs(mut self) -> Self {
        self.diffs.clear();
        self
    }

    fn validate(&self, expectations: &[Expectation]) -> Verdict {
        let expectations: Vec<_> = expectations.iter().map(|e| (e.clone(), Severity::Abort)).collect();
        validate(&expectations, &self.before, &self.after, &self.diffs)
    }

    /// The verdict, and the messages of its findings.
    fn check(&self, expectations: &[Expectation], decision: Decision, messages: &[&str]) {
        let verdict = self.validate(expectations);
        let found: Vec<_> = verdict.findings.iter().map(|f| f.message.as_str()).collect();
        assert_eq!((verdict.decision, found), (decision, messages.to_vec()), "{expectations:?}");
    }
}

fn one(before: &[Row], after: &[Row]) -> Case {
    case(&[before], &[after], &["origin"])
}

fn number(n: i64) -> Decimal {
    Decimal::from(n)
}

fn departures_change(by: Prediction) -> Expectation {
    Expectation::TotalChanges { column: "departures".into(), by, tolerance: Tolerance::default() }
}

fn with_departures(row: Row, departures: i64) -> Row {
    (row.0, departures, row.2, row.3, row.4)
}

use Decision::{Abort, Approve, Review};

/// Cancelled flights were counted: departures of each day fall by their number, and nothing else changes.
fn cancelled() -> (Case, Vec<Expectation>) {
    let fewer = |by: i64| [EWR, with_departures(JFK, 310 - by), with_departures(LGA, 268 - 2 * by)];
    let days =
        case(&[&[EWR, JFK, LGA], &[EWR, JFK, LGA], &[EWR]], &[&fewer(4), &fewer(1), &[EWR]], &["origin"]);
    let by = [(day(1), number(-12)), (day(2), number(-3))].into();
    (days, vec![departures_change(Prediction::PerPartition(by)), Expectation::RowCountUnchanged])
}

#[test]
fn a_correction_that_does_what_was_predicted_is_approved() {
    let (days, mut expectations) = cancelled();
    days.check(&expectations, Approve, &[]);
    assert_eq!(days.validate(&expectations).to_string(), "approve: nothing unexpected in 3 partitions");
    expectations.extend([
        Expectation::OnlyColumnsChange { columns: vec!["departures".into()] },
        Expectation::TotalOnlyFalls { column: "departures".into() },
        Expectation::TotalUnchanged { column: "fee".into(), tolerance: Tolerance::default() },
        Expectation::RowsAddedAtMost(0),
        Expectation::RowsRemovedAtMost(0),
        Expectation::RowsChangedAtMost(2),
        Expectation::ChangeWithin { column: "departures".into(), quantile: 0.0, min: -8.0, max: 0.0 },
        Expectation::ChangeWithin { column: "departures".into(), quantile: 1.0, min: -8.0, max: -1.0 },
    ]);
    days.check(&expectations, Approve, &[]);
    cancelled().0.without_diffs().check(&cancelled().1, Approve, &[]);
}

#[test]
fn a_total_that_misses_its_prediction_is_a_finding_in_that_partition() {
    let (days, mut expectations) = cancelled();
    let by = [(day(1), number(-12)), (day(2), number(-4)), (day(7), number(-1))].into();
    expectations[0] = departures_change(Prediction::PerPartition(by));
    days.check(
        &expectations,
        Abort,
        &[
            "the total of `departures` changed by -3 from 878 to 875, predicted was -4",
            "the total of `departures` changed by 0 from - to -, predicted was -1",
        ],
    );
    let verdict = days.validate(&expectations);
    assert_eq!(
        verdict.to_string(),
        "abort: 2 findings in 4 partitions\n  day=2013-03-02: the total of `departures` changed by -3 from 878 to 875, \
         predicted was -4 (abort)\n  day=2013-03-07: the total of `departures` changed by 0 from - to -, predicted \
         was -1 (abort)"
    );
    assert_eq!(verdict.findings[0].kind, FindingKind::NotMet);
    let of_that_day = departures_change(Prediction::PerPartition([(day(2), number(-4))].into()));
    assert_eq!(verdict.findings[0].expectation, Some(of_that_day));
    let json = serde_json::to_string(&verdict).unwrap();
    assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), verdict);
}

#[test]
fn a_partition_that_is_not_listed_is_predicted_not_to_change() {
    let (days, _) = cancelled();
    let by = Prediction::PerPartition([(day(1), number(-12))].into());
    days.check(
        &[departures_change(by)],
        Abort,
        &[
            "the total of `departures` changed by -3 from 878 to 875, predicted was 0",
            "column `departures` changed in 2 rows, which nothing predicts",
        ],
    );
}

#[test]
fn whatever_else_changes_is_a_finding() {
    let fall = [departures_change(Prediction::Each(number(-10))), Expectation::RowCountUnchanged];
    let check = |after: &[Row], message: &str| one(&[EWR, JFK], after).check(&fall, Review, &[message]);
    let jfk = with_departures(JFK, 300);
    check(
        &[EWR, (jfk.0, jfk.1, 2001, jfk.3, jfk.4)],
        "column `fee` changed in 1 row, went from a total of 30.50 to 30.51, which nothing predicts",
    );
    check(
        &[EWR, (jfk.0, jfk.1, jfk.2, 3.5, jfk.4)],
        "column `delay` changed in 1 row, went from a total of 4 to 5, which nothing predicts",
    );
    check(
        &[EWR, (jfk.0, jfk.1, jfk.2, jfk.3, Some("new"))],
        "column `note` changed in 1 row, went from 1 to 0 NULL values, which nothing predicts",
    );
    // The same total, of other rows.
    check(
        &[(EWR.0, EWR.1, EWR.2 - 5, EWR.3, EWR.4), (jfk.0, jfk.1, jfk.2 + 5, jfk.3, jfk.4)],
        "column `fee` changed in 2 rows, which nothing predicts",
    );
    check(
        &[EWR, (jfk.0, jfk.1, jfk.2, f64::NAN, jfk.4)],
        "column `delay` changed in 1 row, went from a total of 4 to 1.5, went from 0 NaN, 0 infinite and 0 negative \
         infinite to 1 NaN, 0 infinite and 0 negative infinite values, which nothing predicts",
    );
}

#[test]
fn without_expectations_every_difference_is_a_finding() {
    let check = |before: &[Row], after: &[Row], messages: &[&str]| {
        let decision = if messages.is_empty() { Approve } else { Review };
        one(before, after).check(&[], decision, messages);
    };
    check(&[EWR, JFK], &[JFK, EWR], &[]);
    check(&[EWR], &[EWR, JFK], &["1 row added, which nothing predicts"]);
    check(&[EWR, JFK], &[], &["2 rows removed, which nothing predicts"]);
    check(
        &[EWR, JFK],
        &[EWR, LGA],
        &["1 row added, which nothing predicts", "1 row removed, which nothing predicts"],
    );
    let blind = |before: &[Row], after: &[Row], messages: &[&str]| {
        one(before, after).without_diffs().check(&[], Review, messages);
    };
    blind(
        &[EWR],
        &[EWR, EWR],
        &[
            "the row count changed from 1 to 2, which nothing predicts",
            "column `delay` went from a total of 1.5 to 3, which nothing predicts",
            "column `departures` went from a total of 300 to 600, which nothing predicts",
            "column `fee` went from a total of 10.50 to 21.00, which nothing predicts",
        ],
    );
    blind(
        &[EWR],
        &[("HPN", EWR.1, EWR.2, EWR.3, EWR.4)],
        &["other keys came in the place of some, which nothing predicts"],
    );
    blind(
        &[EWR],
        &[(EWR.0, EWR.1, EWR.2, EWR.3, Some("other"))],
        &["values changed that no total shows, which nothing predicts"],
    );
}

#[test]
fn a_missing_partition_counts_as_empty() {
    let mut days = case(&[&[EWR], &[]], &[&[EWR], &[]], &["origin"]);
    days.after.truncate(1);
    days.diffs.clear();
    days.check(&[Expectation::RowCountUnchanged], Approve, &[]);
    days.after.clear();
    days.check(&[], Review, &["the row count changed from 1 to 0, which nothing predicts"]);
    days.check(
        &[
            Expectation::RowCountUnchanged,
            departures_change(Prediction::PerPartition([(day(1), number(-300))].into())),
        ],
        Abort,
        &["the row count changed from 1 to 0"],
    );
}

#[test]
fn rows_may_come_and_go_within_their_bounds() {
    let grown = one(&[EWR], &[EWR, JFK, LGA]);
    grown.check(&[Expectation::RowsAddedAtMost(2)], Approve, &[]);
    grown.check(&[Expectation::RowsAddedAtMost(1)], Abort, &["2 rows added, at most 1 expected"]);
    one(&[EWR, JFK], &[EWR]).check(&[Expectation::RowsRemovedAtMost(1)], Approve, &[]);
    one(&[EWR, JFK], &[EWR]).check(
        &[Expectation::RowsAddedAtMost(1)],
        Review,
        &["1 row removed, which nothing predicts"],
    );
    // What the new row brings does not hide what changed beside it.
    one(&[EWR], &[(EWR.0, EWR.1, 1, EWR.3, EWR.4), JFK]).check(
        &[Expectation::RowsAddedAtMost(1)],
        Review,
        &["column `fee` changed in 1 row, went from a total of 10.50 to 20.01, which nothing predicts"],
    );
    one(&[EWR, JFK], &[EWR, with_departures(JFK, 1)]).check(
        &[
            Expectation::RowsChangedAtMost(0),
            Expectation::OnlyColumnsChange { columns: vec!["departures".into()] },
        ],
        Abort,
        &["1 row changed, at most 0 expected"],
    );
}

#[test]
fn a_bound_on_changed_rows_does_not_say_which_columns_change() {
    one(&[EWR], &[with_departures(EWR, 299)]).check(
        &[Expectation::RowsChangedAtMost(5)],
        Review,
        &["column `departures` changed in 1 row, went from a total of 300 to 299, which nothing predicts"],
    );
}

#[test]
fn rows_without_unique_keys_are_compared_as_far_as_that_goes() {
    let (before, after) = ([EWR, EWR, JFK], [EWR, with_departures(EWR, 290), JFK]);
    let unkeyed = one(&before, &after);
    assert!(!unkeyed.diffs[0].keyed);
    unkeyed.check(&[departures_change(Prediction::Each(number(-10)))], Approve, &[]);
    let only = Expectation::OnlyColumnsChange { columns: vec!["departures".into()] };
    unkeyed.check(
        &[only],
        Review,
        &["not checked: 1 row removed and 1 row added, without unique keys that tell which columns changed"],
    );
    unkeyed.check(
        &[Expectation::RowsAddedAtMost(1)],
        Review,
        &[
            "1 row changed or replaced (not matched by key), which nothing predicts",
            "column `departures` went from a total of 910 to 900, which nothing predicts",
        ],
    );
    unkeyed.check(
        &[departures_change(Prediction::Each(number(-10))), Expectation::RowsChangedAtMost(0)],
        Abort,
        &["1 row changed (not matched by key: a changed row is removed and added), at most 0 expected"],
    );
    one(&[EWR, EWR], &[EWR]).check(&[Expectation::RowsRemovedAtMost(1)], Approve, &[]);
}

#[test]
fn only_the_listed_columns_may_change() {
    let only = [Expectation::OnlyColumnsChange { columns: vec!["departures".into()] }];
    let shifted = |by: i128| [(EWR.0, 1, EWR.2 - by, EWR.3, EWR.4), (JFK.0, JFK.1, JFK.2 + by, JFK.3, JFK.4)];
    one(&[EWR, JFK], &shifted(0)).check(&only, Approve, &[]);
    one(&[EWR, JFK], &shifted(5)).check(&only, Abort, &["column `fee` changed in 2 rows"]);
}

#[test]
fn a_float_that_changed_does_not_explain_digests_without_floats() {
    let changed = (EWR.0, EWR.1, EWR.2, EWR.3 + 1.0, Some("other"));
    let rises = [Expectation::TotalOnlyRises { column: "delay".into() }];
    one(&[EWR], &[changed]).without_diffs().check(
        &rises,
        Review,
        &["values changed that no total shows, which nothing predicts"],
    );
    one(&[EWR], &[(changed.0, changed.1, changed.2, changed.3, EWR.4)]).without_diffs().check(
        &rises,
        Approve,
        &[],
    );
}

#[test]
fn what_needs_a_diff_is_not_checked_without_one() {
    let expectations = [
        Expectation::OnlyColumnsChange { columns: vec!["departures".into()] },
        Expectation::ChangeWithin { column: "departures".into(), quantile: 0.5, min: -1.0, max: 0.0 },
    ];
    let changed = one(&[EWR], &[with_departures(EWR, 299)]);
    changed.check(&expectations, Approve, &[]);
    let message = "not checked: there is no diff of the rows";
    changed.without_diffs().check(&expectations, Review, &[message, message]);
    one(&[EWR], &[EWR]).without_diffs().check(&expectations, Approve, &[]);
}

#[test]
fn totals_are_compared_within_their_tolerances() {
    let changes = |by: &str, tolerance| {
        [Expectation::TotalChanges {
            column: "fee".into(),
            by: Prediction::Each(by.parse().unwrap()),
            tolerance,
        }]
    };
    let absolute = |by: &str| Tolerance::Absolute(by.parse().unwrap());
    let case = one(&[EWR], &[(EWR.0, EWR.1, 950, EWR.3, EWR.4)]);
    case.check(&changes("-1.0", Tolerance::default()), Approve, &[]);
    case.check(&changes("-1.02", absolute("0.02")), Approve, &[]);
    case.check(&changes("-1.25", Tolerance::Relative(0.2)), Approve, &[]);
    case.check(
        &changes("-1.02", absolute("0.01")),
        Abort,
        &["the total of `fee` changed by -1.00 from 10.50 to 9.50, predicted was -1.02 ± 0.01"],
    );
    case.check(
        &changes("-1.25", Tolerance::Relative(0.125)),
        Abort,
        &["the total of `fee` changed by -1.00 from 10.50 to 9.50, predicted was -1.25 ± 12.5%"],
    );
    let stays = |tolerance| [Expectation::TotalUnchanged { column: "fee".into(), tolerance }];
    case.check(&stays(Tolerance::Relative(0.1)), Approve, &[]);
    case.check(
        &stays(Tolerance::Relative(0.09)),
        Abort,
        &["the total of `fee` changed by -1.00 from 10.50 to 9.50 ± 9%"],
    );
    case.check(&[Expectation::TotalOnlyFalls { column: "fee".into() }], Approve, &[]);
    case.check(
        &[Expectation::TotalOnlyRises { column: "fee".into() }],
        Abort,
        &["the total of `fee` fell from 10.50 to 9.50"],
    );
    case.check(
        &[Expectation::TotalOnlyFalls { column: "fees".into() }],
        Review,
        &[
            "not checked: no total of `fees` was taken",
            "column `fee` changed in 1 row, went from a total of 10.50 to 9.50, which nothing predicts",
        ],
    );
}

#[test]
fn rounding_of_float_totals_is_no_difference() {
    let delays = |delays: [f64; 3]| {
        [EWR, JFK, LGA].into_iter().zip(delays).map(|(r, d)| (r.0, r.1, r.2, d, r.4)).collect::<Vec<_>>()
    };
    let (before, after) = (delays([0.1, 0.2, 0.3]), delays([0.1, 0.2, 0.1 + 0.2]));
    let case = one(&before, &after);
    assert_ne!(case.before[0].content, case.after[0].content);
    case.check(&[], Approve, &[]);
    case.without_diffs().check(&[], Approve, &[]);
    let case = one(&before, &delays([0.1, 0.2, 0.300_01]));
    assert_eq!(case.validate(&[]).decision, Review);
    case.check(
        &[Expectation::TotalUnchanged {
            column: "delay".into(),
            tolerance: Tolerance::Absolute("0.0001".parse().unwrap()),
        }],
        Approve,
        &[],
    );
}

#[test]
fn unequal_digest_algorithms_are_no_difference() {
    let mut case = one(&[EWR], &[EWR]).without_diffs();
    let after = &mut case.after[0];
    for digest in [&mut after.content, &mut after.comparable, after.keys.as_mut().unwrap()] {
        digest.algorithm = "md5-sum".into();
        digest.value = "00".into();
    }
    case.check(&[], Approve, &[]);
    case.after[0].comparable.algorithm.clone_from(&case.before[0].comparable.algorithm);
    case.check(&[], Review, &["values changed that no total shows, which nothing predicts"]);
}

#[test]
fn a_diff_that_contradicts_the_digests_is_a_finding() {
    let mut case = one(&[EWR], &[with_departures(EWR, 1)]);
    case.diffs = one(&[EWR], &[EWR]).diffs;
    case.check(
        &[departures_change(Prediction::Each(number(-299)))],
        Review,
        &["the digests differ although the diff shows no difference, which nothing predicts"],
    );
}

#[test]
fn columns_that_come_or_go_are_findings() {
    let mut case = one(&[EWR], &[EWR]);
    case.after[0].nulls.insert("new".into(), 1);
    case.after[0].nulls.remove("note");
    case.check(
        &[],
        Review,
        &["column `new` is new, which nothing predicts", "column `note` is gone, which nothing predicts"],
    );
    let columns = vec!["new".into(), "note".into()];
    case.check(&[Expectation::OnlyColumnsChange { columns }], Approve, &[]);
}

#[test]
fn a_total_taken_on_one_side_only_is_not_checked() {
    let mut case = one(&[EWR], &[with_departures(EWR, 1)]);
    case.before[0].totals.remove("fee");
    case.check(
        &[departures_change(Prediction::Each(number(-299)))],
        Review,
        &["not checked: the total of `fee` was taken on one side only"],
    );
    case.after[0].totals.insert(
        "departures".into(),
        Total::Float { sum: 1.0, tolerance: 0.0, nan: 0, infinite: 0, negative_infinite: 0 },
    );
    assert_eq!(
        case.validate(&[departures_change(Prediction::Each(number(-299)))]).findings.len(),
        1,
        "exact against float"
    );
}

#[test]
fn the_distribution_of_changes_has_bounds() {
    let case = one(
        &[EWR, JFK, LGA],
        &[with_departures(EWR, 299), with_departures(JFK, 308), with_departures(LGA, 248)],
    );
    let within =
        |quantile, min, max| [Expectation::ChangeWithin { column: "departures".into(), quantile, min, max }];
    case.check(&within(0.5, -2.0, -2.0), Approve, &[]);
    case.check(
        &within(0.0, -19.0, 0.0),
        Abort,
        &["quantile 0 of the change of `departures` is -20, not within -19 and 0"],
    );
    case.check(
        &within(0.3, -9.0, 0.0),
        Review,
        &["not checked: quantile 0.3 is not known; 0, 0.01, 0.5, 0.99 and 1 are"],
    );
}

fn any_rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (
        prop_oneof![Just("EWR"), Just("JFK"), Just("LGA")],
        0..2_i64,
        0..2_i128,
        Just(1.5),
        prop_oneof![Just(None), Just(Some("a")), Just(Some("b"))],
    );
    prop::collection::vec(row, 0..4)
}

proptest! {
    #[test]
    fn without_expectations_exactly_equal_tables_are_approved(
        before in any_rows(), after in any_rows(), diffs in any::<bool>(),
    ) {
        let case = one(&before, &after);
        let case = if diffs { case } else { case.without_diffs() };
        let sorted = |rows: &[Row]| {
            let mut rows: Vec<_> = rows.iter().map(|r| (r.0, r.1, r.2, r.4)).collect();
            rows.sort_unstable();
            rows
        };
        let decision = if sorted(&before) == sorted(&after) { Approve } else { Review };
        prop_assert_eq!(case.validate(&[]).decision, decision);
    }

    #[test]
    fn a_predicted_change_hides_no_other_one(
        falls in prop::collection::vec(0..9_i64, 3), other in 0..3_usize, column in 0..4_usize, diffs in any::<bool>(),
    ) {
        let before = [EWR, JFK, LGA];
        let mut after: Vec<_> = before.iter().zip(&falls).map(|(r, by)| with_departures(*r, r.1 - by)).collect();
        let total = -falls.iter().sum::<i64>();
        let expectations = [departures_change(Prediction::Each(number(total))), Expectation::RowCountUnchanged];
        let validate = |after: &[Row]| {
            let case = one(&before, after);
            let case = if diffs { case } else { case.without_diffs() };
            case.validate(&expectations).decision
        };
        prop_assert_eq!(validate(&after), Approve);
        match column {
            0 => after[other].0 = "HPN",
            1 => after[other].2 += 1,
            2 => after[other].3 += 0.5,
            _ => after[other].4 = if after[other].4.is_some() { None } else { Some("x") },
        }
        prop_assert_eq!(validate(&after), Review);
    }
}
