//! The scheduler: starts what the history says, lets one actor make one call at a time, audits, and sees to the end.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use chrono::TimeDelta;

use super::actors::{self, Life};
use super::audit::Auditor;
use super::gate::{Port, Seat, World, Written};
use super::history::{Act, Fault, Step};
use super::model::Law;
use super::rows;
use super::shop::{self, Shop};
use crate::domain::ids::TableId;
use crate::domain::scope::Scope;
use crate::error::{Error, ErrorKind, Result};

/// More polls than any history needs.
const POLLS: u64 = 200_000;

pub(super) struct Sim {
    pub(super) world: Arc<World>,
    pub(super) shop: Shop,
    pub(super) auditor: Auditor,
    lives: Vec<Option<Life>>,
    pub(super) results: Vec<Option<Result<String>>>,
    /// Actors whose last poll led nowhere, and nothing has happened since.
    idle: BTreeSet<usize>,
}

impl Sim {
    pub(super) fn new(world: Arc<World>, shop: Shop) -> Self {
        Self {
            world,
            shop,
            auditor: Auditor::default(),
            lives: Vec::new(),
            results: Vec::new(),
            idle: BTreeSet::new(),
        }
    }

    /// Runs steps until every actor has ended or died; answers the actor of each step that has one.
    pub(super) async fn run(&mut self, steps: &[Step]) -> Law<Vec<Option<usize>>> {
        let mut started = Vec::new();
        loop {
            self.check()?;
            let free = self.free();
            let may_start = started.len() < steps.len() && free.len() < 5;
            if may_start && (free.is_empty() || self.world.lock().dice.chance(7)) {
                let actor = self.start(&steps[started.len()]).await?;
                started.push(actor);
                continue;
            }
            if free.is_empty() {
                if self.unpause() {
                    continue;
                }
                return Ok(started);
            }
            let awake: Vec<usize> = free.into_iter().filter(|actor| !self.idle.contains(actor)).collect();
            if awake.is_empty() {
                self.wait()?;
                continue;
            }
            let actor = self.world.lock().dice.pick(&awake, 0);
            self.step(actor).await?;
        }
    }

    fn check(&self) -> Law {
        match &self.world.lock().broken {
            Some(law) => Err(law.clone()),
            None => Ok(()),
        }
    }

    /// The actors that live and do not stand still.
    fn free(&self) -> Vec<usize> {
        let state = self.world.lock();
        let paused =
            |actor: usize| state.actors.get(actor).is_some_and(|seat| seat.paused_until > state.steps);
        let live = self.lives.iter().enumerate().filter(|(_, life)| life.is_some());
        live.map(|(actor, _)| actor).filter(|actor| !paused(*actor)).collect()
    }

    /// Ends the pauses where nobody else is left; answers whether there were any.
    fn unpause(&mut self) -> bool {
        let live = self.lives.iter().any(Option::is_some);
        let mut state = self.world.lock();
        let now = state.steps;
        state.actors.iter_mut().for_each(|seat| seat.paused_until = seat.paused_until.min(now));
        live
    }

    /// All wait for the clock.
    fn wait(&mut self) -> Law {
        self.idle.clear();
        let mut state = self.world.lock();
        let until = state.next_deadline().ok_or("every actor waits, and none for the clock")?;
        state.now = state.now.max(until);
        state.steps += 1;
        match state.steps > POLLS {
            true => Err("the history does not end".to_owned()),
            false => Ok(()),
        }
    }

    async fn step(&mut self, actor: usize) -> Law {
        {
            let mut state = self.world.lock();
            state.steps += 1;
            let ms = i64::from(state.dice.below(30));
            state.advance(TimeDelta::milliseconds(ms));
            state.progress = false;
            if state.steps > POLLS {
                return Err("the history does not end".to_owned());
            }
        }
        let ended = self.poll(actor).await;
        let (dead, progress, written) = {
            let mut state = self.world.lock();
            state.permit = None;
            let dead = state.actors.get(actor).is_some_and(|seat| seat.dead);
            (dead, state.progress || ended.is_some(), std::mem::take(&mut state.written))
        };
        match progress {
            true => self.idle.clear(),
            false => drop(self.idle.insert(actor)),
        }
        if dead || ended.is_some() {
            self.lives[actor] = None;
        }
        if let Some(result) = ended {
            self.end(actor, result);
        }
        self.audit(written, false).await
    }

    pub(super) async fn audit(&mut self, written: Written, at_rest: bool) -> Law {
        self.check()?;
        self.auditor.audit(&self.shop, &self.world, written, at_rest).await
    }

