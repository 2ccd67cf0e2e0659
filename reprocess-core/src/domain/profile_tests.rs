use std::sync::Arc;

use arrow_array::*;
use arrow_buffer::i256;
use arrow_schema::{DataType, Field};
use proptest::prelude::*;

use super::*;
use crate::domain::interval::Grain;
use crate::domain::partition::Partitioning;
use crate::domain::scope::Scope;
use crate::domain::value::{Value, ValueKind};

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<_> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, a)| a).collect())
        .unwrap()
}

fn array(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

fn profile(batches: &[RecordBatch], spec: &ProfileSpec) -> Result<Profile> {
    let mut builder = ProfileBuilder::new(&batches[0].schema(), spec)?;
    batches.iter().try_for_each(|b| builder.push(b))?;
    Ok(builder.finish(PartitionKey::whole()))
}

fn total(values: ArrayRef) -> Result<Total> {
    Ok(profile(&[batch(vec![("x", values)])], &ProfileSpec::new())?.totals["x"])
}

fn exact(text: &str) -> Total {
    Total::Exact(text.parse().unwrap())
}

#[test]
fn a_profile_worked_out_by_hand() {
    let rows = batch(vec![
        ("origin", array(StringArray::from(vec![Some("JFK"), Some("LGA"), None]))),
        ("departures", array(Int32Array::from(vec![Some(300), Some(-20), None]))),
        ("fee", array(Decimal128Array::from(vec![150, 5, 0]).with_precision_and_scale(9, 2).unwrap())),
        ("late", array(BooleanArray::from(vec![None, None, Some(true)]))),
    ]);
    let spec = ProfileSpec::new().with_keys(["origin"]);
    let profile = profile(&[rows.slice(0, 2), rows.slice(2, 1)], &spec).unwrap();
    assert_eq!(profile.rows, 3);
    assert_eq!(
        profile.totals,
        BTreeMap::from([("departures".into(), exact("280")), ("fee".into(), exact("1.55"))])
    );
    let nulls = [("departures", 1), ("fee", 0), ("late", 2), ("origin", 1)];
    assert_eq!(profile.nulls, nulls.map(|(name, n)| (name.to_owned(), n)).into());
    assert_eq!(profile.content, profile.comparable, "without floats there is one digest");
    assert!(profile.keys.is_some());
    let json = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&json).unwrap(), profile);
}

#[test]
fn the_digest_is_the_sum_of_row_hashes_and_their_number() {
    let rows = batch(vec![("n", array(Int16Array::from(vec![Some(1), Some(-256), None])))]);
    // Name, end of name, kind, scale, length, sign, bytes.
    let hashes = [&b"n\xff\x02\x00\x01\x00\x01"[..], b"n\xff\x02\x00\x01\xff\x00", b""]
        .map(|row| i256::from_le_bytes(*blake3::hash(row).as_bytes()));
    let sum = hashes.into_iter().fold(i256::ZERO, i256::wrapping_add);
    let hex: String = sum.to_be_bytes().iter().map(|b| format!("{b:02x}")).collect();
    let digest = profile(&[rows], &ProfileSpec::new()).unwrap().content;
    assert_eq!(digest.value, format!("{hex}0000000000000003"));
    assert_eq!(digest.algorithm, DIGEST_ALGORITHM);
}

#[test]
fn a_row_that_stands_twice_counts_twice() {
    let digest = |values: &[i32]| {
        let rows = batch(vec![("n", array(Int32Array::from(values.to_vec())))]);
        profile(&[rows], &ProfileSpec::new().with_keys(["n"])).unwrap()
    };
    let (none, ones, twos) = (digest(&[]), digest(&[1, 1]), digest(&[2, 2]));
    assert_ne!(ones.content, twos.content);
    assert_ne!(ones.content, none.content);
    assert_ne!(ones.keys, twos.keys);
    assert_ne!(digest(&[1]).content, digest(&[1, 1, 1]).content);
}

