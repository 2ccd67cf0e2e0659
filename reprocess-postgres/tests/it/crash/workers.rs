//! Four workers on one ledger, killed at any time: the table is that of a clean run, and never more tasks were claimed at a
//! time than the backfill allows.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Connection, Executor, PgConnection};

use super::shop;
use super::worker::Worker;
use crate::server::TestDatabase;

const DAYS: u64 = 730;
const CAP: u32 = 5;
const WORKERS: usize = 4;
const KILLS: u64 = 12;

/// Notes each change of a task, with the time of the server.
const AUDIT: &str = "
    CREATE TABLE public.audit (at timestamptz, no bigint, attempt bigint, state text, expires_at timestamptz);
    CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $body$
    BEGIN
        INSERT INTO public.audit VALUES (clock_timestamp(), NEW.no, NEW.attempt, NEW.state, NEW.expires_at);
        RETURN NULL;
    END $body$;
    CREATE TRIGGER audit AFTER UPDATE ON reprocess.task FOR EACH ROW EXECUTE FUNCTION public.audit();";

type Change = (DateTime<Utc>, i64, i64, String, Option<DateTime<Utc>>);

/// From each claim to the end of its task, or to when it ran out.
fn claims(audit: &[Change]) -> Vec<(DateTime<Utc>, DateTime<Utc>)> {
    let mut claims = BTreeMap::<(i64, i64), (DateTime<Utc>, DateTime<Utc>)>::new();
    for (at, task, attempt, state, expires_at) in audit {
        match (claims.get_mut(&(*task, *attempt)), expires_at) {
            (None, Some(expires)) => drop(claims.insert((*task, *attempt), (*at, *expires))),
            (Some(claim), Some(expires)) if state == "claimed" => claim.1 = *expires,
            (Some(claim), _) => claim.1 = claim.1.min(*at),
            // It waited for one before it.
            (None, None) => {}
        }
    }
    claims.into_values().collect()
}

fn most_at_a_time(claims: &[(DateTime<Utc>, DateTime<Utc>)]) -> i32 {
    let mut changes: Vec<_> = claims.iter().flat_map(|(from, until)| [(*from, 1), (*until, -1)]).collect();
    changes.sort();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    most
}

async fn audit(address: &str) -> Vec<Change> {
    let mut raw = PgConnection::connect(address).await.unwrap();
    let sql = "SELECT at, no, attempt, state, expires_at FROM public.audit ORDER BY at";
    let rows = sqlx::query_as(sql).fetch_all(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_workers_that_are_killed_leave_what_a_clean_run_leaves() {
    let database = TestDatabase::fresh().await;
    let address = database.address();
    shop::create(address, DAYS).await;
    shop::start_with(address, DAYS, CAP).await;
    let mut raw = PgConnection::connect(address).await.unwrap();
    raw.execute(AUDIT).await.unwrap();
    raw.close().await.unwrap();
    let mut workers: Vec<_> = (0..WORKERS).map(|_| Worker::spawn_for_all(address)).collect();
    let mut chance = 0x2026_1130_u64;
    let mut kills = 0;
    while kills < KILLS {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_millis(200 + (chance >> 33) % 600)).await;
        let which = usize::try_from((chance >> 40) % 4).unwrap();
        assert!(!workers[which].has_ended(), "the work is done after {kills} kills: give it more days");
        std::mem::replace(&mut workers[which], Worker::spawn_for_all(address)).kill();
        kills += 1;
    }
    for worker in workers {
        assert!(worker.wait().await);
    }
    assert_eq!(shop::contents(address).await, shop::expected(DAYS));
    let days = i64::try_from(DAYS).unwrap();
    assert_eq!(shop::counts(address).await, [days; 5]);
    let claims = claims(&audit(address).await);
    let most = usize::try_from(DAYS + KILLS * u64::from(shop::SLOTS)).unwrap();
    assert!(claims.len() <= most, "{} claims of {DAYS} tasks with {KILLS} kills", claims.len());
    let at_a_time = most_at_a_time(&claims);
    assert!(at_a_time <= i32::try_from(CAP).unwrap(), "{at_a_time} at a time");
    println!("{KILLS} kills, {} claims of {DAYS} tasks, {at_a_time} at a time", claims.len());
}
