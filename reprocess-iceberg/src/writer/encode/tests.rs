use std::collections::BTreeSet;
use std::path::Path as FsPath;

use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray,
    Float32Array, Float64Array, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray,
};
use futures::TryStreamExt;
use iceberg::spec::{
    DataContentType, Datum, Literal, NestedField, PrimitiveLiteral, PrimitiveType, SortOrder, Transform, Type,
};
use reprocess_lake::encode::Encoder;
use tempfile::TempDir;

use super::*;
use crate::columns;
use crate::scan;
use crate::storage::Stores;

struct Given {
    folder: TempDir,
    schema: Schema,
    spec: PartitionSpec,
    properties: Properties,
    config: IcebergConfig,
}

impl Given {
    /// A table with the columns `id long`, `country string` and `amount double`, partitioned by country.
    fn table() -> Self {
        let field = |id, name: &str, of| NestedField::optional(id, name, Type::Primitive(of)).into();
        Self::with(vec![
            field(1, "id", PrimitiveType::Long),
            field(2, "country", PrimitiveType::String),
            field(3, "amount", PrimitiveType::Double),
        ])
        .partitioned_by("country", Transform::Identity)
    }

    fn with(fields: Vec<iceberg::spec::NestedFieldRef>) -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            schema: Schema::builder().with_fields(fields).build().unwrap(),
            spec: PartitionSpec::unpartition_spec(),
            properties: Properties::default(),
            config: IcebergConfig::default(),
        }
    }

    fn partitioned_by(self, column: &str, transform: Transform) -> Self {
        let name = match transform {
            Transform::Identity => column.to_owned(),
            transform => format!("{column}_{transform}"),
        };
        let spec = PartitionSpec::builder(self.schema.clone()).with_spec_id(3);
        let spec = spec.add_partition_field(column, name, transform).unwrap().build().unwrap();
        Self { spec, ..self }
    }

    fn root(&self) -> String {
        self.folder.path().to_str().unwrap().to_owned()
    }

    fn files(&self) -> Files {
        Files::new(Arc::new(Stores::new(&BTreeMap::new())), &self.root()).unwrap()
    }

    fn layout(&self) -> Layout {
        let metrics = Metrics::new(&self.properties, &self.schema, &SortOrder::unsorted_order());
        let root = self.properties.data_root(&self.root());
        let folder = Folder::OfPartition { root, name: "reprocess-set".into() };
        let files = self.files();
        let plain = Layout::plain(&self.config, &files, &self.schema, folder, &self.properties, metrics);
        let values = Values::new(&self.spec, &self.schema).unwrap();
        Layout { spec: Some(Arc::new(self.spec.clone())), values, ..plain.unwrap() }
    }

    async fn written(&self, batches: &[RecordBatch]) -> Vec<DataFile> {
        let encoder = Encoder::start(DataFiles::new(self.layout()));
        for batch in batches {
            encoder.push(batch).await.unwrap();
        }
        encoder.finish().await.unwrap()
    }

    async fn read(&self, files: &[DataFile]) -> Vec<RecordBatch> {
        let rows = scan::staged(&self.files(), &Arc::new(self.schema.clone()), files).unwrap();
        rows.try_collect().await.unwrap()
    }

    /// Every file under the folder.
    fn there(&self) -> BTreeSet<String> {
        fn walk(folder: &FsPath, found: &mut BTreeSet<String>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, found);
                } else {
                    found.insert(path.to_str().unwrap().to_owned());
                }
            }
        }
        let mut found = BTreeSet::new();
        walk(self.folder.path(), &mut found);
        found
    }
}

fn sales(rows: &[(i64, Option<&str>, Option<f64>)]) -> RecordBatch {
    let ids: ArrayRef = Arc::new(rows.iter().map(|row| Some(row.0)).collect::<Int64Array>());
    let countries = rows.iter().map(|row| row.1).collect::<StringArray>();
    let amounts = rows.iter().map(|row| row.2).collect::<Float64Array>();
    RecordBatch::try_from_iter_with_nullable([
        ("id", ids, true),
        ("country", Arc::new(countries), true),
        ("amount", Arc::new(amounts), true),
    ])
    .unwrap()
}