    fn end(&mut self, actor: usize, result: Result<String>) {
        let mut state = self.world.lock();
        let name = state.actors.get(actor).map_or_else(String::new, |seat| seat.name.clone());
        match &result {
            Ok(text) => state.trace.push(format!("{name} ended: {text}")),
            Err(error) => {
                state.trace.push(format!("{name} failed: {error:?}"));
                if matches!(error.kind(), ErrorKind::Internal | ErrorKind::Corrupt) {
                    state.breaks(format!("{name} ended with a defect: {error:?}"));
                }
            }
        }
        drop(state);
        self.results[actor] = Some(result);
    }

    /// Lets the actor make at most one call.
    async fn poll(&mut self, actor: usize) -> Option<Result<String>> {
        let refusals = self.world.lock().dice.below(3);
        for refusals in [refusals, 0] {
            let parked = {
                let mut state = self.world.lock();
                (state.permit, state.refusals) = (Some(actor), refusals);
                std::mem::take(&mut state.parked)
            };
            parked.into_iter().for_each(std::task::Waker::wake);
            let life = self.lives[actor].as_mut()?;
            let ended = poll_fn(|cx| match life.as_mut().poll(cx) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => Poll::Ready(None),
            })
            .await;
            let state = self.world.lock();
            let dead = state.actors.get(actor).is_some_and(|seat| seat.dead);
            if ended.is_some() || dead || state.permit.is_none() {
                return ended;
            }
        }
        None
    }

    /// Starts a step, or does it at once where it is none of ours.
    async fn start(&mut self, step: &Step) -> Law<Option<usize>> {
        self.world.lock().trace.push(format!("start {:?}", step.act));
        match &step.act {
            Act::Orders { day, rows } => self.outside("orders", *day, rows).await?,
            Act::Outside { table, day, rows } => self.outside(table, *day, rows).await?,
            Act::Jump { ms } => {
                self.world.lock().advance(TimeDelta::milliseconds(*ms));
                self.idle.clear();
            }
            Act::Release { keys } => {
                self.auditor.by_name.extend(keys.iter().cloned());
                return self.spawn_act(step).map(Some);
            }
            _ => return self.spawn_act(step).map(Some),
        }
        self.audit(Written::ALL, false).await.map(|()| None)
    }

    fn spawn_act(&mut self, step: &Step) -> Law<usize> {
        let act = step.act.clone();
        let life = move |engine, port| actors::life(&act, engine, &port);
        self.spawn(&format!("{:?}", step.act), step.faults.clone(), life)
    }

    /// Starts an actor with an engine of its own.
    pub(super) fn spawn(
        &mut self,
        what: &str,
        faults: Vec<Fault>,
        life: impl FnOnce(crate::engine::Engine, Port) -> Option<Life>,
    ) -> Law<usize> {
        let actor = self.lives.len();
        let short = what.split([' ', '(', '{']).next().unwrap_or_default();
        let seat = Seat { name: format!("{short}#{actor}"), faults, ..Seat::default() };
        self.world.lock().actors.push(seat);
        let port = Port { world: Arc::clone(&self.world), actor };
        let engine = self.shop.engine(&port).map_err(|e| e.to_string())?;
        self.lives.push(life(engine, port));
        self.results.push(None);
        self.idle.clear();
        Ok(actor)
    }

    /// Runs one actor to its end, alone and without faults.
    pub(super) async fn alone(
        &mut self,
        what: &str,
        life: impl FnOnce(crate::engine::Engine, Port) -> Option<Life>,
    ) -> Law<Result<String>> {
        let actor = self.spawn(what, Vec::new(), life)?;
        self.run(&[]).await?;
        let died = || Err(Error::internal("an actor without faults died"));
        Ok(self.results[actor].take().unwrap_or_else(died))
    }

    /// A writer that is not ours replaces the rows of a day.
    async fn outside(&mut self, table: &str, day: u32, rows: &[rows::Row]) -> Law {
        let key = rows::key(day);
        let columns = shop::columns(table);
        let exists = match self.shop.outputs.get(table) {
            Some(output) => output.writer.schema().await.map_err(|e| e.to_string())?.is_some(),
            None => true,
        };
        if !exists {
            return Ok(());
        }
        let mut rows = rows.to_vec();
        for row in &mut rows {
            row.id = if columns.contains(&"id") { row.id } else { 0 };
            row.country = if columns.contains(&"country") { row.country.clone() } else { String::new() };
        }
        let write = async {
            let batch = rows::batch(columns, &rows)?;
            self.shop.backend.replace_outside(&shop::spec(table), &Scope::key(key.clone())?, &batch).await
        };
        write.await.map_err(|e| format!("the writer outside failed: {e}"))?;
        self.world.lock().model.outside(&TableId::from(table), &key, &rows);
        Ok(())
    }
}
