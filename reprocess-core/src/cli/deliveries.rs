//! Commands about deliveries.

use std::collections::BTreeSet;

use serde::Serialize;

use super::args::DeliveriesCommand;
use super::console::Invocation;
use super::exit::Exit;
use crate::domain::ids::BackfillId;
use crate::engine::Dispatched;
use crate::error::{Error, Result};
use crate::ports::delivery::{DeliveryDecision, DeliveryRecord, DeliveryState};
use crate::ports::ledger::DeliveryFilter;
use crate::render;

#[derive(Serialize)]
struct Listed<'a> {
    deliveries: &'a [DeliveryRecord],
}

#[derive(Serialize)]
struct Changed {
    changed: u64,
}

pub(super) async fn run(s: &mut Invocation<'_>, command: DeliveriesCommand) -> Result<Exit> {
    match command {
        DeliveriesCommand::List { backfill, state } => {
            let (backfill, state) = (backfill.map(BackfillId::new), state.map(Into::into));
            list(s, DeliveryFilter { backfill, run: None, state }).await
        }
        DeliveriesCommand::Release { backfill, key } => release(s, backfill.map(BackfillId::new), key).await,
        DeliveriesCommand::Send => send(s).await,
        DeliveriesCommand::Decide { keys, decision } => decide(s, keys, decision.into()).await,
    }
}

async fn list(s: &mut Invocation<'_>, filter: DeliveryFilter) -> Result<Exit> {
    let deliveries = s.engine.ledger().deliveries(&filter).await?;
    s.show(&Listed { deliveries: &deliveries }, |lines| render::deliveries(&deliveries, lines))?;
    Ok(Exit::Done)
}

async fn release(s: &mut Invocation<'_>, backfill: Option<BackfillId>, keys: Vec<String>) -> Result<Exit> {
    if let Some(id) = &backfill {
        s.engine.backfill(id).await?;
    }
    let filter = DeliveryFilter { backfill, ..DeliveryFilter::default() };
    let known = s.engine.ledger().deliveries(&filter).await?;
    let keys = match keys.is_empty() {
        true => {
            let held_back = known.iter().filter(|record| record.state == DeliveryState::Suppressed);
            let keys: BTreeSet<_> = held_back.map(|record| record.delivery.key.clone()).collect();
            keys.into_iter().collect()
        }
        false => named(&known, keys, "nothing was released")?,
    };
    let changed = s.engine.release_deliveries(&keys, &s.by).await?;
    s.show(&Changed { changed }, |_| format!("Released: {changed}\n"))?;
    Ok(Exit::Done)
}

async fn send(s: &mut Invocation<'_>) -> Result<Exit> {
    let done = s.engine.dispatch(&s.worker).await?;
    s.show(&done, |_| {
        let Dispatched { sent, again, unknown, dead } = done;
        format!("Sent: {sent}, to be tried again: {again}, unknown: {unknown}, given up: {dead}\n")
    })?;
    if done.unknown + done.dead > 0 {
        s.hint("next: deliveries list --state unknown (or dead), then deliveries decide KEY --as …")?;
    }
    Ok(match done {
        _ if done.unknown + done.dead > 0 => Exit::Waiting,
        _ if done.again > 0 => Exit::Temporary,
        _ => Exit::Done,
    })
}

async fn decide(s: &mut Invocation<'_>, keys: Vec<String>, decision: DeliveryDecision) -> Result<Exit> {
    let known = s.engine.ledger().deliveries(&DeliveryFilter::default()).await?;
    let keys = named(&known, keys, "nothing was decided")?;
    let changed = s.engine.decide_deliveries(&keys, decision, &s.by).await?;
    s.show(&Changed { changed }, |_| format!("Decided: {changed}\n"))?;
    Ok(Exit::Done)
}

/// The keys, if all of them are known: what was sent cannot be called back, so that one wrong name does nothing.
fn named(known: &[DeliveryRecord], keys: Vec<String>, otherwise: &str) -> Result<Vec<String>> {
    let known: BTreeSet<_> = known.iter().map(|record| record.delivery.key.as_str()).collect();
    match keys.iter().find(|key| !known.contains(key.as_str())) {
        None => Ok(keys),
        Some(key) => Err(Error::not_found(format!("no delivery has the key `{key}`"))
            .with_advice(format!("{otherwise}; see the keys with: deliveries list"))),
    }
}