fn ids(batches: &[RecordBatch]) -> Vec<i64> {
    let column = |batch: &RecordBatch| batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap().clone();
    let mut ids: Vec<_> = batches.iter().flat_map(|batch| column(batch).values().to_vec()).collect();
    ids.sort_unstable();
    ids
}

/// What people put into columns that tables are partitioned by.
const ODD: [&str; 41] = [
    "",
    " ",
    ".",
    "..",
    "../..",
    "../../../../evil",
    "/",
    "/etc/passwd",
    "a/b",
    "a//b",
    "\\",
    "..\\..\\evil",
    "C:\\x",
    "%",
    "%2F",
    "%2e%2e%2f",
    "a b",
    "a+b",
    "a=b",
    "a&b",
    "a?b",
    "a#b",
    "a:b",
    "a*b",
    "a\"b",
    "a'b",
    "a<b>",
    "a|b",
    "~",
    "~root",
    "null",
    "NULL",
    "__HIVE_DEFAULT_PARTITION__",
    "_hidden",
    ".hidden",
    "-",
    "zürich",
    "日本",
    "a\nb",
    "a\u{0}b",
    "😀",
];

#[tokio::test]
async fn whatever_a_value_is_its_file_stays_in_the_folder_of_the_table() {
    let given = Given::table();
    let rows: Vec<_> = ODD.iter().zip(0..).map(|(country, id)| (id, Some(*country), None)).collect();
    let files = given.written(&[sales(&rows)]).await;
    assert_eq!(files.len(), ODD.len());
    let under = format!("{}/data/", given.root());
    for file in &files {
        let rest = file.file_path().strip_prefix(&under).unwrap();
        let parts: Vec<_> = rest.split('/').collect();
        assert_eq!(parts.len(), 3, "{rest}");
        assert_eq!(parts[1], "reprocess-set");
        let plain = |c: char| c.is_ascii_alphanumeric() || "=-_.".contains(c);
        assert!(rest.split('/').all(|part| part.chars().all(plain)), "{rest}");
        assert!(parts.iter().all(|part| !part.is_empty() && !part.starts_with('.')), "{rest}");
    }
    let paths: BTreeSet<_> = paths(&files).into_iter().collect();
    assert_eq!(given.there(), paths);
    let values: BTreeSet<_> = files.iter().map(|file| format!("{:?}", file.partition())).collect();
    assert_eq!(values.len(), ODD.len());
    assert_eq!(ids(&given.read(&files).await), (0..41).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_file_says_what_it_holds() {
    let given = Given::table();
    let long = "ä".repeat(20);
    let rows = sales(&[
        (7, Some(&long), Some(1.5)),
        (3, Some(&long), None),
        (5, Some(&long), Some(f64::NAN)),
        (4, Some(&long), Some(-0.5)),
    ]);
    let files = given.written(&[rows]).await;
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!(file.content_type(), DataContentType::Data);
    assert_eq!(file.record_count(), 4);
    assert_eq!(file.file_size_in_bytes(), std::fs::metadata(file.file_path()).unwrap().len());
    assert_eq!(file.partition(), &Struct::from_iter([Some(Literal::string(&long))]));
    assert_eq!(file.split_offsets(), Some(&[4][..]));
    assert_eq!(file.sort_order_id(), Some(0));
    let (counts, nulls, nans) = (file.value_counts(), file.null_value_counts(), file.nan_value_counts());
    assert_eq!([counts[&1], counts[&2], counts[&3]], [4, 4, 4]);
    assert_eq!([nulls[&1], nulls[&2], nulls[&3]], [0, 0, 1]);
    assert_eq!(nans.iter().collect::<Vec<_>>(), [(&3, &1)]);
    assert!([1, 2, 3].iter().all(|id| file.column_sizes()[id] > 0));
    let (lower, upper) = (file.lower_bounds(), file.upper_bounds());
    assert_eq!((&lower[&1], &upper[&1]), (&Datum::long(3), &Datum::long(7)));
    assert_eq!((&lower[&3], &upper[&3]), (&Datum::double(-0.5), &Datum::double(1.5)));
    let sixteen = "ä".repeat(15);
    assert_eq!(lower[&2], Datum::string(format!("{sixteen}ä")));
    assert_eq!(upper[&2], Datum::string(format!("{sixteen}å")));
}

#[tokio::test]
async fn a_table_is_told_no_more_than_it_asks_for() {
    let asked = [
        ("write.metadata.metrics.default", "none"),
        ("write.metadata.metrics.column.country", "counts"),
        ("write.metadata.metrics.column.amount", "full"),
    ];
    let given = Given { properties: Properties::from(asked), ..Given::table() };
    let files = given.written(&[sales(&[(1, Some("FR"), Some(2.0))])]).await;
    let ids = |map: Vec<&i32>| map.into_iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(ids(files[0].value_counts().keys().collect()), BTreeSet::from([2, 3]));
    assert_eq!(ids(files[0].null_value_counts().keys().collect()), BTreeSet::from([2, 3]));
    assert_eq!(ids(files[0].lower_bounds().keys().collect()), BTreeSet::from([3]));
    assert_eq!(ids(files[0].upper_bounds().keys().collect()), BTreeSet::from([3]));
    assert_eq!(ids(files[0].column_sizes().keys().collect()), BTreeSet::from([1, 2, 3]));
}

#[tokio::test]
async fn bounds_hold_for_every_row_group_also_where_values_are_long() {
    let given = Given::table().partitioned_by("id", Transform::Void);
    let given =
        Given { properties: Properties::from([("write.parquet.row-group-size-bytes", "1024")]), ..given };
    let (short, least, most) = ("m".to_owned(), "b".repeat(300), "x".repeat(300));
    let batch = |text: &str| {
        let rows: Vec<_> = (0..2_000).map(|id| (id, Some(text), None)).collect();
        sales(&rows)
    };
    let files = given.written(&[batch(&short), batch(&least), batch(&most), batch(&short)]).await;
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert!(file.split_offsets().unwrap().len() > 1);
    assert_eq!(file.lower_bounds()[&2], Datum::string("b".repeat(16)));
    assert_eq!(file.upper_bounds()[&2], Datum::string(format!("{}y", "x".repeat(15))));
}

#[tokio::test]
async fn null_is_a_partition_of_its_own() {
    let given = Given::table();
    let files = given.written(&[sales(&[(1, None, None), (2, Some("NULL"), None), (3, None, None)])]).await;
    let found: Vec<_> = files.iter().map(|file| (file.partition().clone(), file.record_count())).collect();
    assert_eq!(found.len(), 2);
    assert!(found.contains(&(Struct::from_iter([None]), 2)));
    assert!(found.contains(&(Struct::from_iter([Some(Literal::string("NULL"))]), 1)));
    let null = files.iter().find(|file| file.partition().is_null_at_index(0)).unwrap();
    assert_eq!(null.null_value_counts()[&2], 2);
    assert!(!null.lower_bounds().contains_key(&2));
}

#[tokio::test]
async fn more_partitions_than_may_be_open_are_all_written() {
    let given = Given::table();
    let given = Given { config: IcebergConfig::new().with_open_partitions(2), ..given };
    let countries = ["AT", "BE", "CH", "DE", "ES", "FR", "GB"];
    let batch = |first: i64| {
        let rows: Vec<_> =
            countries.iter().zip(first..).map(|(country, id)| (id, Some(*country), None)).collect();
        sales(&rows)
    };
    let files = given.written(&[batch(0), batch(7), batch(14)]).await;
    assert_eq!(ids(&given.read(&files).await), (0..21).collect::<Vec<_>>());
    let names: BTreeSet<_> = files.iter().map(|file| file.file_path().rsplit_once('/').unwrap().1).collect();
    assert_eq!(names.len(), files.len());
    let partitions: BTreeSet<_> = files.iter().map(|file| format!("{:?}", file.partition())).collect();
    assert_eq!(partitions.len(), countries.len());
    assert_eq!(given.there().len(), files.len());
}

#[tokio::test]
async fn a_file_of_the_wanted_size_is_closed_and_another_begun() {
    let given = Given::table();
    let small = Properties::from([("write.target-file-size-bytes", "1")]);
    let given = Given { properties: small, ..given };
    let batch = |id| sales(&[(id, Some("FR"), None), (id + 1, Some("FR"), None)]);
    let files = given.written(&[batch(0), batch(2), batch(4)]).await;
    assert_eq!(files.iter().map(DataFile::record_count).collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(ids(&given.read(&files).await), (0..6).collect::<Vec<_>>());
    assert_eq!(given.written(&[]).await, []);
}

#[tokio::test]
async fn what_is_given_up_leaves_nothing() {
    let small = Properties::from([("write.target-file-size-bytes", "1")]);
    let given = Given { properties: small, ..Given::table() };
    let encoder = Encoder::start(DataFiles::new(given.layout()));
    for id in 0..10 {
        encoder.push(&sales(&[(id, Some("FR"), None), (id, Some("DE"), None)])).await.unwrap();
    }
    encoder.give_up().await;
    assert_eq!(given.there(), BTreeSet::new());
}

#[tokio::test]
async fn rows_that_cannot_be_written_leave_nothing() {
    let required = vec![
        NestedField::required(1, "id", Type::Primitive(PrimitiveType::Long)).into(),
        NestedField::optional(2, "country", Type::Primitive(PrimitiveType::String)).into(),
    ];
    let given = Given::with(required).partitioned_by("country", Transform::Identity);
    let batch = |ids: Vec<Option<i64>>| {
        let countries: ArrayRef = Arc::new(StringArray::from(vec!["FR"; ids.len()]));
        let ids: ArrayRef = Arc::new(Int64Array::from(ids));
        RecordBatch::try_from_iter_with_nullable([("id", ids, true), ("country", countries, true)]).unwrap()
    };
    let encoder = Encoder::start(DataFiles::new(given.layout()));
    encoder.push(&batch(vec![Some(1), Some(2)])).await.unwrap();
    encoder.push(&batch(vec![Some(3), None])).await.unwrap();
    let error = encoder.finish().await.unwrap_err();
    assert!(error.to_string().contains("do not fit"), "{error}");
    assert_eq!(given.there(), BTreeSet::new());
}

#[tokio::test]
async fn what_is_written_again_under_the_same_name_leaves_the_first_as_it_is() {
    let given = Given::table();
    let first = given.written(&[sales(&[(1, Some("FR"), None)])]).await;
    let second = given.written(&[sales(&[(2, Some("FR"), None)])]).await;
    assert_ne!(paths(&first), paths(&second));
    assert_eq!((ids(&given.read(&first).await), ids(&given.read(&second).await)), (vec![1], vec![2]));
    let folder = |files: &[DataFile]| files[0].file_path().rsplit_once('/').unwrap().0.to_owned();
    assert_eq!(folder(&first), folder(&second));
    assert!(folder(&first).ends_with("/data/country=FR/reprocess-set"));
}

#[tokio::test]
async fn files_go_where_the_table_wants_its_data() {
    let given = Given::table();
    let elsewhere = TempDir::new().unwrap();
    let path = elsewhere.path().to_str().unwrap();
    let given = Given { properties: Properties::from([("write.data.path", path)]), ..given };
    let files = given.written(&[sales(&[(1, Some("FR"), None)])]).await;
    assert!(files[0].file_path().starts_with(&format!("{path}/country=FR/reprocess-set/")));
    assert_eq!(given.there(), BTreeSet::new());
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a line for each type")]
#[allow(clippy::disallowed_types, reason = "the library has bounds in it")]
async fn every_type_is_written_as_it_is_with_bounds() {
    let types = [
        PrimitiveType::Boolean,
        PrimitiveType::Int,
        PrimitiveType::Float,
        PrimitiveType::Decimal { precision: 9, scale: 2 },
        PrimitiveType::Decimal { precision: 38, scale: 2 },
        PrimitiveType::Date,
        PrimitiveType::Timestamp,
        PrimitiveType::Timestamptz,
        PrimitiveType::Binary,
        PrimitiveType::Fixed(2),
        PrimitiveType::Uuid,
    ];
    let fields = types
        .iter()
        .zip(1..)
        .map(|(of, id)| NestedField::optional(id, format!("c{id}"), Type::Primitive(of.clone())).into());
    let given = Given::with(fields.collect());
    let decimals = |precision| {
        let values = Decimal128Array::from(vec![Some(-150), None, Some(275)]);
        values.with_precision_and_scale(precision, 2).unwrap()
    };
    let instants = || TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1)]);
    let (least, most) = ([1_u8; 16], [0xF0_u8; 16]);
    let fixed = |values: [Option<&[u8]>; 3], size| {
        FixedSizeBinaryArray::try_from_sparse_iter_with_size(values.into_iter(), size).unwrap()
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(BooleanArray::from(vec![Some(false), None, Some(true)])),
        Arc::new(Int32Array::from(vec![Some(-5), None, Some(5)])),
        Arc::new(Float32Array::from(vec![Some(-5.5), None, Some(5.5)])),
        Arc::new(decimals(9)),
        Arc::new(decimals(38)),
        Arc::new(Date32Array::from(vec![Some(-1), None, Some(1)])),
        Arc::new(instants()),
        Arc::new(instants().with_timezone("UTC")),
        Arc::new(BinaryArray::from(vec![Some(&[1_u8, 2][..]), None, Some(&[3])])),
        Arc::new(fixed([Some(&[1, 2]), None, Some(&[3, 4])], 2)),
        Arc::new(fixed([Some(&least), None, Some(&most)], 16)),
    ];
    let schema = columns::to_arrow(&given.schema).unwrap();
    let rows = RecordBatch::try_new(schema, columns).unwrap();
    let files = given.written(std::slice::from_ref(&rows)).await;
    assert_eq!(given.read(&files).await, [rows]);
    assert_eq!(files[0].partition(), &Struct::empty());
    let float = |value: f32| Datum::float(value).literal().clone();
    let bounds = |of: &dyn Fn(i32) -> Datum| -> Vec<_> {
        let bounds = (1..=11).map(of);
        bounds.map(|bound| (bound.data_type().clone(), bound.literal().clone())).collect()
    };
    let expected = |literals: [PrimitiveLiteral; 11]| types.iter().cloned().zip(literals).collect::<Vec<_>>();
    use PrimitiveLiteral::{Binary, Boolean, Int, Int128, Long, UInt128};
    assert_eq!(
        bounds(&|id| files[0].lower_bounds()[&id].clone()),
        expected([
            Boolean(false),
            Int(-5),
            float(-5.5),
            Int128(-150),
            Int128(-150),
            Int(-1),
            Long(-1),
            Long(-1),
            Binary(vec![1, 2]),
            Binary(vec![1, 2]),
            UInt128(u128::from_be_bytes(least)),
        ])
    );
    assert_eq!(
        bounds(&|id| files[0].upper_bounds()[&id].clone()),
        expected([
            Boolean(true),
            Int(5),
            float(5.5),
            Int128(275),
            Int128(275),
            Int(1),
            Long(1),
            Long(1),
            Binary(vec![3]),
            Binary(vec![3, 4]),
            UInt128(u128::from_be_bytes(most)),
        ])
    );
    let nulls: BTreeSet<_> = files[0].null_value_counts().values().copied().collect();
    assert_eq!(nulls, BTreeSet::from([1]));
}
