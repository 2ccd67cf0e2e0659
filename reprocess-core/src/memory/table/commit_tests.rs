use super::*;
use crate::domain::ids::TableId;
use crate::memory::MemoryLedger;
use crate::ports::ledger::{BackfillState, RunLedger, TaskFinish};
use crate::ports::writer::{Found, Moved, MovedBy};

async fn moved(table: &MemoryTable, key: &PartitionKey) -> CommitOutcome {
    let now = table.head(&scope(key)).await.unwrap().partitions[key].clone();
    CommitOutcome::Conflicted { moved: vec![Moved { partition: key.clone(), by: MovedBy::Content, now }] }
}

#[tokio::test]
async fn an_empty_replacement_empties_the_partition_and_nothing_else() {
    let table =
        table_with(&[(MON, Some("FR"), 1, 10), (MON, Some("DE"), 2, 20), (TUE, Some("FR"), 3, 30)]).await;
    committed(&table, &replace(&table, "r1", &scope(&day(MON)), &[]).await).await;
    assert_eq!(all(&table).await, ["2026-10-06/FR/3/30"]);
}

#[tokio::test]
async fn a_day_covers_every_country_so_one_that_is_no_longer_produced_disappears() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (MON, Some("DE"), 2, 20)]).await;
    let commit =
        committed(&table, &replace(&table, "r1", &scope(&day(MON)), &[(MON, Some("FR"), 1, 11)]).await).await;
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/11"]);
    assert_eq!((commit.version.as_str(), commit.recorded), ("3", false), "created, filled, committed");
    assert_eq!(version(&commit.partitions, &day(MON)), "3");
}

#[tokio::test]
async fn null_the_empty_text_and_odd_texts_are_partitions_of_their_own() {
    let countries = [None, Some(""), Some("a/b"), Some("FR")];
    let rows: Vec<Row> = countries.iter().map(|country| (MON, *country, 1, 10)).collect();
    for country in countries {
        let table = table_with(&rows).await;
        let key = day(MON).and("country", country.map_or(Value::Null, Value::from));
        let entry = replace(&table, "r1", &scope(&key), &[(MON, country, 1, 99)]).await;
        committed(&table, &entry).await;
        let expected: Vec<Row> =
            rows.iter().map(|row| if row.1 == country { (MON, country, 1, 99) } else { *row }).collect();
        assert_eq!(all(&table).await, texts(&[batch(&expected)]), "{key}");
    }
}