#[test]
fn a_partition_without_rows_has_a_profile() {
    let schema = Schema::new(vec![
        Field::new("a", DataType::Int32, true),
        Field::new("b", DataType::Float64, true),
        Field::new("c", DataType::Utf8, true),
    ]);
    let spec = ProfileSpec::new().with_keys(["c"]);
    let empty = Profile::empty(PartitionKey::whole(), &schema, &spec).unwrap();
    assert_eq!(empty.totals, BTreeMap::from([("a".into(), Total::Empty), ("b".into(), Total::Empty)]));
    assert_eq!(empty.nulls.values().sum::<u64>(), 0);
    assert_eq!(empty.content.value, "0".repeat(80));
    assert_eq!(profile(&[RecordBatch::new_empty(Arc::new(schema))], &spec).unwrap(), empty);
}

#[test]
fn totals_are_exact_or_refused() {
    let decimals =
        |values: Vec<i256>| array(Decimal256Array::from(values).with_precision_and_scale(76, 0).unwrap());
    assert_eq!(
        total(decimals(vec![i256::MAX, i256::MINUS_ONE])).unwrap(),
        exact(&(i256::MAX - i256::ONE).to_string())
    );
    assert_eq!(
        total(decimals(vec![i256::MAX, i256::ONE])).unwrap_err().message(),
        "the total of column `x` does not fit into 256 bits"
    );
    let wide = total(array(UInt64Array::from(vec![u64::MAX, u64::MAX]))).unwrap();
    assert_eq!(wide, exact("36893488147419103230"));
    assert_eq!(total(array(Int64Array::from(vec![None, None]))).unwrap(), Total::Empty);
    assert!(total(array(Float64Array::from(vec![f64::MAX, f64::MAX]))).is_err());
}

#[test]
fn float_totals_keep_what_a_plain_sum_loses() {
    let Total::Float { sum, tolerance, .. } =
        total(array(Float64Array::from(vec![1e16, 1.0, -1e16]))).unwrap()
    else {
        panic!("a float")
    };
    assert_eq!(sum, 1.0);
    // Three values, magnitudes of 2e16.
    assert!((tolerance - 3.0 * f64::EPSILON * 2e16).abs() < 1e-6, "{tolerance}");
    let odd = [f64::NAN, 0.5, f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY, 0.25];
    let Total::Float { sum, nan, infinite, negative_infinite, .. } =
        total(array(Float64Array::from(odd.to_vec()))).unwrap()
    else {
        panic!("a float")
    };
    assert_eq!((sum, nan, infinite, negative_infinite), (0.75, 1, 2, 1));
}

#[test]
fn the_last_bit_of_a_float_is_content_but_not_comparable() {
    let of = |f: f64| {
        let rows =
            batch(vec![("f", array(Float64Array::from(vec![f]))), ("n", array(Int8Array::from(vec![1])))]);
        profile(&[rows], &ProfileSpec::new()).unwrap()
    };
    let (a, b) = (of(1.0), of(1.0 + f64::EPSILON));
    assert_ne!(a.content, b.content);
    assert_eq!(a.comparable, b.comparable);
    assert_ne!(of(0.0).content, of(-0.0).content);
}

#[test]
fn a_wrong_spec_is_refused_with_the_reason() {
    let schema =
        Schema::new(vec![Field::new("a", DataType::Int32, true), Field::new("t", DataType::Utf8, true)]);
    let refusal = |spec: ProfileSpec| ProfileBuilder::new(&schema, &spec).unwrap_err().to_string();
    assert_eq!(
        refusal(ProfileSpec::new().with_totals(["b"])),
        "the total `b` of the profile is no column of the table; its columns are: a, t"
    );
    assert_eq!(refusal(ProfileSpec::new().with_totals(["t"])), "column `t` is to be totalled, but is a text");
    assert!(
        refusal(ProfileSpec::new().with_keys(["k"])).starts_with("the key `k` of the profile is no column")
    );
    let list = Field::new_list("l", Field::new_list_field(DataType::Int8, true), true);
    assert!(ProfileBuilder::new(&Schema::new(vec![list]), &ProfileSpec::new()).is_err());
    let mut builder = ProfileBuilder::new(&schema, &ProfileSpec::new()).unwrap();
    let error = builder.push(&batch(vec![("a", array(Int32Array::from(vec![1])))])).unwrap_err();
    assert_eq!(error.to_string(), "the rows have the columns a, the schema has a, t");
}

