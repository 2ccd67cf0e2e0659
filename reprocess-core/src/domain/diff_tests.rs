use std::sync::Arc;

use arrow_array::*;
use arrow_schema::{Field, Schema};
use proptest::prelude::*;

use super::*;

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<_> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, a)| a).collect())
        .unwrap()
}

fn array(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

fn check_counts(diff: &Diff, keyed: bool, added: u64, removed: u64, changed: u64, unchanged: u64) {
    assert_eq!(
        (diff.keyed, diff.added, diff.removed, diff.changed, diff.unchanged),
        (keyed, added, removed, changed, unchanged),
        "keyed, added, removed, changed, unchanged of {diff:?}"
    );
}

type Origin = (Option<&'static str>, Option<i64>, Option<f64>);

fn origins(rows: &[Origin]) -> RecordBatch {
    batch(vec![
        ("origin", array(StringArray::from_iter(rows.iter().map(|r| r.0)))),
        ("departures", array(Int64Array::from_iter(rows.iter().map(|r| r.1)))),
        ("delay", array(Float64Array::from_iter(rows.iter().map(|r| r.2)))),
    ])
}

fn compare(before: &[Origin], after: &[Origin]) -> Diff {
    diff(PartitionKey::whole(), &[origins(before)], &[origins(after)], &DiffSpec::new(["origin"])).unwrap()
}

fn texts(pairs: &[(&str, Option<&str>)]) -> BTreeMap<String, Option<String>> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), v.map(str::to_owned))).collect()
}

#[test]
fn rows_with_keys_are_matched() {
    let before = [
        (Some("LGA"), Some(268), Some(1.5)),
        (Some("EWR"), Some(300), Some(2.0)),
        (Some("JFK"), Some(310), None),
        (Some("HPN"), Some(1), Some(0.0)),
    ];
    let after = [
        (Some("EWR"), Some(290), Some(2.0)),
        (Some("ISP"), Some(7), None),
        (Some("JFK"), Some(305), Some(4.0)),
        (Some("LGA"), Some(268), Some(1.5)),
    ];
    let diff = compare(&before, &after);
    check_counts(&diff, true, 1, 1, 2, 1);
    assert_eq!(diff.columns, BTreeMap::from([("delay".into(), 1), ("departures".into(), 2)]));
    let departures = &diff.distributions["departures"];
    assert_eq!((departures.rows, departures.min, departures.p50, departures.max), (2, -10.0, -10.0, -5.0));
    assert_eq!(departures.sum, Some(Decimal::from(-15)));
    let delay = &diff.distributions["delay"];
    assert_eq!((delay.rows, delay.min, delay.sum), (1, 0.0, None), "a NULL has no difference");
    let sample = |key: &str| diff.samples.iter().find(|s| s.key["origin"].as_deref() == Some(key)).unwrap();
    assert_eq!(
        diff.samples.iter().map(|s| s.key["origin"].as_deref().unwrap()).collect::<Vec<_>>(),
        ["EWR", "HPN", "ISP", "JFK"]
    );
    assert_eq!(sample("EWR").before, Some(texts(&[("departures", Some("300"))])));
    assert_eq!(sample("EWR").after, Some(texts(&[("departures", Some("290"))])));
    assert_eq!(sample("JFK").before, Some(texts(&[("departures", Some("310")), ("delay", None)])));
    assert_eq!(sample("HPN").after, None);
    assert_eq!(sample("ISP").before, None);
    assert_eq!(sample("ISP").after, Some(texts(&[("departures", Some("7")), ("delay", None)])));
    let json = serde_json::to_string(&diff).unwrap();
    assert_eq!(serde_json::from_str::<Diff>(&json).unwrap(), diff);
}