#[tokio::test]
async fn rows_without_a_day_are_replaced_by_the_key_of_null() {
    let table = table_with(&[("", Some("FR"), 1, 10), (MON, Some("FR"), 2, 20)]).await;
    let entry = replace(&table, "r1", &scope(&PartitionKey::of("day", Value::Null)), &[]).await;
    committed(&table, &entry).await;
    assert_eq!(all(&table).await, ["2026-10-05/FR/2/20"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_commits_that_race_for_the_same_empty_partition_one_wins_and_the_others_learn_it() {
    let (table, scope) = (table().await, scope(&day(MON)));
    let base = table.head(&scope).await.unwrap();
    assert_eq!(version(&base, &day(MON)), "0");
    let racer = |number: i64| {
        let (table, scope, base) = (table.clone(), scope.clone(), base.clone());
        tokio::spawn(async move {
            let entry = replace(&table, &format!("r{number}"), &scope, &[(MON, Some("FR"), number, 1)]).await;
            (number, commit_on(&table, &entry, &base).await)
        })
    };
    let mut winners = Vec::new();
    for racer in (0..8).map(racer).collect::<Vec<_>>() {
        match racer.await.unwrap() {
            (number, CommitOutcome::Committed(_)) => winners.push(number),
            (_, outcome) => assert_eq!(outcome, moved(&table, &day(MON)).await),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(all(&table).await, [format!("2026-10-05/FR/{}/1", winners[0])]);
}

#[tokio::test]
async fn what_changes_nothing_moves_nothing() {
    let table = table_with(&[(MON, Some("FR"), 1, 10)]).await;
    let before = pin(&table, Slice::All).await;
    committed(&table, &replace(&table, "r1", &scope(&day(MON)), &[(MON, Some("FR"), 1, 10)]).await).await;
    let after = pin(&table, Slice::All).await;
    assert_eq!(before.content, after.content);
    assert_ne!(before.version, after.version);
}

#[tokio::test]
async fn a_writer_that_is_not_ours_moves_exactly_the_partitions_it_writes() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let (monday, tuesday) = (scope(&day(MON)), scope(&day(TUE)));
    let (base_mon, base_tue) = (table.head(&monday).await.unwrap(), table.head(&tuesday).await.unwrap());
    table.append_unmanaged(&batch(&[(MON, Some("DE"), 3, 30)])).unwrap();
    let entry = replace(&table, "r1", &monday, &[]).await;
    assert_eq!(commit_on(&table, &entry, &base_mon).await, moved(&table, &day(MON)).await);
    let entry = replace(&table, "r1", &tuesday, &[]).await;
    assert!(matches!(commit_on(&table, &entry, &base_tue).await, CommitOutcome::Committed(_)));
    assert_eq!(all(&table).await, ["2026-10-05/DE/3/30", "2026-10-05/FR/1/10"]);
}

#[tokio::test]
async fn the_same_stamp_again_answers_the_first_commit_and_writes_nothing() {
    let (table, scope) = (table().await, scope(&day(MON)));
    let base = table.head(&scope).await.unwrap();
    let entry = replace(&table, "r1", &scope, &[(MON, Some("FR"), 1, 10)]).await;
    let first = committed(&table, &entry).await;
    table.append_unmanaged(&batch(&[(TUE, Some("FR"), 2, 20)])).unwrap();
    let version = table.current().await.unwrap();

    let mut second = request("r1", &scope, Intent::Replace);
    second.id.attempt = 2;
    let second = apply(stage(&table, &second, &[(MON, Some("FR"), 1, 99)]).await.unwrap());
    for entry in [&entry, &second] {
        let outcome = commit_on(&table, entry, &base).await;
        assert_eq!(outcome, CommitOutcome::AlreadyCommitted(first.clone()), "attempt {}", entry.attempt);
    }
    assert_eq!(first.attempts, [(entry.stamp.clone(), 1)]);
    assert_eq!(table.current().await.unwrap(), version);
    assert_eq!(table.find_commit(&entry.stamp, &scope, &base).await.unwrap(), Found::Yes(first));
}

#[tokio::test]
async fn a_commit_is_looked_for_as_far_as_history_goes() {
    let (table, scope) = (table().await, scope(&day(MON)));
    let base = table.head(&scope).await.unwrap();
    let entry = replace(&table, "r1", &scope, &[(MON, Some("FR"), 1, 10)]).await;
    let find = async || table.find_commit(&entry.stamp, &scope, &base).await.unwrap();
    assert_eq!(find().await, Found::No);
    let commit = committed(&table, &entry).await;
    assert_eq!(find().await, Found::Yes(commit));
    table.append_unmanaged(&batch(&[(TUE, Some("FR"), 2, 20)])).unwrap();
    table.expire_before(&table.current().await.unwrap()).unwrap();
    assert_eq!(find().await, Found::HistoryExpired);
    let now = table.head(&scope).await.unwrap();
    assert_eq!(table.find_commit(&entry.stamp, &scope, &now).await.unwrap(), Found::No);
}

#[tokio::test]
async fn the_entries_of_a_commit_are_in_production_together_or_not_at_all() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (TUE, Some("FR"), 2, 20)]).await;
    let both = Scope::keys([day(MON), day(TUE)]).unwrap();
    let base = table.head(&both).await.unwrap();
    let entries = [
        replace(&table, "r1", &scope(&day(MON)), &[(MON, Some("FR"), 1, 11)]).await,
        replace(&table, "r1", &scope(&day(TUE)), &[]).await,
    ];
    table.append_unmanaged(&batch(&[(TUE, Some("DE"), 3, 30)])).unwrap();
    assert_eq!(table.commit(asking(&entries, &base)).await.unwrap(), moved(&table, &day(TUE)).await);
    assert_eq!(all(&table).await.len(), 3);
    let base = table.head(&both).await.unwrap();
    let CommitOutcome::Committed(commit) = table.commit(asking(&entries, &base)).await.unwrap() else {
        panic!()
    };
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/11"]);
    assert_eq!(commit.attempts.len(), 2);
    assert_eq!(commit.partitions.partitions.keys().cloned().collect::<Vec<_>>(), [day(MON), day(TUE)]);
    let again = table.commit(asking(&entries, &base)).await.unwrap();
    assert_eq!(again, CommitOutcome::AlreadyCommitted(commit));
}

#[tokio::test]
async fn entries_that_overlap_and_a_base_without_their_keys_are_refused() {
    let table = table().await;
    let monday = replace(&table, "r1", &scope(&day(MON)), &[]).await;
    let french = replace(&table, "r1", &scope(&day(MON).and("country", "FR")), &[]).await;
    let both = monday.scope.union(&french.scope);
    let base = table.head(&both).await.unwrap();
    let refused = async |entries: &[CommitEntry], base: &Base| {
        let error = table.commit(asking(entries, base)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.to_string()
    };
    assert!(refused(&[monday.clone(), french], &base).await.contains("same partition"));
    let other = table.head(&scope(&day(TUE))).await.unwrap();
    assert!(refused(std::slice::from_ref(&monday), &other).await.contains("partition day=2026-10-05"));
    refused(&[], &base).await;
}

#[tokio::test]
async fn a_restore_brings_back_what_was_replaced_for_the_partitions_asked_for() {
    let table = table_with(&[(MON, Some("FR"), 1, 10)]).await;
    let both = Scope::keys([day(MON), day(TUE)]).unwrap();
    let entry = replace(&table, "r1", &both, &[(MON, Some("DE"), 2, 20), (TUE, Some("FR"), 3, 30)]).await;
    let kept = committed(&table, &entry).await.kept.unwrap();
    let back = committed(&table, &restore("undo", &scope(&day(MON)), kept.clone())).await;
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/10", "2026-10-06/FR/3/30"]);
    committed(&table, &restore("undo", &scope(&day(TUE)), kept.clone())).await;
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/10"], "tuesday was empty");
    committed(&table, &restore("redo", &scope(&day(MON)), back.kept.unwrap())).await;
    assert_eq!(all(&table).await, ["2026-10-05/DE/2/20"], "a restore can be undone too");

    table.forget(&kept).await.unwrap();
    table.forget(&kept).await.unwrap();
    let base = table.head(&both).await.unwrap();
    let entry = restore("late", &both, kept);
    let error = table.commit(asking(std::slice::from_ref(&entry), &base)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::State);
}

#[tokio::test]
async fn rows_are_kept_only_where_that_was_asked_for() {
    let table = table().await;
    let entry = replace(&table, "r1", &scope(&day(MON)), &[]).await;
    let base = table.head(&entry.scope).await.unwrap();
    let asked = CommitRequest { keep: false, ..asking(std::slice::from_ref(&entry), &base) };
    let CommitOutcome::Committed(commit) = table.commit(asked).await.unwrap() else { panic!() };
    assert_eq!(commit.kept, None);
}

#[tokio::test]
async fn a_fence_that_passed_on_is_refused_after_what_is_committed_and_what_moved() {
    let (table, ledger, scope) = (table().await, MemoryLedger::new(), scope(&day(MON)));
    let (name, ttl) = (TableId::from(TABLE), std::time::Duration::from_secs(60));
    let take = async |holder: &str, now| {
        ledger.acquire(&name, &scope, &holder.into(), ttl, at(now)).await.unwrap().unwrap()
    };
    let old = take("a", 0).await;
    let new = take("b", 60).await;
    let base = table.head(&scope).await.unwrap();
    let entry = replace(&table, "r1", &scope, &[(MON, Some("FR"), 1, 10)]).await;
    let commit = async |entry: &CommitEntry, fence, base: &Base| {
        let asked = CommitRequest {
            fence: Some(fence),
            ledger: Some(&ledger),
            ..asking(std::slice::from_ref(entry), base)
        };
        table.commit(asked).await.unwrap()
    };
    assert_eq!(commit(&entry, &old, &base).await, CommitOutcome::Fenced);
    assert_eq!(all(&table).await, [""; 0]);
    let CommitOutcome::Committed(first) = commit(&entry, &new, &base).await else { panic!() };
    assert_eq!(commit(&entry, &old, &base).await, CommitOutcome::AlreadyCommitted(first));
    let other = replace(&table, "r2", &scope, &[]).await;
    assert_eq!(commit(&other, &old, &base).await, moved(&table, &day(MON)).await);
    let elsewhere = replace(&table, "r2", &Scope::key(day(TUE)).unwrap(), &[]).await;
    let base = table.head(&elsewhere.scope).await.unwrap();
    let asked = CommitRequest { fence: Some(&new), ..asking(std::slice::from_ref(&elsewhere), &base) };
    assert_eq!(table.commit(asked).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_zombie_cannot_commit_once_its_task_has_passed_to_another_attempt() {
    let (table, ledger, key) = (table().await, MemoryLedger::new(), day(MON));
    let plan = plan("fix", std::slice::from_ref(&key), &[]);
    let _ = ledger.submit(&plan, &me(), at(0)).await.unwrap();
    for (from, to) in
        [(BackfillState::Planned, BackfillState::Approved), (BackfillState::Approved, BackfillState::Running)]
    {
        let _ = ledger.transition(&"fix".into(), &change(from, to), at(0)).await.unwrap();
    }
    let can_run = [(JOB.into(), "v2".into())];
    let ttl = std::time::Duration::from_secs(60);
    let base = table.head(&scope(&key)).await.unwrap();
    let attempt = async |now: i64, amount: i64| {
        let claims = ledger.claim(&"fix".into(), &"w".into(), &can_run, 1, ttl, at(now)).await.unwrap();
        let mut staging = request("fix.1", &scope(&key), Intent::Replace);
        staging.id.attempt = claims[0].attempt;
        let mut entry = apply(stage(&table, &staging, &[(MON, Some("FR"), 1, amount)]).await.unwrap());
        let task = Some(("fix".into(), 1, claims[0].task));
        entry.finish = TaskFinish { task, ..finish(Vec::new()) };
        entry
    };
    let zombie = attempt(0, 1).await;
    let second = attempt(60, 2).await;
    let commit = async |entry: &CommitEntry| {
        let asked = CommitRequest { ledger: Some(&ledger), ..asking(std::slice::from_ref(entry), &base) };
        table.commit(asked).await.unwrap()
    };
    assert_eq!(commit(&zombie).await, CommitOutcome::Fenced);
    assert!(matches!(commit(&second).await, CommitOutcome::Committed(_)));
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/2"]);
    assert!(matches!(commit(&zombie).await, CommitOutcome::AlreadyCommitted(c) if c.attempts[0].1 == 2));
}
