//! Memory and time of this process as the kernel counts it, so that what SQLite allocates is in it. Linux only.

/// Bytes that are resident now.
pub(crate) fn resident() -> u64 {
    field("VmRSS:")
}

/// The most bytes that were resident since [`reset_peak`].
pub(crate) fn peak() -> u64 {
    field("VmHWM:")
}

/// Begins a new peak.
pub(crate) fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// How long this thread ran, which on a busy machine is less than the time that passed.
pub(crate) fn nanoseconds_on_core() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// How long all threads of this process ran, in seconds.
pub(crate) fn seconds_on_cores() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let ran = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    tasks.filter_map(|task| ran(task.unwrap().path())).sum::<f64>() / 1e9
}

fn field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}
