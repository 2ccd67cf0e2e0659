use iceberg::spec::{
    DataContentType, DataFileFormat, Datum, FormatVersion, Literal, ManifestContentType, PartitionSpec,
    PrimitiveType, Schema, Transform,
};
use reprocess_core::domain::interval::Grain;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::value::{Value, ValueKind};

use super::deletes::Deletes;
use super::fixtures::{Folder, data, deletes, empty, metadata, named, respecced, schema, spec, unread};
use super::*;

const POSITIONS: DataContentType = DataContentType::PositionDeletes;
const EQUAL: DataContentType = DataContentType::EqualityDeletes;
/// Column of paths in files of position deletes.
const FILE_PATH: i32 = 2_147_483_546;

fn columns() -> Schema {
    schema(&[("day", PrimitiveType::Date), ("country", PrimitiveType::String)])
}

fn by_both() -> Partitioning {
    Partitioning::unpartitioned()
        .with_time("day", Grain::Day, chrono_tz::UTC)
        .with_key("country", ValueKind::Text)
}

const BOTH: [(&str, Transform); 2] = [("day", Transform::Identity), ("country", Transform::Identity)];

fn values(day: i32, country: &str) -> [Option<Literal>; 2] {
    [Some(Literal::date(day)), Some(Literal::string(country))]
}

fn day(text: &str) -> PartitionKey {
    PartitionKey::of("day", Value::Date(text.parse().unwrap()))
}

/// Which of these deletes apply to a data file `data` of the first of January with the sequence number 5.
fn applying(of: impl Fn(&PartitionSpec, &PartitionSpec, &Schema) -> Vec<Arc<Named>>) -> Vec<String> {
    let columns = columns();
    let bound = |id, fields: &[(&str, Transform)]| {
        spec(&columns, fields).bind(columns.clone()).unwrap().with_spec_id(id)
    };
    let (by, without) = (bound(1, &BOTH), bound(0, &[]));
    let file = named(data("data", values(0, "FR")).build().unwrap(), &by, &columns, 5);
    let deletes = of(&by, &without, &columns);
    let found = Deletes::new(&deletes).of(&file);
    found.iter().map(|delete| delete.file.file_path().to_owned()).collect()
}

#[test]
fn position_deletes_apply_in_their_partition_to_files_that_are_not_younger() {
    let found = applying(|by, without, columns| {
        let of = |path: &str, day, country, sequence| {
            named(deletes(POSITIONS, path, values(day, country)).build().unwrap(), by, columns, sequence)
        };
        let other_spec = by.clone().with_spec_id(7);
        vec![
            of("younger", 0, "FR", 6),
            of("same", 0, "FR", 5),
            of("older", 0, "FR", 4),
            of("other day", 1, "FR", 6),
            of("other country", 0, "DE", 6),
            named(
                deletes(POSITIONS, "other spec", values(0, "FR")).build().unwrap(),
                &other_spec,
                columns,
                6,
            ),
            named(deletes(POSITIONS, "no spec", []).build().unwrap(), without, columns, 6),
        ]
    });
    assert_eq!(found, ["same", "younger"]);
}

#[test]
fn equality_deletes_apply_to_older_files_in_their_partition_or_in_every_one() {
    let found = applying(|by, without, columns| {
        let of = |path: &str, country, sequence| {
            named(deletes(EQUAL, path, values(0, country)).build().unwrap(), by, columns, sequence)
        };
        let everywhere = |path: &str, sequence| {
            named(deletes(EQUAL, path, []).build().unwrap(), without, columns, sequence)
        };
        vec![
            of("younger", "FR", 6),
            of("same", "FR", 5),
            of("other country", "DE", 6),
            everywhere("everywhere", 6),
            everywhere("everywhere, same", 5),
        ]
    });
    assert_eq!(found, ["everywhere", "younger"]);
}

#[test]
fn position_deletes_of_one_file_apply_to_no_other() {
    let found = applying(|by, _, columns| {
        let of = |path: &str, (least, most): (&str, &str), sequence| {
            let mut file = deletes(POSITIONS, path, values(0, "FR"));
            file.lower_bounds([(FILE_PATH, Datum::string(least))].into());
            file.upper_bounds([(FILE_PATH, Datum::string(most))].into());
            named(file.build().unwrap(), by, columns, sequence)
        };
        let referring = |path: &str, to: &str| {
            let mut file = deletes(POSITIONS, path, values(0, "FR"));
            named(file.referenced_data_file(Some(to.to_owned())).build().unwrap(), by, columns, 6)
        };
        vec![
            of("of several", ("a", "z"), 6),
            of("of it", ("data", "data"), 5),
            of("of it, older", ("data", "data"), 4),
            of("of another", ("datb", "datb"), 6),
            referring("referring", "data"),
            referring("referring to another", "datb"),
        ]
    });
    assert_eq!(found, ["of it", "of several", "referring"]);
}