fn day(day: u32) -> Value {
    Value::Date(chrono::NaiveDate::from_ymd_opt(2013, 3, day).unwrap())
}

fn by_day_and_origin() -> Partitioning {
    Partitioning::unpartitioned()
        .with_time("day", Grain::Day, chrono_tz::America::New_York)
        .with_key("origin", ValueKind::Text)
}

fn rows_of(rows: &[(i32, Option<&str>, i64)]) -> RecordBatch {
    let march = |day: i32| 15764 + day;
    batch(vec![
        ("day", array(Date32Array::from_iter_values(rows.iter().map(|r| march(r.0))))),
        ("origin", array(StringArray::from_iter(rows.iter().map(|r| r.1)))),
        ("n", array(Int64Array::from_iter_values(rows.iter().map(|r| r.2)))),
    ])
}

#[test]
fn each_key_of_a_scope_gets_its_rows() {
    // Written in another order than declared; and a key below another one.
    let france = PartitionKey::of("origin", "JFK").and("day", day(1));
    let scope = Scope::keys([
        PartitionKey::of("day", day(1)),
        france.clone(),
        PartitionKey::of("origin", Value::Null),
        PartitionKey::of("day", day(9)),
    ])
    .unwrap();
    let rows = rows_of(&[
        (1, Some("JFK"), 1),
        (1, Some("LGA"), 20),
        (2, None, 300),
        (1, Some("JFK"), 4000),
        (1, None, 50000),
    ]);
    let mut profiler =
        ScopeProfiler::new(&by_day_and_origin(), &scope, &rows.schema(), &ProfileSpec::new()).unwrap();
    profiler.push(&rows).unwrap();
    let profiles = profiler.finish();
    let totals = profiles.iter().map(|p| (p.partition.clone(), p.totals["n"])).collect::<Vec<_>>();
    assert_eq!(
        totals,
        [
            (PartitionKey::of("day", day(1)), exact("54021")),
            (PartitionKey::of("day", day(9)), Total::Empty),
            (PartitionKey::of("origin", Value::Null), exact("50300")),
            (france, exact("4001")),
        ]
    );
    assert_eq!(totals.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), scope.partitions());
}

#[test]
fn rows_outside_the_scope_have_no_profile() {
    let rows = rows_of(&[(1, Some("JFK"), 1), (2, Some("JFK"), 1)]);
    let scope = Scope::key(PartitionKey::of("day", day(1))).unwrap();
    let profiler = |scope: &Scope| {
        ScopeProfiler::new(&by_day_and_origin(), scope, &rows.schema(), &ProfileSpec::new()).unwrap()
    };
    let error = profiler(&scope).push(&rows).unwrap_err().to_string();
    assert!(
        error.starts_with("1 row lies outside the scope, in partition day=2013-03-02/origin=JFK (1)"),
        "{error}"
    );
    let mut whole = profiler(&Scope::whole_table());
    whole.push(&rows).unwrap();
    assert_eq!(whole.finish()[0].rows, 2);
    let strange = Scope::key(PartitionKey::of("planet", "Mars")).unwrap();
    assert!(ScopeProfiler::new(&by_day_and_origin(), &strange, &rows.schema(), &ProfileSpec::new()).is_err());
}

type Row = (Option<i64>, Option<String>, bool);

fn any_rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (prop::option::of(-2..3_i64), prop::option::of("[ab]{0,2}"), any::<bool>());
    prop::collection::vec(row, 0..8)
}

