//! Ranges and keys as somebody may type them.

use clap::Parser;
use proptest::prelude::*;

use crate::cli::args::PlanArgs;
use crate::cli::request::selection;
use crate::domain::interval::Grain;
use crate::domain::partition::Partitioning;
use crate::domain::request::Selection;
use crate::domain::value::ValueKind;

#[derive(Debug, Parser)]
struct Words {
    #[command(flatten)]
    plan: PlanArgs,
}

fn typed() -> impl Strategy<Value = String> {
    prop_oneof![
        "(day=)?[0-9]{4}-[0-9]{2}-[0-9]{2}",
        "[+-]?[0-9]{1,6}-[0-9]{1,2}-[0-9]{1,2}(T[0-9]{2}:00:00(Z|[+-][0-9]{2}:00))?",
        "(day|country)=\\PC{0,6}(/country=\\PC{0,6})?",
        "\\PC{0,12}",
    ]
}

proptest! {
    #[test]
    fn a_typed_selection_is_refused_or_names_what_was_typed(
        from in typed(), to in typed(), by_key in any::<bool>(),
        grain in prop::sample::select(vec![Grain::Hour, Grain::Day, Grain::Week, Grain::Month]),
    ) {
        let unit = Partitioning::unpartitioned()
            .with_time("day", grain, chrono_tz::America::New_York)
            .with_key("country", ValueKind::Text);
        let words = match by_key {
            true => vec!["plan".to_owned(), "job".to_owned(), format!("--partition={from}")],
            false => vec!["plan".to_owned(), "job".to_owned(), format!("--from={from}"), format!("--to={to}")],
        };
        let Ok(words) = Words::try_parse_from(words) else { return Ok(()) };
        match selection(&words.plan, &[&unit]) {
            Ok(Selection::Range { first, last }) => {
                for (value, text) in [(first, &from), (last, &to)] {
                    let key = unit.time_key(value).unwrap();
                    prop_assert!(unit.interval(&key).is_some(), "{text} is no period");
                    prop_assert_eq!(unit.parse_key(&key.to_string()).unwrap(), key);
                }
            }
            Ok(Selection::Keys(keys)) => {
                for key in keys {
                    prop_assert_eq!(unit.parse_key(&key.to_string()).unwrap(), key);
                }
            }
            Ok(other) => prop_assert!(false, "{other:?}"),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