#[test]
fn a_deletion_vector_stands_for_all_position_deletes_of_its_file() {
    let found = applying(|by, without, columns| {
        let vector = |path: &str, to: &str, sequence| {
            let mut file = deletes(POSITIONS, path, values(0, "FR"));
            file.file_format(DataFileFormat::Puffin).referenced_data_file(Some(to.to_owned()));
            file.content_offset(Some(4)).content_size_in_bytes(Some(40));
            named(file.build().unwrap(), by, columns, sequence)
        };
        let positions = deletes(POSITIONS, "positions", values(0, "FR")).build().unwrap();
        vec![
            vector("vector", "data", 6),
            vector("vector of another", "datb", 6),
            named(positions, by, columns, 6),
            named(deletes(EQUAL, "equal", []).build().unwrap(), without, columns, 6),
        ]
    });
    assert_eq!(found, ["equal", "vector"]);
}

#[test]
fn the_identity_of_a_file_tells_which_deletes_apply_to_it() {
    let (columns, by) = (columns(), PartitionSpec::unpartition_spec());
    let entry = |path: &str, offset| {
        let mut file = data(path, []);
        named(file.content_offset(offset).build().unwrap(), &by, &columns, 1)
    };
    let file = |deletes: Vec<Arc<Named>>| File { entry: entry("f", None), deletes };
    assert_eq!(file(vec![]).identity(), "f");
    assert_eq!(file(vec![entry("p", None), entry("q", Some(4))]).identity(), "f\np\nq@4");
    assert_ne!(file(vec![entry("q", Some(4))]).identity(), file(vec![entry("q", Some(44))]).identity());
}

/// A table by day and country with files of three days in two manifests, and one from before it was partitioned.
async fn stored(folder: &Folder) -> View {
    let made = metadata(FormatVersion::V2, columns(), &[]);
    let old = made.default_partition_spec().clone();
    let made = respecced(made, &BOTH);
    let (schema, by) = (made.current_schema(), made.default_partition_spec());
    let kind = (FormatVersion::V2, ManifestContentType::Data);
    let loose = {
        let end = |day| [(1, Datum::date(day)), (2, Datum::string("FR"))].into();
        let mut file = data("loose", []);
        file.lower_bounds(end(1)).upper_bounds(end(4)).null_value_counts([(1, 0), (2, 0)].into());
        file.build().unwrap()
    };
    let manifests = vec![
        folder
            .manifest("old.avro", kind, (schema, &old), 1, |writer| writer.add_file(loose, -1).unwrap())
            .await,
        folder
            .manifest("first.avro", kind, (schema, by), 2, |writer| {
                for (path, day, country) in [("b", 0, "FR"), ("a", 0, "FR"), ("c", 0, "DE")] {
                    writer.add_file(data(path, values(day, country)).build().unwrap(), -1).unwrap();
                }
            })
            .await,
        folder
            .manifest("second.avro", kind, (schema, by), 3, |writer| {
                for (path, day) in [("d", 1), ("e", 2)] {
                    writer.add_file(data(path, values(day, "FR")).build().unwrap(), -1).unwrap();
                }
            })
            .await,
        folder
            .manifest("gone.avro", kind, (schema, by), 3, |writer| {
                writer.add_delete_file(data("gone", values(0, "FR")).build().unwrap(), 1, Some(1)).unwrap();
            })
            .await,
        folder
            .manifest(
                "deletes.avro",
                (FormatVersion::V2, ManifestContentType::Deletes),
                (schema, by),
                4,
                |writer| {
                    writer.add_file(deletes(POSITIONS, "p", values(1, "FR")).build().unwrap(), -1).unwrap();
                },
            )
            .await,
    ];
    folder.view(&by_both(), made, manifests)
}

fn paths(files: Vec<&File>) -> Vec<&str> {
    files.into_iter().map(File::path).collect()
}

#[tokio::test]
async fn a_listing_has_the_live_files_of_what_is_wanted_by_partition() {
    let folder = Folder::new();
    let view = stored(&folder).await;
    let all = view.listed(&unread(), &Wanted::All).await.unwrap();
    let found: Vec<_> =
        all.files.iter().map(|(key, files)| (key.to_string(), paths(files.iter().collect()))).collect();
    assert_eq!(
        found,
        [
            ("day=1970-01-01/country=DE".to_owned(), vec!["c"]),
            ("day=1970-01-01/country=FR".to_owned(), vec!["a", "b"]),
            ("day=1970-01-02/country=FR".to_owned(), vec!["d"]),
            ("day=1970-01-03/country=FR".to_owned(), vec!["e"]),
        ]
    );
    let fr = |text| day(text).and("country", "FR");
    assert_eq!(all.files[&fr("1970-01-02")][0].identity(), "d\np");
    assert_eq!(all.deletes.len(), 1);
    assert_eq!(paths(all.loose.iter().map(|(file, _)| file).collect()), ["loose"]);

    assert_eq!(paths(all.under(&day("1970-01-01"))), ["c", "a", "b"]);
    assert_eq!(
        paths(all.under(
            &PartitionKey::of("country", "FR").and("day", fr("1970-01-03").get("day").unwrap().clone())
        )),
        ["e"]
    );
    assert_eq!(paths(all.under(&PartitionKey::of("country", "DE"))), ["c"]);
    assert_eq!(paths(all.under(&PartitionKey::whole())).len(), 5);
    assert!(all.under(&fr("1970-01-05")).is_empty() && all.under(&day("1970-01-05")).is_empty());
    assert_eq!(paths(all.loose_under(&fr("1970-01-05"))), ["loose"]);
    assert!(all.loose_under(&day("1970-01-01")).is_empty());
    assert!(all.loose_under(&PartitionKey::of("country", "DE")).is_empty());
    let slice = Slice::Partitions([day("1970-01-02"), day("1970-01-03")].into());
    assert_eq!((paths(all.in_slice(&slice)), paths(all.loose_in(&slice))), (vec!["d", "e"], vec!["loose"]));
}

