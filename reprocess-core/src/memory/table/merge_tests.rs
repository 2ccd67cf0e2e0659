use super::*;

fn by_id(newer: Option<&str>) -> MergeKeys {
    MergeKeys { keys: vec!["id".into()], newer: newer.map(str::to_owned), delete_vanished: None }
}

async fn merge(table: &MemoryTable, run: &str, scope: &Scope, by: MergeKeys, rows: &[Row]) {
    let staged = stage(table, &request(run, scope, Intent::Merge(by)), rows).await.unwrap();
    committed(table, &apply(staged)).await;
}

/// Every order of the numbers below `n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for shorter in permutations(last) {
        for place in 0..n {
            let mut longer = shorter.clone();
            longer.insert(place, last);
            all.push(longer);
        }
    }
    all
}

#[tokio::test]
async fn with_a_newer_column_every_order_of_batches_gives_the_same_table() {
    // `amount` is the column by which a row is newer.
    let batches: [&[Row]; 5] = [
        &[(MON, Some("FR"), 1, 1), (MON, Some("FR"), 2, 5)],
        &[(MON, Some("DE"), 1, 3)],
        &[(TUE, Some("FR"), 1, 2), (TUE, Some("FR"), 3, 1)],
        &[(MON, Some("FR"), 2, 4), (MON, None, 4, 0)],
        &[(TUE, Some("DE"), 3, 9), (MON, Some("FR"), 4, 7)],
    ];
    let expected = ["2026-10-05/DE/1/3", "2026-10-05/FR/2/5", "2026-10-05/FR/4/7", "2026-10-06/DE/3/9"];
    let orders = permutations(5);
    assert_eq!(orders.len(), 120);
    for order in orders {
        let table = table().await;
        for number in &order {
            let run = format!("r{number}");
            merge(&table, &run, &Scope::whole_table(), by_id(Some("amount")), batches[*number]).await;
        }
        assert_eq!(all(&table).await, expected, "{order:?}");
    }
}

#[tokio::test]
async fn without_a_newer_column_the_last_merge_wins_and_ties_keep_what_is_there() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20)]).await;
    merge(&table, "r1", &scope(&day(MON)), by_id(None), &[(MON, Some("DE"), 1, 5)]).await;
    assert_eq!(all(&table).await, ["2026-10-05/DE/1/5", "2026-10-05/FR/2/20"]);
    merge(&table, "r2", &scope(&day(MON)), by_id(Some("amount")), &[(MON, Some("FR"), 1, 5)]).await;
    assert_eq!(all(&table).await, ["2026-10-05/DE/1/5", "2026-10-05/FR/2/20"]);
}

#[tokio::test]
async fn a_merge_acts_on_its_scope_and_does_not_move_partitions_whose_rows_stay() {
    let table =
        table_with(&[(MON, Some("FR"), 1, 10), (MON, Some("DE"), 2, 20), (TUE, Some("FR"), 1, 30)]).await;
    let rows = [(MON, Some("FR"), 1, 11), (MON, Some("DE"), 2, 20)];
    merge(&table, "r1", &scope(&day(MON)), by_id(None), &rows).await;
    assert_eq!(all(&table).await, ["2026-10-05/DE/2/20", "2026-10-05/FR/1/11", "2026-10-06/FR/1/30"]);
    let keys = [day(MON).and("country", "FR"), day(MON).and("country", "DE"), day(TUE)];
    let head = table.head(&Scope::keys(keys.clone()).unwrap()).await.unwrap();
    assert_eq!(keys.map(|key| version(&head, &key)), ["3", "2", "2"]);
}

#[tokio::test]
async fn rows_whose_key_vanished_are_deleted_where_their_owner_asks_for_it() {
    let rows = [
        (MON, Some("FR"), 1, 10),
        (MON, Some("FR"), 2, 20),
        (MON, Some("DE"), 3, 30),
        (TUE, Some("FR"), 4, 40),
    ];
    let table = table_with(&rows).await;
    let french = BTreeMap::from([("country".to_owned(), Value::from("FR"))]);
    let by = MergeKeys { delete_vanished: Some(french), ..by_id(None) };
    merge(&table, "r1", &scope(&day(MON)), by, &[(MON, Some("FR"), 2, 21)]).await;
    assert_eq!(all(&table).await, ["2026-10-05/DE/3/30", "2026-10-05/FR/2/21", "2026-10-06/FR/4/40"]);
}

#[tokio::test]
async fn a_merge_that_was_staged_before_another_is_computed_on_what_is_there_at_its_commit() {
    let (table, whole) = (table().await, Scope::whole_table());
    let staged =
        stage(&table, &request("r1", &whole, Intent::Merge(by_id(None))), &[(MON, Some("FR"), 1, 1)])
            .await
            .unwrap();
    merge(&table, "r2", &whole, by_id(None), &[(MON, Some("FR"), 2, 2)]).await;
    let onto = table.head(&whole).await.unwrap();
    let staged = table.rebase(&staged, &onto).await.unwrap();
    assert!(matches!(commit_on(&table, &apply(staged), &onto).await, CommitOutcome::Committed(_)));
    assert_eq!(all(&table).await, ["2026-10-05/FR/1/1", "2026-10-05/FR/2/2"]);
}

#[tokio::test]
async fn the_dynamic_form_leaves_partitions_that_received_nothing() {
    let table = table_with(&[(MON, Some("FR"), 1, 10), (MON, Some("DE"), 2, 20)]).await;
    let rows = [(MON, Some("FR"), 3, 30)];
    let staged =
        stage(&table, &request("r1", &scope(&day(MON)), Intent::ReplaceDynamic), &rows).await.unwrap();
    assert_eq!(staged.received, BTreeSet::from([day(MON).and("country", "FR")]));
    committed(&table, &apply(staged)).await;
    assert_eq!(all(&table).await, ["2026-10-05/DE/2/20", "2026-10-05/FR/3/30"]);
}