#[test]
fn keys_that_repeat_or_are_null_leave_whole_rows() {
    let (jfk, lga) = ((Some("JFK"), Some(1), None), (Some("LGA"), Some(2), None));
    let other_jfk = (Some("JFK"), Some(3), None);
    check_counts(&compare(&[jfk, jfk, lga], &[jfk, lga]), false, 0, 1, 0, 2);
    check_counts(&compare(&[jfk, lga], &[jfk, jfk, lga]), false, 1, 0, 0, 2);
    check_counts(&compare(&[jfk, lga], &[jfk, other_jfk, lga]), false, 1, 0, 0, 2);
    let null = (None, Some(1), None);
    check_counts(&compare(&[null], &[null, lga]), false, 1, 0, 0, 1);
    let diff = compare(&[jfk, null], &[other_jfk, null]);
    check_counts(&diff, false, 1, 1, 0, 1);
    assert!(diff.columns.is_empty() && diff.distributions.is_empty());
    assert!(diff.samples.iter().all(|s| s.key.is_empty()));
    assert_eq!(
        diff.samples[0].before,
        Some(texts(&[("origin", Some("JFK")), ("departures", Some("1")), ("delay", None)]))
    );
}

#[test]
fn empty_tables_have_a_diff() {
    let row = (Some("JFK"), Some(1), None);
    check_counts(&compare(&[], &[]), true, 0, 0, 0, 0);
    check_counts(&compare(&[], &[row]), true, 1, 0, 0, 0);
    check_counts(&compare(&[row], &[]), true, 0, 1, 0, 0);
    let spec = DiffSpec::new(["origin"]).with_distributions(["departures"]);
    let of = |before: &[RecordBatch], after: &[RecordBatch]| {
        diff(PartitionKey::whole(), before, after, &spec).unwrap()
    };
    check_counts(&of(&[], &[]), true, 0, 0, 0, 0);
    let without_batches = diff(PartitionKey::whole(), &[], &[], &DiffSpec::new(["origin"])).unwrap();
    check_counts(&without_batches, true, 0, 0, 0, 0);
    check_counts(&of(&[], &[origins(&[row])]), true, 1, 0, 0, 0);
    check_counts(&of(&[origins(&[row]), origins(&[])], &[]), true, 0, 1, 0, 0);
}

#[test]
fn decimals_are_compared_as_numbers() {
    let fees = |unscaled: Vec<i128>, scale: i8| {
        batch(vec![
            ("id", array(Int32Array::from_iter_values(0..i32::try_from(unscaled.len()).unwrap()))),
            ("fee", array(Decimal128Array::from(unscaled).with_precision_and_scale(20, scale).unwrap())),
        ])
    };
    let of =
        |before, after| diff(PartitionKey::whole(), &[before], &[after], &DiffSpec::new(["id"])).unwrap();
    check_counts(&of(fees(vec![150, 200], 2), fees(vec![15, 20], 1)), true, 0, 0, 0, 2);
    let moved = of(fees(vec![150, 200], 2), fees(vec![1501, 2000], 3));
    check_counts(&moved, true, 0, 0, 1, 1);
    assert_eq!(moved.distributions["fee"].sum, Some("0.001".parse().unwrap()));
    assert_eq!(moved.samples[0].after, Some(texts(&[("fee", Some("1.501"))])));
}

#[test]
fn rounding_of_floats_is_no_difference() {
    let rounded = 0.1 + 0.2;
    assert_ne!(rounded, 0.3);
    let (before, after) = ((Some("JFK"), None, Some(0.3)), (Some("JFK"), None, Some(rounded)));
    check_counts(&compare(&[before], &[after]), true, 0, 0, 0, 1);
    check_counts(&compare(&[before, before], &[after, before]), false, 0, 0, 0, 2);
    check_counts(&compare(&[before], &[(Some("JFK"), None, Some(0.300_001))]), true, 0, 0, 1, 0);
    let exact = DiffSpec::new(["origin"]).with_float_digits(17);
    let diff = diff(PartitionKey::whole(), &[origins(&[before])], &[origins(&[after])], &exact).unwrap();
    check_counts(&diff, true, 0, 0, 1, 0);
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0].map(Some);
    for (i, a) in odd.iter().enumerate() {
        for (j, b) in odd.iter().enumerate() {
            let diff = compare(&[(Some("JFK"), None, *a)], &[(Some("JFK"), None, *b)]);
            assert_eq!(diff.changed, u64::from(i != j), "{a:?} {b:?}");
        }
    }
}

