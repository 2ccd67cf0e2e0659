//! Histories: what happens, in which order, and which calls go wrong. All of it follows from a seed.

use super::dice::Dice;
use super::rows::{Row, date};
use super::shop::{JOBS, TTL_MS};
use crate::domain::request::{WhenLeased, WhenMoved};

/// The days that histories are about: 1 to this.
pub(super) const DAYS: u32 = 4;

/// One thing that happens, with what goes wrong in it.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) act: Act,
    pub(super) faults: Vec<Fault>,
}

/// What happens.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// A run of the schedule, or a second start of one.
    Schedule {
        run: u32,
        job: &'static str,
        day: u32,
        force: bool,
        keep: bool,
        leased: WhenLeased,
    },
    /// Somebody plans a backfill, approves it and sees it through.
    Backfill(Box<Wish>),
    /// Another worker joins a backfill.
    Work {
        backfill: u32,
    },
    /// Somebody else publishes it.
    Publish {
        backfill: u32,
    },
    /// It is taken back, whole or for one day.
    Rollback {
        id: u32,
        of: u32,
        day: Option<u32>,
    },
    Cancel {
        backfill: u32,
    },
    Abort {
        backfill: u32,
    },
    Close {
        backfill: u32,
        forget: bool,
    },
    /// Another system replaces the orders of a day.
    Orders {
        day: u32,
        rows: Vec<Row>,
    },
    /// Another system replaces the rows of a day of an output.
    Outside {
        table: &'static str,
        day: u32,
        rows: Vec<Row>,
    },
    /// The clock jumps.
    Jump {
        ms: i64,
    },
    /// Deliveries are released by name.
    Release {
        keys: Vec<String>,
    },
}

/// What a backfill is asked to be.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) id: u32,
    pub(super) jobs: Vec<(&'static str, &'static str)>,
    pub(super) days: (u32, u32),
    pub(super) shadow: bool,
    pub(super) moved: WhenMoved,
    pub(super) leased: WhenLeased,
    pub(super) keep: bool,
    pub(super) force: bool,
    pub(super) deliver: bool,
    pub(super) concurrency: u32,
    pub(super) per_commit: u32,
    pub(super) oldest_first: bool,
    pub(super) replays: Option<u32>,
}

/// A call that goes wrong.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// The call; `None` counts all calls of the actor.
    pub(super) on: Option<&'static str>,
    /// Which of them, from 1.
    pub(super) nth: u32,
    pub(super) what: What,
}

/// How it goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The process dies before the call reaches anything.
    DieBefore,
    /// The process dies after the call took effect.
    DieAfter,
    /// The call reaches nothing.
    FailBefore { retryable: bool },
    /// The process dies when so many rows of what it stages have gone on their way.
    DieAmid { rows: u32 },
    /// The rows that are staged end with an error after so many.
    FailAmid { rows: u32, retryable: bool },
    /// The call took effect, and its reply is lost.
    LoseReply { retryable: bool },
    /// The process stands still for so many steps of the others, while time goes on.
    Pause { steps: u32, ms: i64 },
}

const CALLS: [&str; 14] = [
    "stage",
    "prepare",
    "note_staged",
    "commit",
    "finish",
    "leave",
    "claim",
    "transition",
    "submit",
    "acquire",
    "release",
    "find_commit",
    "restage",
    "discard",
];

/// The history of a seed.
pub(super) fn of(seed: u64) -> Vec<Step> {
    let mut dice = Dice::new(seed);
    let mut made = Made { dice: &mut dice, ids: 100, runs: 0, backfills: 0, many_faults: false };
    made.many_faults = made.dice.chance(60);
    let mut steps = Vec::new();
    for day in 1..=DAYS {
        let rows = made.rows(day, false);
        steps.push(Step { act: Act::Orders { day, rows }, faults: Vec::new() });
    }
    for day in 1..=made.dice.below(DAYS + 1) {
        for job in JOBS {
            if made.dice.chance(70) {
                steps.push(made.schedule(job, day));
            }
        }
    }
    for _ in 0..made.dice.between(4, 16) {
        let act = made.act();
        let faults = made.faults();
        steps.push(Step { act, faults });
    }
    steps
}

struct Made<'a> {
    dice: &'a mut Dice,
    ids: i64,
    runs: u32,
    backfills: u32,
    many_faults: bool,
}

