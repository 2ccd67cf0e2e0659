//! Staging: guarded and profiled, not visible.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use serde_json::{Value as Json, json};

use super::merge;
use super::rows::{self, Parts};
use super::state::{StagedSet, State};
use crate::domain::profile::{Profile, ScopeProfiler};
use crate::domain::request::SchemaPolicy;
use crate::domain::rows::{check_rows, partition_of_rows};
use crate::domain::schema;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::writer::{Intent, StageRequest, Staged, StagedId};

impl State {
    pub(super) fn stage(
        &mut self,
        request: &StageRequest,
        declared: &SchemaRef,
        batches: &[RecordBatch],
    ) -> Result<Staged> {
        let set =
            self.guarded(request, declared, batches).map_err(|e| e.with_context("table", &self.spec.id))?;
        let staged = set.staged.clone();
        self.staged.insert(request.id.clone(), set);
        Ok(staged)
    }

    fn guarded(
        &self,
        request: &StageRequest,
        declared: &SchemaRef,
        batches: &[RecordBatch],
    ) -> Result<StagedSet> {
        let (scope, partitioning) = (&request.scope, &self.spec.partitioning);
        let table = self.schema().ok_or_else(|| self.not_there())?;
        if request.schema == SchemaPolicy::Rebuild
            && !(scope.is_whole_table() && request.intent == Intent::Replace)
        {
            return Err(Error::invalid("only a replace of the whole table rebuilds it with other columns"));
        }
        let after = schema::resolve(table, declared, request.schema)?;
        let rows = one_batch(declared, batches)?;
        schema::check_nulls(&after, &rows)?;
        check_rows(partitioning, scope, &rows)?;
        if let Intent::Merge(by) = &request.intent {
            merge::check(by, &rows)?;
        }
        let mut profiler = ScopeProfiler::new(partitioning, scope, declared, &request.profile)?;
        profiler.push(&rows)?;
        let profiles = profiler.finish();
        let staged = Staged {
            id: request.id.clone(),
            scope: scope.clone(),
            intent: request.intent.clone(),
            visibility: request.visibility.clone(),
            schema_policy: request.schema,
            schema: declared.clone(),
            received: partition_of_rows(partitioning, &rows)?.into_iter().collect(),
            digest: digest(request, declared, &profiles)?,
            profiles,
            payload: Json::Null,
        };
        Ok(StagedSet { staged, rows })
    }

    pub(super) fn discard(&mut self, id: &StagedId) -> Result<()> {
        let this = |(stamp, attempt): &(_, _)| *stamp == id.stamp && *attempt == id.attempt;
        if self.commits.iter().any(|commit| commit.attempts.iter().any(this)) {
            return Err(Error::new(ErrorKind::State, "what is committed cannot be discarded")
                .with_context("table", &self.spec.id)
                .with_context("staged set", id));
        }
        self.staged.remove(id);
        Ok(())
    }

    /// The staged set as it was when the caller got to know it.
    pub(super) fn find_staged(&self, staged: &Staged) -> Result<&StagedSet> {
        let refuse = |e: Error| e.with_context("table", &self.spec.id).with_context("staged set", &staged.id);
        let Some(set) = self.staged.get(&staged.id) else {
            return Err(refuse(Error::not_found("the staged set is not there any more")));
        };
        if set.staged.digest != staged.digest {
            return Err(refuse(Error::new(ErrorKind::State, "other rows were staged under this id since")));
        }
        Ok(set)
    }
}

/// All rows in one batch, with the columns of their stream.
fn one_batch(declared: &SchemaRef, batches: &[RecordBatch]) -> Result<RecordBatch> {
    let mut fitting = Vec::with_capacity(batches.len());
    for batch in batches {
        schema::resolve(declared, &batch.schema(), SchemaPolicy::Refuse)?;
        schema::check_nulls(declared, batch)?;
        fitting.push(schema::conform(batch, declared)?);
    }
    concat_batches(declared, &fitting)
        .map_err(|e| Error::invalid("the rows do not fit together").with_source(e))
}

/// Digest of what would be committed, whatever attempt staged it.
fn digest(request: &StageRequest, declared: &SchemaRef, profiles: &[Profile]) -> Result<String> {
    let contents: Vec<_> = profiles.iter().map(|profile| &profile.content).collect();
    let what = json!({
        "stamp": request.id.stamp,
        "scope": request.scope,
        "intent": request.intent,
        "schema_policy": request.schema,
        "schema": declared,
        "contents": contents,
    });
    let bytes = serde_json::to_vec(&what)
        .map_err(|e| Error::internal("a staged set does not serialise").with_source(e))?;
    Ok(blake3::hash(&bytes).to_hex()[..16].to_owned())
}

/// What the partitions of a staged set's scope hold once it is committed onto `before`.
pub(super) fn apply(state: &State, set: &StagedSet, schema: &SchemaRef, before: Parts) -> Result<Parts> {
    let partitioning = &state.spec.partitioning;
    let incoming = schema::conform(&set.rows, schema)?;
    match &set.staged.intent {
        Intent::Replace => rows::split(partitioning, &incoming),
        Intent::ReplaceDynamic => {
            let mut after = before;
            after.extend(rows::split(partitioning, &incoming)?);
            Ok(after)
        }
        Intent::Merge(by) => {
            let merged = merge::merge(&rows::flatten(before), &incoming, by)?;
            let parts = merged.iter().map(|batch| rows::split(partitioning, batch));
            Ok(parts.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect::<BTreeMap<_, _>>())
        }
    }
}