#[test]
fn columns_of_one_side_are_null_on_the_other() {
    let id = || ("id", array(Int32Array::from(vec![1, 2])));
    let before = batch(vec![id()]);
    let after = batch(vec![("new", array(Int8Array::from(vec![None, Some(5)]))), id()]);
    let diff = diff(PartitionKey::whole(), &[before], &[after], &DiffSpec::new(["id"])).unwrap();
    check_counts(&diff, true, 0, 0, 1, 1);
    assert_eq!(diff.columns["new"], 1);
    assert!(diff.distributions.is_empty());
}

#[test]
fn a_distribution_has_the_ranks_of_its_differences() {
    // Differences 1, 2, … 200 in shuffled order.
    let n = 200;
    let shuffled: Vec<i64> = (0..n).map(|i| (i * 77) % n).collect();
    let side = |by: i64| {
        batch(vec![
            ("id", array(Int64Array::from(shuffled.clone()))),
            ("v", array(Int64Array::from_iter_values(shuffled.iter().map(|i| i * 1000 + by * (i + 1))))),
        ])
    };
    let diff =
        diff(PartitionKey::whole(), &[side(0)], &[side(1)], &DiffSpec::new(["id"]).with_samples(3)).unwrap();
    let v = &diff.distributions["v"];
    assert_eq!((v.rows, v.min, v.p01, v.p50, v.p99, v.max), (200, 1.0, 2.0, 100.0, 198.0, 200.0));
    assert_eq!(v.sum, Some(Decimal::from(20_100)));
    let shown: Vec<_> = diff.samples.iter().map(|s| s.key["id"].clone().unwrap()).collect();
    assert_eq!(shown, ["0", "1", "2"]);
}

#[test]
fn unknown_columns_are_refused() {
    let rows = [origins(&[])];
    let refusal = |spec: &DiffSpec| diff(PartitionKey::whole(), &rows, &rows, spec).unwrap_err().to_string();
    assert_eq!(refusal(&DiffSpec::new(["id"])), "the key `id` of the diff is no column of the rows");
    let spec = DiffSpec::new(["origin"]);
    assert_eq!(refusal(&spec.clone().with_distributions(["x"])), "`x` of the diff is no column of the rows");
    assert_eq!(refusal(&spec.with_distributions(["origin"])), "column `origin` of the diff holds no numbers");
}

type Plain = (i64, Option<i64>, Option<String>);

fn to_batches(rows: &[Plain], cut: usize) -> Vec<RecordBatch> {
    let all = batch(vec![
        ("k", array(Int64Array::from_iter_values(rows.iter().map(|r| r.0)))),
        ("n", array(Int64Array::from_iter(rows.iter().map(|r| r.1)))),
        ("t", array(StringArray::from_iter(rows.iter().map(|r| r.2.clone())))),
    ]);
    let cut = cut.min(rows.len());
    vec![all.slice(0, cut), all.slice(cut, rows.len() - cut)]
}

/// Row by row, without sorting: (added, removed, changed, unchanged).
fn naive(before: &[Plain], after: &[Plain], keyed: bool) -> (u64, u64, u64, u64) {
    let mut rest = after.to_vec();
    let (mut removed, mut changed, mut unchanged) = (0, 0, 0);
    for row in before {
        match rest.iter().position(|other| if keyed { other.0 == row.0 } else { other == row }) {
            None => removed += 1,
            Some(at) if rest.remove(at) == *row => unchanged += 1,
            Some(_) => changed += 1,
        }
    }
    (u64::try_from(rest.len()).unwrap(), removed, changed, unchanged)
}

