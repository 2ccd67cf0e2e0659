//! How a history ends: without faults, everything that was left can be brought to an end, and nothing blocks what
//! comes after.

use std::collections::BTreeMap;

use super::actors;
use super::drive::Sim;
use super::gate::Written;
use super::history::{Act, DAYS, Step, Wish};
use super::model::Law;
use super::rows::{self, Row};
use super::shop::{JOBS, computed};
use crate::domain::ids::TableId;
use crate::domain::request::{WhenLeased, WhenMoved};

/// Brings everything to an end and looks at what is left.
pub(super) async fn end(sim: &mut Sim, steps: &[Step], started: &[Option<usize>]) -> Law {
    sim.world.lock().trace.push("the end begins".to_owned());
    tidy(sim).await?;
    // A scheduler starts again what did not end well.
    for (step, actor) in steps.iter().zip(started) {
        let Some(actor) = actor else { continue };
        let well = matches!(sim.results[*actor], Some(Ok(_)));
        if let (Act::Schedule { run, job, day, force, keep, .. }, false) = (&step.act, well) {
            // Whoever died holds a lease that runs out.
            let (run, day, force, keep, leased) = (*run, *day, *force, *keep, WhenLeased::Wait);
            must(sim, &Act::Schedule { run, job, day, force, keep, leased }).await?;
        }
    }
    for (n, day) in (1..=DAYS).enumerate() {
        for (m, job) in JOBS.into_iter().enumerate() {
            let run = 1000 + u32::try_from(10 * n + m).unwrap_or(0);
            let leased = WhenLeased::Wait;
            must(sim, &Act::Schedule { run, job, day, force: false, keep: false, leased }).await?;
        }
    }
    clean(sim, "v1")?;
    let wish = Wish {
        id: 1000,
        jobs: vec![("revenue", "v2"), ("balance", "v2"), ("customers", "v2")],
        days: (1, DAYS),
        shadow: false,
        moved: WhenMoved::Stop,
        leased: WhenLeased::Wait,
        keep: true,
        force: false,
        deliver: false,
        concurrency: 2,
        per_commit: 1,
        oldest_first: false,
        replays: None,
    };
    let done = must(sim, &Act::Backfill(Box::new(wish))).await?;
    if done != "published" {
        return Err(format!("the last backfill is {done}"));
    }
    clean(sim, "v2")?;
    sim.audit(Written::ALL, true).await
}

async fn tidy(sim: &mut Sim) -> Law {
    let all = sim.shop.ledger.backfills(&[]).await.map_err(|e| e.to_string())?;
    for record in all {
        let id = record.plan.request.id.clone();
        let name = id.clone();
        let life = move |engine, port: super::gate::Port| {
            Some(Box::pin(actors::tidy(engine, port, name)) as actors::Life)
        };
        let done = sim.alone("Tidy", life).await?;
        done.map_err(|e| format!("the backfill {id} is stuck in {}: {e:?}", record.state))?;
    }
    Ok(())
}

async fn must(sim: &mut Sim, act: &Act) -> Law<String> {
    let again = act.clone();
    let done = sim.alone("End", move |engine, port| actors::life(&again, engine, &port)).await?;
    done.map_err(|e| format!("at the end, {act:?} fails: {e:?}"))
}

/// After every partition ran, revenue and balance are what the logic makes of the orders that are there.
fn clean(sim: &Sim, logic: &str) -> Law {
    let state = sim.world.lock();
    let content = |table: &str| state.model.content(&TableId::from(table));
    let orders = content("orders");
    let mut yesterday = Vec::<Row>::new();
    for day in 1..=DAYS {
        let of = |name: &str, rows: Vec<Row>| (name.to_owned(), rows);
        let inputs = BTreeMap::from([of("orders", rows::under(&orders, &rows::key(day)))]);
        let days = [rows::date(day)];
        let revenue = computed("revenue", logic, &days, &inputs);
        let inputs = BTreeMap::from([of("revenue", revenue.clone()), of("yesterday", yesterday)]);
        let balance = computed("balance", logic, &days, &inputs);
        for (table, expected) in [("revenue", &revenue), ("balance", &balance)] {
            let actual = rows::under(&content(table), &rows::key(day));
            if actual != *expected {
                return Err(format!(
                    "after everything ran with {logic}, {table} of day {day} is {actual:?}, not {expected:?}"
                ));
            }
        }
        yesterday = balance;
    }
    Ok(())
}
