use proptest::prelude::*;

use super::*;
use crate::domain::interval::Grain;
use crate::domain::job::TableSpec;

fn grain() -> impl Strategy<Value = Grain> {
    prop_oneof![Just(Grain::Hour), Just(Grain::Day), Just(Grain::Week), Just(Grain::Month)]
}

fn window() -> impl Strategy<Value = Window> {
    prop_oneof![
        Just(Window::Covering),
        (1..5_u32).prop_map(Window::Trailing),
        (0..3_u32, 0..3_u32).prop_map(|(before, after)| Window::Between { before, after }),
        Just(Window::All),
    ]
}

proptest! {
    /// The inverse of a window is what trying every downstream partition finds.
    #[test]
    fn affected_units_are_those_that_read_the_changed_partition(
        (upper, lower, window) in (grain(), grain(), window()),
        zones in prop::sample::select(vec![
            (chrono_tz::America::New_York, chrono_tz::America::New_York),
            (chrono_tz::Asia::Kolkata, chrono_tz::UTC),
            (chrono_tz::Pacific::Apia, chrono_tz::Pacific::Apia),
        ]),
        // Around the day that Apia jumped over and New Year.
        start in 1_324_900_000..1_325_500_000_i64,
    ) {
        let table = |column: &str, grain, zone| Partitioning::unpartitioned().with_time(column, grain, zone);
        let mut catalog = Catalog::new();
        catalog.add_table(TableSpec::new("lower", table("l", lower, zones.0))).unwrap();
        catalog.add_table(TableSpec::new("upper", table("u", upper, zones.1))).unwrap();
        let job = JobSpec::new("job", "o", "upper").with_input("i", "lower", window);
        catalog.add_job(job.clone()).unwrap();
        let lower = Calendar::new(lower, zones.0);
        let upper = Calendar::new(upper, zones.1);
        let at = chrono::DateTime::from_timestamp(start, 0).unwrap();
        let changed = PartitionKey::of("l", lower.key_at(at).unwrap());
        let days = chrono::Duration::days(220);
        let around = Interval::new(at - days, at + days).unwrap();
        let all: BTreeSet<_> = upper.keys_in(&around).map(|v| PartitionKey::of("u", v)).collect();
        let reads = |unit: &&PartitionKey| {
            let slice = slice(&catalog, &job, &job.inputs[0], &[(*unit).clone()]).unwrap().unwrap();
            match slice {
                Slice::Time(s) => s.interval.overlaps(&lower.interval(changed.get("l").unwrap()).unwrap()),
                _ => true,
            }
        };
        let expected: BTreeSet<_> = all.iter().filter(reads).cloned().collect();
        let found = affected(&catalog, &job, &job.inputs[0], &changed, &all).unwrap();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn jobs_that_read_each_other_in_a_circle_are_refused() {
    let mut catalog = Catalog::new();
    for table in ["a", "b"] {
        catalog.add_table(TableSpec::new(table, Partitioning::unpartitioned())).unwrap();
    }
    catalog.add_job(JobSpec::new("ab", "o", "b").with_input("a", "a", Window::All)).unwrap();
    catalog.add_job(JobSpec::new("ba", "o", "a").with_input("b", "b", Window::All)).unwrap();
    assert!(
        dependency_order(&catalog).unwrap_err().to_string().starts_with("jobs read each other in a circle")
    );
}