fn any_rows() -> impl Strategy<Value = Vec<Plain>> {
    prop::collection::vec((0..12_i64, prop::option::of(0..3_i64), prop::option::of("[ab]{0,1}")), 0..10)
}

proptest! {
    #[test]
    fn a_diff_agrees_with_a_naive_one(before in any_rows(), after in any_rows(), cuts in (0..10_usize, 0..10_usize)) {
        let unique = |rows: &[Plain]| rows.iter().map(|r| r.0).collect::<std::collections::BTreeSet<_>>().len() == rows.len();
        let keyed = unique(&before) && unique(&after);
        let spec = DiffSpec::new(["k"]);
        let found = diff(PartitionKey::whole(), &to_batches(&before, cuts.0), &to_batches(&after, cuts.1), &spec).unwrap();
        prop_assert_eq!(found.keyed, keyed);
        prop_assert_eq!((found.added, found.removed, found.changed, found.unchanged), naive(&before, &after, keyed));
        prop_assert_eq!(u64::try_from(found.samples.len()).unwrap(), found.added + found.removed + found.changed);
        if keyed {
            let value = |rows: &[Plain], k: i64| rows.iter().find(|r| r.0 == k).map(|r| r.1);
            let n = before.iter().filter(|r| value(&after, r.0).is_some_and(|other| other != r.1)).count();
            prop_assert_eq!(found.columns["n"], u64::try_from(n).unwrap());
        }
    }

    #[test]
    fn the_diff_of_what_is_left_without_equal_pairs_is_that_of_all_rows(before in any_rows(), after in any_rows()) {
        let unique = |rows: &[Plain]| rows.iter().map(|r| r.0).collect::<std::collections::BTreeSet<_>>().len() == rows.len();
        let (mut removed, mut added) = (Vec::new(), after.clone());
        for row in &before {
            match added.iter().position(|other| other == row) {
                Some(at) => drop(added.remove(at)),
                None => removed.push(row.clone()),
            }
        }
        let left_out = LeftOut {
            pairs: u64::try_from(before.len() - removed.len()).unwrap(),
            identified: unique(&before) && unique(&after),
        };
        let spec = DiffSpec::new(["k"]);
        let all = diff(PartitionKey::whole(), &to_batches(&before, 0), &to_batches(&after, 0), &spec).unwrap();
        let rest = diff_of_rest(PartitionKey::whole(), &to_batches(&removed, 0), &to_batches(&added, 0), &spec, left_out);
        prop_assert_eq!(rest.unwrap(), all);
    }

    #[test]
    fn a_tolerance_never_finds_more_than_an_exact_comparison(
        before in prop::collection::vec((0..2_i64, 0..4_i32, 0..4_i32), 0..8),
        after in prop::collection::vec((0..2_i64, 0..4_i32, 0..4_i32), 0..8),
    ) {
        let side = |rows: &[(i64, i32, i32)]| {
            let float = |f: fn(&(i64, i32, i32)) -> i32| {
                array(Float64Array::from_iter_values(rows.iter().map(|r| 1.0 + f64::from(f(r)) * 6e-10)))
            };
            vec![batch(vec![
                ("k", array(Int64Array::from_iter_values(rows.iter().map(|r| r.0)))),
                ("x", float(|r| r.1)),
                ("y", float(|r| r.2)),
            ])]
        };
        let of = |digits: u8| {
            let spec = DiffSpec::new([""; 0]).with_float_digits(digits);
            diff(PartitionKey::whole(), &side(&before), &side(&after), &spec).unwrap()
        };
        let (exact, tolerant) = (of(17), of(9));
        prop_assert!(tolerant.added <= exact.added && tolerant.removed <= exact.removed);
        prop_assert_eq!(tolerant.unchanged + tolerant.removed, exact.unchanged + exact.removed);
    }
}