fn to_batch(rows: &[Row]) -> RecordBatch {
    batch(vec![
        ("n", array(Int64Array::from_iter(rows.iter().map(|r| r.0)))),
        ("t", array(StringArray::from_iter(rows.iter().map(|r| r.1.clone())))),
        ("b", array(BooleanArray::from_iter(rows.iter().map(|r| Some(r.2))))),
    ])
}

/// The same rows as another engine might hand them over.
fn to_other_batch(rows: &[Row]) -> RecordBatch {
    batch(vec![
        ("b", array(BooleanArray::from_iter(rows.iter().map(|r| Some(r.2))))),
        ("t", array(LargeStringArray::from_iter(rows.iter().map(|r| r.1.clone())))),
        (
            "n",
            array(
                Decimal128Array::from_iter(rows.iter().map(|r| r.0.map(|n| i128::from(n) * 100)))
                    .with_precision_and_scale(12, 2)
                    .unwrap(),
            ),
        ),
    ])
}

proptest! {
    #[test]
    fn digests_are_order_independent(
        (rows, shuffled, cut) in any_rows().prop_flat_map(|rows| {
            let n = rows.len();
            (Just(rows.clone()), Just(rows).prop_shuffle(), 0..=n)
        })
    ) {
        let spec = ProfileSpec::new().with_keys(["t", "n"]);
        let mut a = profile(&[to_batch(&rows)], &spec).unwrap();
        let b = profile(&[to_other_batch(&shuffled[..cut]), to_batch(&shuffled[cut..])], &spec).unwrap();
        a.size_bytes = b.size_bytes;
        prop_assert_eq!(a, b);
    }

    #[test]
    fn digests_are_equal_exactly_when_the_rows_are(mut a in any_rows(), mut b in any_rows()) {
        let spec = ProfileSpec::new();
        let equal = profile(&[to_batch(&a)], &spec).unwrap().content == profile(&[to_batch(&b)], &spec).unwrap().content;
        a.sort();
        b.sort();
        prop_assert_eq!(equal, a == b);
    }

    #[test]
    fn another_order_of_floats_stays_within_the_tolerance(
        (floats, shuffled) in prop::collection::vec(prop_oneof![-1e3..1e3_f64, -1e18..1e18_f64, -1e-9..1e-9_f64], 1..60)
            .prop_flat_map(|f| (Just(f.clone()), Just(f).prop_shuffle()))
    ) {
        let plain: f64 = shuffled.iter().sum();
        let (a, b) = (total(array(Float64Array::from(floats))).unwrap(), total(array(Float64Array::from(shuffled))).unwrap());
        let (Total::Float { sum, tolerance, .. }, Total::Float { sum: other, .. }) = (a, b) else { panic!("floats") };
        prop_assert!((sum - other).abs() <= tolerance, "{} {} {}", sum, other, tolerance);
        prop_assert!((sum - plain).abs() <= tolerance, "{} {} {}", sum, plain, tolerance);
    }

    #[test]
    fn a_scope_of_days_profiles_what_filtering_day_by_day_does(
        rows in prop::collection::vec((1..4_i32, prop::option::of(prop_oneof![Just("JFK"), Just("LGA")]), -9..9_i64), 0..30),
        cut in 0..30_usize,
    ) {
        let scope = Scope::keys((1..=4).map(|d| PartitionKey::of("day", day(d)))).unwrap();
        let spec = ProfileSpec::new().with_keys(["origin"]);
        let all = rows_of(&rows);
        let mut profiler = ScopeProfiler::new(&by_day_and_origin(), &scope, &all.schema(), &spec).unwrap();
        let cut = cut.min(rows.len());
        profiler.push(&all.slice(0, cut)).unwrap();
        profiler.push(&all.slice(cut, rows.len() - cut)).unwrap();
        for (number, mut found) in (1..).zip(profiler.finish()) {
            let of_day: Vec<_> = rows.iter().filter(|r| r.0 == number).copied().collect();
            let mut expected = profile(&[rows_of(&of_day)], &spec).unwrap();
            expected.partition = found.partition.clone();
            found.size_bytes = expected.size_bytes;
            prop_assert_eq!(found, expected);
        }
    }
}
