//! Times of what is compared, taken by turns, and peers in other processes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use super::{median, memory};

/// Times by their names, in seconds: as they passed, and on cores.
#[derive(Default)]
pub(crate) struct Measured(Vec<(String, Vec<f64>, Vec<f64>)>);

impl Measured {
    pub(crate) fn add(&mut self, name: &str, passed: f64, on_cores: f64) {
        if self.0.iter().all(|(known, ..)| known != name) {
            self.0.push((name.to_owned(), Vec::new(), Vec::new()));
        }
        let (_, times, cores) = self.0.iter_mut().find(|(known, ..)| known == name).unwrap();
        times.push(passed);
        cores.push(on_cores);
    }

    pub(crate) async fn time(&mut self, name: &str, work: impl Future<Output = ()>) {
        let (start, cores) = (Instant::now(), memory::seconds_on_cores());
        work.await;
        self.add(name, start.elapsed().as_secs_f64(), memory::seconds_on_cores() - cores);
    }

    /// Each as a multiple of the first.
    pub(crate) fn tell(&self) {
        let first = median(self.0[0].1.clone());
        for (name, times, cores) in &self.0 {
            let (time, cores) = (median(times.clone()), median(cores.clone()));
            println!(
                "  {name:<44} {:7.1} ms  {:5.2}  {:7.1} ms on cores",
                time * 1e3,
                time / first,
                cores * 1e3
            );
        }
    }
}

/// A Python library in a process of its own, by a script in `benches/peers`: it answers each line with the seconds that
/// passed and those on cores.
pub(crate) struct Python {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Python {
    /// `None` without `BENCH_PYTHON`, the Python that has the library.
    pub(crate) fn start(script: &str, arguments: &[&str]) -> Option<Self> {
        let python = std::env::var("BENCH_PYTHON").ok()?;
        let mut child = Command::new(python)
            .arg(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers")).join(script))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (asks, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Some(Self { child, asks, answers })
    }

    /// Asks for one piece of work, and notes its times under a name.
    pub(crate) fn turn(&mut self, measured: &mut Measured, name: &str, ask: &str) {
        writeln!(self.asks, "{ask}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let times: Vec<f64> = line.split_whitespace().map(|time| time.parse().unwrap()).collect();
        measured.add(name, times[0], times[1]);
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
