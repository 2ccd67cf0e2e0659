//! Plans that were damaged on their way: what is read is a plan that reads back the same, and nothing panics.

use proptest::prelude::*;
use serde_json::Value as Json;

use super::tests::{catalog, planned, range, request};
use super::*;
use crate::domain::plan::facts::Existing;

fn text() -> String {
    let request = request(range(4, 10)).with_job("weekly", "v1").with_job("balance", "v1");
    serde_json::to_string(&planned(&request, &catalog(), Existing::new())).unwrap()
}

/// What a careless hand or another program may put in place of a value.
fn anything() -> impl Strategy<Value = Json> {
    prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        any::<String>().prop_map(Json::from),
        prop::sample::select(vec![
            "+262142-12-31T23:59:59Z",
            "-262143-01-01",
            "2013-03-10",
            "whole_table",
            "",
            "__HIVE_DEFAULT_PARTITION__",
        ])
        .prop_map(Json::from),
        Just(serde_json::json!([])),
        Just(serde_json::json!({})),
        Just(serde_json::json!({ "keys": [] })),
        Just(serde_json::json!({ "day": { "date": "2013-03-10" } })),
    ]
}

/// What happens to one place of a document.
#[derive(Clone, Debug)]
enum Change {
    Replace(Json),
    /// Takes an entry out, of what has some.
    Remove(usize),
    /// Has an entry twice.
    Repeat(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => anything().prop_map(Change::Replace),
        1 => (0..20_usize).prop_map(Change::Remove),
        1 => (0..20_usize).prop_map(Change::Repeat),
    ]
}

/// Counts `place` down over the places of a document, and changes the one at which it is 0.
fn damage(json: &mut Json, place: &mut usize, change: &Change) {
    if *place == 0 {
        match (change, &mut *json) {
            (Change::Replace(other), json) => *json = other.clone(),
            (Change::Remove(n), Json::Array(list)) if *n < list.len() => drop(list.remove(*n)),
            (Change::Repeat(n), Json::Array(list)) if *n < list.len() => list.push(list[*n].clone()),
            (Change::Remove(n), Json::Object(map)) => {
                let name = map.keys().nth(*n % map.len().max(1)).cloned();
                name.and_then(|name| map.remove(&name));
            }
            _ => {}
        }
    }
    *place = place.wrapping_sub(1);
    match json {
        Json::Array(list) => list.iter_mut().for_each(|json| damage(json, place, change)),
        Json::Object(map) => map.values_mut().for_each(|json| damage(json, place, change)),
        _ => {}
    }
}

fn size(json: &Json) -> usize {
    1 + match json {
        Json::Array(list) => list.iter().map(size).sum(),
        Json::Object(map) => map.values().map(size).sum(),
        _ => 0,
    }
}

fn check(text: &str) -> Result<(), TestCaseError> {
    if let Ok(plan) = Plan::from_json(text) {
        let again = serde_json::to_string(&plan).unwrap();
        let back = Plan::from_json(&again).map_err(|e| TestCaseError::fail(format!("{e}: {again}")))?;
        prop_assert_eq!(serde_json::to_string(&back).unwrap(), again);
        // What is shown of a plan is computed from it.
        let _ = (plan.digest(), plan.run(), plan.is_empty());
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_damaged_plan_is_refused_or_is_a_plan(changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 1..4)) {
        let mut json: Json = serde_json::from_str(&text()).unwrap();
        for (place, change) in &changes {
            let mut place = place.index(size(&json));
            damage(&mut json, &mut place, change);
        }
        check(&json.to_string())?;
    }

    #[test]
    fn a_cut_or_scribbled_text_is_refused_or_is_a_plan(
        from in any::<prop::sample::Index>(), length in 0..40_usize, scribble in "[ -~]{0,8}",
    ) {
        let mut text = text();
        let from = from.index(text.len());
        text.replace_range(from..text.len().min(from + length), &scribble);
        check(&text)?;
    }
}