impl Made<'_> {
    fn schedule(&mut self, job: &'static str, day: u32) -> Step {
        self.runs += 1;
        let leased =
            self.dice.pick(&[WhenLeased::Wait, WhenLeased::Wait, WhenLeased::Fail], WhenLeased::Skip);
        let (force, keep) = (self.dice.chance(20), self.dice.chance(20));
        let act = Act::Schedule { run: self.runs, job, day, force, keep, leased };
        let faults = self.faults();
        Step { act, faults }
    }

    fn act(&mut self) -> Act {
        let day = self.dice.between(1, DAYS);
        let known = self.dice.between(1, self.backfills.max(1));
        match self.dice.below(100) {
            0..22 => {
                let job = self.dice.pick(&JOBS, "revenue");
                self.schedule(job, day).act
            }
            22..26 => {
                // The scheduler starts a run again under its id; it may have ended, died, or be running.
                let run = self.dice.between(1, self.runs.max(1));
                Act::Schedule {
                    run,
                    job: "revenue",
                    day,
                    force: false,
                    keep: false,
                    leased: WhenLeased::Wait,
                }
            }
            26..46 => Act::Backfill(Box::new(self.wish())),
            46..56 => Act::Work { backfill: known },
            56..61 => Act::Publish { backfill: known },
            61..69 => {
                self.backfills += 1;
                let day = self.dice.chance(40).then_some(day);
                Act::Rollback { id: self.backfills, of: known, day }
            }
            69..73 => Act::Cancel { backfill: known },
            73..76 => Act::Abort { backfill: known },
            76..78 => Act::Close { backfill: known, forget: self.dice.chance(50) },
            78..88 => Act::Orders { day, rows: self.rows(day, true) },
            88..93 => {
                let table = self.dice.pick(&["revenue", "balance"], "revenue");
                let mut rows = self.rows(day, true);
                if table == "balance" {
                    rows.truncate(1);
                }
                Act::Outside { table, day, rows }
            }
            93..97 => {
                let ttl = i64::try_from(TTL_MS).unwrap_or(0);
                Act::Jump { ms: self.dice.pick(&[ttl / 2, ttl + 1, 20 * ttl, -ttl], 3_600_000) }
            }
            _ => Act::Release { keys: (0..3).map(|_| self.key()).collect() },
        }
    }

    fn key(&mut self) -> String {
        let ids = u32::try_from(self.ids - 100).unwrap_or(1);
        format!("receipt-{}", 100 + self.dice.below(ids.max(1)))
    }

    fn wish(&mut self) -> Wish {
        // The same name again is another generation, or a second person with the same idea.
        let again = self.backfills > 0 && self.dice.chance(25);
        if !again {
            self.backfills += 1;
        }
        let id = if again { self.dice.between(1, self.backfills) } else { self.backfills };
        let jobs = self.dice.pick(&[&JOBS[..1], &JOBS[..2], &JOBS[1..2], &JOBS[2..], &JOBS[..]], &JOBS[..]);
        let versions = jobs.iter().map(|job| (*job, self.dice.pick(&["v1", "v2"], "v2"))).collect();
        let first = self.dice.between(1, DAYS);
        Wish {
            id,
            jobs: versions,
            days: (first, self.dice.between(first, DAYS)),
            shadow: self.dice.chance(50),
            moved: WhenMoved::Stop,
            leased: self.dice.pick(&[WhenLeased::Wait, WhenLeased::Wait, WhenLeased::Skip], WhenLeased::Fail),
            keep: self.dice.chance(75),
            force: self.dice.chance(30),
            deliver: self.dice.chance(20),
            concurrency: self.dice.between(1, 3),
            per_commit: self.dice.pick(&[1, 1, 2], 3),
            oldest_first: self.dice.chance(20),
            replays: None,
        }
        .with_rare(self.dice, self.runs)
    }

    fn rows(&mut self, day: u32, may_be_none: bool) -> Vec<Row> {
        let count = self.dice.between(u32::from(!may_be_none), 3);
        let mut rows = Vec::new();
        for _ in 0..count {
            let country = self.dice.pick(&["DE", "FR", "IT"], "FR").to_owned();
            let cents = i64::from(self.dice.between(1, 999));
            rows.push(Row { day: date(day), country, id: self.ids, cents });
            self.ids += 1;
        }
        rows
    }

    fn faults(&mut self) -> Vec<Fault> {
        let mut faults = Vec::new();
        while faults.len() < 4 && self.dice.chance(if self.many_faults { 40 } else { 8 }) {
            let retryable = self.dice.chance(80);
            if self.dice.chance(15) {
                let rows = self.dice.below(3);
                let what = match self.dice.chance(60) {
                    true => What::DieAmid { rows },
                    false => What::FailAmid { rows, retryable },
                };
                faults.push(Fault { on: Some("stage"), nth: self.dice.between(1, 3), what });
                continue;
            }
            let what = match self.dice.below(10) {
                0 | 1 => What::DieBefore,
                2 | 3 => What::DieAfter,
                4 => What::FailBefore { retryable },
                5 | 6 => What::LoseReply { retryable },
                _ => What::Pause {
                    steps: self.dice.between(20, 300),
                    ms: self.dice.pick(&[100, 2_000, 4_000], 20_000),
                },
            };
            let fault = match self.dice.chance(65) {
                true => {
                    Fault { on: Some(self.dice.pick(&CALLS, "commit")), nth: self.dice.between(1, 3), what }
                }
                false => Fault { on: None, nth: self.dice.between(1, 90), what },
            };
            faults.push(fault);
        }
        faults
    }
}

impl Wish {
    fn with_rare(mut self, dice: &mut Dice, runs: u32) -> Self {
        if dice.chance(12) {
            self.moved = WhenMoved::Overwrite;
        }
        if runs > 0 && dice.chance(5) {
            self.replays = Some(dice.between(1, runs));
        }
        self
    }
}
