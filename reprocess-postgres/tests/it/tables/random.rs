//! Any sequence of commits leaves the same rows in the database as in memory, and shows the same before.

use std::collections::BTreeMap;

use reprocess_core::domain::diff::DiffSpec;
use reprocess_core::domain::job::TableSpec;
use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::domain::profile::ProfileSpec;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::{Kept, Slice};
use reprocess_core::domain::value::Value;
use reprocess_core::memory::MemoryTable;
use reprocess_core::ports::writer::{
    Change, CommitEntry, CommitRequest, Intent, MergeKeys, Op, PartitionWriter, StageRequest,
};

use super::support::*;

const DAYS: [&str; 3] = ["2026-10-01", "2026-10-02", "NULL"];
const COUNTRIES: [&str; 3] = ["FR", "DE", "NULL"];
const STEPS: u64 = 60;

#[tokio::test]
async fn a_table_holds_what_memory_holds() {
    let replayed = std::env::var("REPROCESS_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    for seed in replayed.map_or_else(|| (1..=6).collect(), |seed| vec![seed]) {
        let f = fixture().await;
        let memory = MemoryTable::new(TableSpec::new("sales", by_day_and_country()));
        memory.create(&columns()).await.unwrap();
        let mut both = Both { f, memory, random: seed, last: None };
        for step in 0..STEPS {
            let what = both.step(step).await;
            let replay = format!(
                "REPROCESS_SEED={seed} cargo test -p reprocess-postgres a_table_holds_what_memory_holds"
            );
            let (file, memory) = (both.f.rows().await, rows(&both.memory).await);
            assert_eq!(file, memory, "step {step}: {what}; replay with {replay}");
        }
    }
}

struct Both {
    f: Fixture,
    memory: MemoryTable,
    random: u64,
    /// The last commit: its scope, and what each table kept.
    last: Option<(Scope, Kept, Kept)>,
}

impl Both {
    /// A linear congruence, so that a seed is all that a replay needs.
    fn below(&mut self, n: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(u64::try_from(from.len()).unwrap())).unwrap()]
    }

    fn scope(&mut self) -> Scope {
        if self.below(4) == 0 {
            return Scope::whole_table();
        }
        let keys = (0..=self.below(2)).map(|_| {
            let (d, c) = (self.pick(&DAYS), self.pick(&COUNTRIES));
            let (d, c) = (cell("day", d), cell("country", c));
            match self.below(3) {
                0 => PartitionKey::of("day", d),
                1 => PartitionKey::of("country", c),
                _ => PartitionKey::of("day", d).and("country", c),
            }
        });
        Scope::keys(keys.collect::<Vec<_>>()).unwrap()
    }

    fn rows_of(&mut self, scope: &Scope, by_id: bool) -> Vec<Row<'static>> {
        let mut rows = BTreeMap::new();
        for n in 0..self.below(12) {
            let (d, c) = (self.pick(&DAYS), self.pick(&COUNTRIES));
            let id = i64::try_from(self.below(7)).unwrap();
            let (amount, rev) =
                (i64::try_from(self.below(3)).unwrap(), i64::try_from(self.below(4)).unwrap());
            let key = PartitionKey::of("day", cell("day", d)).and("country", cell("country", c));
            if scope.covers(&key) {
                rows.insert(if by_id { id } else { i64::try_from(n).unwrap() }, (d, c, id, amount, rev));
            }
        }
        rows.into_values().collect()
    }

    fn intent(&mut self) -> Intent {
        match self.below(6) {
            0 | 1 => Intent::Replace,
            2 => Intent::ReplaceDynamic,
            _ => Intent::Merge(MergeKeys {
                newer: (self.below(2) == 0).then(|| "rev".into()),
                delete_vanished: (self.below(2) == 0).then(|| {
                    let country = self.pick(&COUNTRIES);
                    BTreeMap::from([("country".to_owned(), cell("country", country))])
                }),
                ..by_id()
            }),
        }
    }

    async fn step(&mut self, step: u64) -> String {
        if let Some((scope, file, memory)) = self.last.take().filter(|_| step % 4 == 3) {
            let what = format!("restore {scope}");
            self.restore(&scope, file, memory, step).await;
            return what;
        }
        let (scope, intent) = (self.scope(), self.intent());
        let rows = self.rows_of(&scope, matches!(intent, Intent::Merge(_)));
        let what = format!("{intent:?} of {scope} with {rows:?}");
        println!("{what}");
        let request = request(&format!("r{step}"), &scope, intent);
        self.write(&request, &rows).await;
        what
    }

    async fn write(&mut self, request: &StageRequest, rows: &[Row<'static>]) {
        let (f, memory) = (&self.f.table, &self.memory);
        let (ours, theirs) = (
            f.stage(request, of(batch(rows))).await.unwrap(),
            memory.stage(request, of(batch(rows))).await.unwrap(),
        );
        assert_eq!(ours.profiles.len(), theirs.profiles.len());
        assert_eq!(ours.received, theirs.received);
        let spec = ProfileSpec::new();
        let digests = |profiles: Vec<reprocess_core::domain::profile::Profile>| {
            profiles.into_iter().map(|p| (p.partition, p.rows, p.content)).collect::<Vec<_>>()
        };
        let (shadow, model) = (f.staged().unwrap(), memory.staged().unwrap());
        assert_eq!(
            digests(shadow.profile_after(&ours, &spec).await.unwrap()),
            digests(model.profile_after(&theirs, &spec).await.unwrap())
        );
        let diff = DiffSpec::new(["id"]);
        assert_eq!(shadow.diff(&ours, &diff).await.unwrap(), model.diff(&theirs, &diff).await.unwrap());
        let (here, there) = (pin(f, Slice::All).await.unwrap(), pin(memory, Slice::All).await.unwrap());
        let ours_shown = shadow.read_overlaid(std::slice::from_ref(&ours), &here).await.unwrap().1;
        let theirs_shown = model.read_overlaid(std::slice::from_ref(&theirs), &there).await.unwrap().1;
        assert_eq!(texts(ours_shown).await.unwrap(), texts(theirs_shown).await.unwrap());
        let kept = commit_both(f, memory, &request.scope, apply(&ours), apply(&theirs)).await;
        self.last = Some((request.scope.clone(), kept.0, kept.1));
    }

    async fn restore(&mut self, scope: &Scope, file: Kept, memory: Kept, step: u64) {
        let entry = |kept| CommitEntry {
            scope: scope.clone(),
            change: Change::Restore(kept),
            stamp: stamp(&format!("back{step}"), scope, Op::Restore),
            attempt: 1,
            finish: finish(),
        };
        commit_both(&self.f.table, &self.memory, scope, entry(file), entry(memory)).await;
    }
}

async fn commit_both(
    file: &dyn PartitionWriter,
    memory: &dyn PartitionWriter,
    scope: &Scope,
    ours: CommitEntry,
    theirs: CommitEntry,
) -> (Kept, Kept) {
    let mut kept = Vec::new();
    for (table, entry) in [(file, ours), (memory, theirs)] {
        let base = table.head(scope).await.unwrap();
        let request = CommitRequest {
            entries: &[entry],
            base: &base,
            since: &base,
            fence: None,
            keep: true,
            ledger: None,
        };
        kept.push(committed(table.commit(request).await.unwrap()).kept.unwrap());
    }
    (kept.remove(0), kept.remove(0))
}

fn cell(column: &str, text: &str) -> Value {
    match (column, text) {
        (_, "NULL") => Value::Null,
        ("day", text) => Value::Date(date(text)),
        (_, text) => Value::from(text),
    }
}
