//! Partition values that paths and predicates are broken by elsewhere.

use reprocess_core::domain::scope::Scope;

use super::Others;
use crate::support::*;

pub(super) const ODD: [&str; 41] = [
    "../../../../evil",
    "..",
    ".",
    "/",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "..\\..\\evil",
    "%",
    "%2F",
    "%2e%2e%2f",
    "a b",
    " lead",
    "trail ",
    "k=v",
    "it's",
    "\"x\"",
    "`x`",
    "ünï",
    "日本",
    "🦀",
    "1+1",
    "a:b",
    "*",
    "#",
    "?",
    "~",
    "$HOME",
    "&",
    "|",
    ";--",
    "<x>",
    "a,b",
    "[x]{y}",
    "__HIVE_DEFAULT_PARTITION__",
    "null",
    "NULL",
    "true",
    "2026-10-05",
    "UPPER",
    "upper",
];

#[tokio::test]
async fn odd_partition_values_stay_inside_and_are_read_by_others() {
    let mut rows: Vec<Row<'_>> = (0..).zip(ODD).map(|(id, country)| (MON, Some(country), id, 1)).collect();
    rows.extend([
        (MON, Some(""), 100, 1),
        (MON, None, 101, 1),
        ("", None, 102, 1),
        (MON, Some("tab\tline\n"), 103, 1),
    ]);
    let sales = Sales::with(&rows).await;
    let Some(mut others) = Others::of(&sales.raw()) else { return };
    others.check(&sales, &texts(&rows), "odd values").await;
    for emptied in ["../../../../evil", "", "%2F"] {
        let scope = Scope::key(day(MON).and("country", emptied)).unwrap();
        sales.replace(&format!("without {emptied}"), &scope, &[]).await;
        rows.retain(|row| row.1 != Some(emptied));
        others.check(&sales, &texts(&rows), emptied).await;
    }
    let inside = format!("{}/warehouse/", sales.folder().display());
    let outside: Vec<_> = walk(sales.folder())
        .into_iter()
        .filter(|path| !path.starts_with(&inside) && !path.contains("/catalog.db"))
        .collect();
    assert_eq!(outside, [] as [&str; 0], "nothing is written beside the table");
}