#[tokio::test]
async fn manifests_of_other_partitions_are_not_read() {
    let folder = Folder::new();
    let view = stored(&folder).await;
    std::fs::remove_file(folder.path("first.avro")).unwrap();
    std::fs::remove_file(folder.path("gone.avro")).unwrap();
    let wanted = Wanted::Keys(vec![day("1970-01-02")]);
    let listing = view.listed(&unread(), &wanted).await.unwrap();
    assert_eq!(listing.files.len(), 1);
    assert_eq!(paths(listing.under(&day("1970-01-02"))), ["d"]);
    assert_eq!(listing.loose.len(), 1);
    let error = view.listed(&unread(), &Wanted::Keys(vec![day("1970-01-01")])).await.unwrap_err();
    assert!(error.to_string().contains("first.avro"), "{error}");
}

#[tokio::test]
async fn versions_of_partitions_are_those_of_their_files_and_of_loose_ones_that_may_reach_them() {
    let folder = Folder::new();
    let view = stored(&folder).await;
    let fr = |text| day(text).and("country", "FR");
    let scope =
        Scope::keys([day("1970-01-01"), fr("1970-01-02"), fr("1970-01-05"), fr("1970-01-06")]).unwrap();
    let listing = view.listed(&unread(), &Wanted::of(&scope)).await.unwrap();
    let head = view.head(&listing, &scope).unwrap();
    let of = |identities: &[&str]| version_of(identities.iter().map(|text| (*text).to_owned()));
    assert_eq!(head.table.as_str(), "new");
    let found: Vec<_> = head.partitions.into_iter().collect();
    assert_eq!(
        found,
        [
            (day("1970-01-01"), of(&["a", "b", "c"])),
            (fr("1970-01-02"), of(&["d\np", "loose"])),
            (fr("1970-01-05"), of(&["loose"])),
            (fr("1970-01-06"), of(&[])),
        ]
    );
    let slice = Slice::Partitions([fr("1970-01-02")].into());
    assert_eq!(view.slice_version(&listing, &slice).unwrap(), of(&["d\np", "loose"]));
    let odd = Slice::Partitions([PartitionKey::of("where", "FR")].into());
    assert!(view.slice_version(&listing, &odd).unwrap_err().to_string().contains("`where`"));
}

#[tokio::test]
async fn the_whole_table_has_one_version() {
    let folder = Folder::new();
    let view = stored(&folder).await;
    let scope = Scope::whole_table();
    let listing = view.listed(&unread(), &Wanted::of(&scope)).await.unwrap();
    let head = view.head(&listing, &scope).unwrap();
    let all = ["a", "b", "c", "d\np", "e", "loose"].map(str::to_owned);
    assert_eq!(head.partitions[&PartitionKey::whole()], version_of(all));
}

#[tokio::test]
async fn a_table_that_is_not_there_has_no_files_and_cannot_be_asked_for_its_metadata() {
    let view = View::absent(&TableSpec::new("t", by_both()));
    let scope = Scope::key(day("1970-01-01")).unwrap();
    let listing = view.listed(&unread(), &Wanted::of(&scope)).await.unwrap();
    let head = view.head(&listing, &scope).unwrap();
    assert_eq!(head.table.as_str(), "none");
    assert_eq!(head.partitions[&day("1970-01-01")].as_str(), "empty");
    assert_eq!((view.columns(), view.snapshot_id(), view.schema().fields().len()), (None, None, 0));
    assert_eq!(view.there().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(view.known().is_none() && view.metadata().is_err());
}

#[test]
fn a_table_without_a_snapshot_has_columns_and_a_version_of_its_own() {
    let view = empty(&by_both(), metadata(FormatVersion::V2, columns(), &BOTH));
    assert_eq!(view.version().as_str(), "new");
    assert_eq!(view.columns().unwrap().fields().len(), 2);
    assert!(view.columns().unwrap().field(0).metadata().is_empty());
}
