//! The pins of a plan, and what a task reads when it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::fingerprint::{Definition, Fingerprint, Work};
use crate::domain::ids::{PartitionVersion, TableId};
use crate::domain::plan::{Action, FollowedInput, Plan, PlannedInput, Task, TaskId};
use crate::domain::slice::{Pin, Slice};
use crate::engine::Engine;
use crate::engine::record::Attempt;
use crate::error::{Error, Result};
use crate::ports::ledger::TaskResult;
use crate::ports::reader::{PinnedInput, SnapshotReader};
use crate::ports::writer::Staged;

/// What a task reads, with the versions it is recorded with.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    pub(super) inputs: BTreeMap<String, PinnedInput>,
    /// What is recorded: where staged sets are read, the content names them too.
    pub(super) pins: BTreeMap<String, Pin>,
    pub(super) fingerprint: Fingerprint,
    /// Position of the ledger when the first of the inputs was pinned.
    pub(super) pinned_at: u64,
}

/// When a task's inputs are fixed.
pub(super) enum Pinning<'a> {
    /// As the plan says; what its own tasks produce is read from production, where they have committed it.
    Committed,
    /// As the plan says; what its own tasks produce is read from what they have staged, and from production where they
    /// have nothing staged: it was published before, or found unchanged.
    Staged(&'a BTreeMap<TaskId, TaskResult>),
    /// All anew, since production moved after the plan was made; with what tasks have staged, where there is some.
    Anew(&'a BTreeMap<TaskId, TaskResult>),
}

impl Engine {
    /// The pins that are fixed at planning, by table.
    pub(super) fn pins_by_table(&self, plan: &Plan) -> BTreeMap<TableId, Vec<Pin>> {
        let mut pins = BTreeMap::<_, Vec<_>>::new();
        for task in &plan.tasks {
            let Action::Compute { inputs, .. } = &task.action else { continue };
            for input in inputs.values().filter(|input| input.produced_by.is_empty()) {
                pins.entry(input.pin.table.clone()).or_default().push(input.pin.as_ref().clone());
            }
        }
        for list in pins.values_mut() {
            list.sort();
            list.dedup();
        }
        pins
    }

    /// Resolves the inputs of a task that computes.
    pub(super) async fn resolve(&self, at: &Attempt<'_>, pinning: Pinning<'_>) -> Result<Resolved> {
        let task = at.task;
        let (inputs, fingerprint) = match &task.action {
            Action::Compute { inputs, fingerprint } => (inputs, fingerprint),
            Action::Propagate { inputs } => return self.resolve_now(task, inputs).await,
            Action::Trigger | Action::Restore { .. } => {
                return Err(Error::internal("a task that computes nothing reads no inputs"));
            }
        };
        let mut pinned_at = at.pinned_by_plan();
        // One input that is read as the plan pinned it is enough to have seen nothing later.
        if !inputs.is_empty() && inputs.values().all(|i| self.repins(i, &pinning)) {
            pinned_at = self.ledger.position().await?;
        }
        let mut resolved = BTreeMap::new();
        let mut pins = BTreeMap::new();
        for (name, input) in inputs {
            let pinned = self.pinned(input, &pinning).await.map_err(|e| e.with_context("input", name))?;
            let mut pin = pinned.pin.clone();
            if !pinned.staged.is_empty() {
                pin.content = overlaid_version(&pin.content, &pinned.staged);
            }
            pins.insert(name.clone(), pin);
            resolved.insert(name.clone(), pinned);
        }
        let versions = pins.iter().map(|(name, pin)| (name.clone(), pin.content.clone())).collect();
        let fingerprint = match fingerprint {
            Some(known) if !matches!(pinning, Pinning::Anew(_)) => known.clone(),
            _ => self.fingerprint(task, &versions)?,
        };
        Ok(Resolved { inputs: resolved, pins, fingerprint, pinned_at })
    }

    /// Pins what a downstream task reads as it is now.
    async fn resolve_now(&self, task: &Task, inputs: &BTreeMap<String, FollowedInput>) -> Result<Resolved> {
        let pinned_at = self.ledger.position().await?;
        let (mut resolved, mut pins) = (BTreeMap::new(), BTreeMap::new());
        for (name, input) in inputs {
            let reader = Arc::clone(self.host.reader(&input.table)?);
            let pin = pin_now(reader.as_ref(), &input.table, &input.slice).await;
            let pin = pin.map_err(|e| e.with_context("input", name))?;
            pins.insert(name.clone(), pin.clone());
            resolved.insert(name.clone(), PinnedInput { pin, reader, staged: Vec::new(), writer: None });
        }
        let versions = pins.iter().map(|(name, pin)| (name.clone(), pin.content.clone())).collect();
        let fingerprint = self.fingerprint(task, &versions)?;
        Ok(Resolved { inputs: resolved, pins, fingerprint, pinned_at })
    }

    fn repins(&self, input: &PlannedInput, pinning: &Pinning<'_>) -> bool {
        match pinning {
            Pinning::Committed => !input.produced_by.is_empty(),
            Pinning::Staged(results) => {
                let staged = |id: &TaskId| results.get(id).is_some_and(|result| result.staged.is_some());
                !input.produced_by.iter().all(staged)
            }
            Pinning::Anew(_) => true,
        }
    }

    async fn pinned(&self, input: &PlannedInput, pinning: &Pinning<'_>) -> Result<PinnedInput> {
        let reader = Arc::clone(self.host.reader(&input.pin.table)?);
        let planned = input.pin.as_ref();
        let pin = match self.repins(input, pinning) {
            true => pin_now(reader.as_ref(), &planned.table, &planned.slice).await?,
            false => planned.clone(),
        };
        let (Pinning::Staged(results) | Pinning::Anew(results)) = pinning else {
            return Ok(PinnedInput { pin, reader, staged: Vec::new(), writer: None });
        };
        let staged: Vec<Staged> =
            input.produced_by.iter().filter_map(|id| results.get(id)?.staged.clone()).collect();
        if staged.is_empty() {
            return Ok(PinnedInput { pin, reader, staged, writer: None });
        }
        let writer = Arc::clone(self.host.writer(&pin.table)?);
        Ok(PinnedInput { pin, reader, staged, writer: Some(writer) })
    }

    fn fingerprint(&self, task: &Task, inputs: &BTreeMap<String, PartitionVersion>) -> Result<Fingerprint> {
        let catalog = self.host.catalog();
        let job = catalog.job(&task.job)?;
        let sql = self.host.transform(&task.job, &task.logic)?.sql();
        Fingerprint::of(&Work {
            job: Definition::of(job, catalog.unit(job)?),
            logic: &task.logic,
            sql,
            units: &task.units,
            parameters: &task.parameters,
            inputs,
        })
    }
}

/// A pin of what is there now.
async fn pin_now(reader: &dyn SnapshotReader, table: &TableId, slice: &Slice) -> Result<Pin> {
    let version = reader.current().await?;
    let contents = reader.slice_versions(&version, std::slice::from_ref(slice)).await?;
    let content = contents.into_iter().next();
    let content = content.ok_or_else(|| Error::internal("a reader answered no version"))?;
    Ok(Pin { table: table.clone(), version, slice: slice.clone(), content })
}

/// What the version of a slice begins with that was read while a part of it was staged.
const STAGED: &str = "shadow:";

/// Whether a slice was read while a part of it was staged: no reader ever answers such a version.
pub(super) fn was_staged(content: &PartitionVersion) -> bool {
    content.as_str().starts_with(STAGED)
}

/// The version of production with staged sets in place.
fn overlaid_version(production: &PartitionVersion, staged: &[Staged]) -> PartitionVersion {
    let mut hasher = blake3::Hasher::new();
    hasher.update(production.as_str().as_bytes());
    for set in staged {
        hasher.update(b"\n");
        hasher.update(set.digest.as_bytes());
    }
    PartitionVersion::new(format!("{STAGED}{}", &hasher.finalize().to_hex()[..32]))
}
