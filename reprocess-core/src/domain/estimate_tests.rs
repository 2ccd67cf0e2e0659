use super::*;

const GB: u64 = 1_000_000_000;
const MINUTE: u64 = 60_000;

fn tasks(job: &str, days: i64) -> Vec<(JobName, PartitionKey)> {
    (0..days).map(|d| (JobName::from(job), PartitionKey::of("day", d))).collect()
}

fn history(samples: &[(&str, i64, Sample)]) -> History {
    let mut history = History::new();
    samples.iter().for_each(|(job, day, s)| history.add((*job).into(), PartitionKey::of("day", *day), *s));
    history
}

#[test]
fn two_years_of_days_worked_out_by_hand() {
    let day =
        Sample::new(5 * MINUTE, 1_000_000).with_read_bytes(27 * GB / 10).with_written_bytes(27 * GB / 10);
    let history = history(&[("daily", -1, day), ("daily", -2, day)]);
    let estimate = estimate(&EstimateInput::new(tasks("daily", 730), 20).with_shadow(true), &history);
    // 730 tasks at 20 are 37 waves of 5 minutes; 730 times 2.7 GB are 1.971 TB.
    assert_eq!(estimate.wall_ms, Some(37 * 5 * MINUTE));
    assert_eq!(estimate.rows, Some(730_000_000));
    assert_eq!(estimate.read_bytes, Some(1_971 * GB));
    assert_eq!(estimate.written_bytes, Some(1_971 * GB));
    assert_eq!(estimate.shadow_bytes, Some(1_971 * GB));
    assert_eq!(
        estimate.to_string(),
        "tasks: 730, 20 at a time\nwall time: about 3 h 5 min\nrows: 730000000\nread: 2.0 TB\nwrite: 2.0 TB\n\
         shadow storage: 2.0 TB"
    );
    let json = serde_json::to_string(&estimate).unwrap();
    assert_eq!(serde_json::from_str::<Estimate>(&json).unwrap(), estimate);
}

#[test]
fn a_partition_is_told_from_its_own_runs_first() {
    let sample = |minutes: u64, rows| Sample::new(minutes * MINUTE, rows);
    let history = history(&[
        ("daily", 0, sample(1, 10)),
        ("daily", 0, sample(3, 30)),
        ("daily", 0, sample(60, 50)),
        ("daily", 9, sample(8, 90)),
    ]);
    let estimate = estimate(&EstimateInput::new(tasks("daily", 2), 1), &history);
    // Day 0 has its median of 30 rows, day 1 the median of 10, 30, 50 and 90.
    assert_eq!(estimate.rows, Some(30 + 40));
    // Day 0 takes 3 minutes, day 1 half-way between 3 and 8; half-way between these, twice.
    assert_eq!(estimate.wall_ms, Some((180_000 + 330_000) / 2 * 2));
    assert_eq!(estimate.shadow_bytes, Some(0));
}

#[test]
fn downstream_tasks_run_after_and_take_no_shadow() {
    let sample = Sample::new(MINUTE, 1).with_read_bytes(10).with_written_bytes(5);
    let history = history(&[("daily", 0, sample), ("monthly", 0, sample)]);
    let input =
        EstimateInput::new(tasks("daily", 5), 2).with_downstream(tasks("monthly", 3)).with_shadow(true);
    let estimate = estimate(&input, &history);
    assert_eq!(estimate.wall_ms, Some((3 + 2) * MINUTE));
    assert_eq!(
        (estimate.read_bytes, estimate.written_bytes, estimate.shadow_bytes),
        (Some(80), Some(40), Some(25))
    );
    assert_eq!(estimate.downstream_multiple(), Some(0.6));
    assert!(estimate.to_string().starts_with("tasks: 5, 2 at a time, and 3 downstream (0.6 for each)\n"));
}

#[test]
fn what_no_run_tells_is_unknown_and_said() {
    let unknown = estimate(&EstimateInput::new(tasks("daily", 2), 0).with_shadow(true), &History::new());
    assert_eq!(
        unknown.to_string(),
        "tasks: 2, 1 at a time\nwall time: unknown\nrows: unknown\nread: unknown\nwrite: unknown\n\
         shadow storage: unknown\nnote: no earlier run of `daily`: its tasks (2) are not in the numbers"
    );
    let partly = history(&[("daily", 0, Sample::new(MINUTE, 7).with_written_bytes(9))]);
    let input = EstimateInput::new(tasks("daily", 1), 1).with_downstream(tasks("monthly", 1));
    let partly = estimate(&input, &partly);
    assert_eq!((partly.rows, partly.read_bytes, partly.written_bytes), (Some(7), None, Some(9)));
    assert_eq!(
        partly.notes,
        [
            "earlier runs of `daily` do not tell how many bytes they read",
            "no earlier run of `monthly`: its tasks (1) are not in the numbers",
        ]
    );
}

#[test]
fn a_history_round_trips() {
    let history = history(&[("b", 1, Sample::new(1, 2)), ("a", 1, Sample::new(3, 4).with_read_bytes(5))]);
    let json = serde_json::to_string(&history).unwrap();
    assert_eq!(serde_json::from_str::<History>(&json).unwrap(), history);
}

#[test]
fn sizes_and_durations_are_for_people() {
    let sizes = [(0, "0 B"), (999, "999 B"), (1_949, "1.9 kB"), (1_950, "2.0 kB"), (2_700_000_000, "2.7 GB")];
    sizes.into_iter().for_each(|(bytes, text)| assert_eq!(size_text(bytes), text));
    let durations = [(999, "999 ms"), (59_999, "59 s"), (61_000, "1 min 1 s"), (90_000_000, "1 d 1 h")];
    durations.into_iter().for_each(|(ms, text)| assert_eq!(duration_text(ms), text));
}
