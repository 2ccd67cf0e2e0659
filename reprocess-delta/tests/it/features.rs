//! What tables ask of those who write them: kept, or refused by name before a file is written.

use std::collections::BTreeMap;

use deltalake::kernel::StructField;
use deltalake::operations::create::CreateBuilder;
use deltalake::protocol::SaveMode;
use futures::TryStreamExt;
use reprocess_core::domain::scope::Scope;
use reprocess_core::domain::slice::Slice;
use reprocess_core::ports::writer::{CommitOutcome, Intent, MergeKeys, PartitionWriter};
use reprocess_core::{Error, ErrorKind};
use reprocess_delta::deltalake;
use serde_json::{Value as Json, json};

use crate::support::*;

/// A table of sales with settings, and with metadata of its column `amount`.
async fn with(settings: &[(&str, &str)], metadata: &[(&str, &str)]) -> Sales {
    let sales = Sales::absent();
    let fields = [("day", "date"), ("country", "string"), ("id", "long"), ("amount", "long")];
    let fields = fields.map(|(name, kind)| {
        let metadata: BTreeMap<_, _> = metadata.iter().filter(|_| name == "amount").copied().collect();
        let field = json!({"name": name, "type": kind, "nullable": true, "metadata": metadata});
        serde_json::from_value::<StructField>(field).unwrap()
    });
    CreateBuilder::new()
        .with_location(sales.path().to_str().unwrap())
        .with_save_mode(SaveMode::ErrorIfExists)
        .with_columns(fields)
        .with_partition_columns(["day", "country"])
        .with_configuration(settings.iter().map(|(k, v)| ((*k).to_owned(), Some((*v).to_owned()))))
        .with_raise_if_key_not_exists(false)
        .await
        .unwrap();
    sales
}

/// Writes a version of the log as another engine would.
async fn log(sales: &Sales, actions: &[Json]) {
    let version = sales.raw().await.version().unwrap() + 1;
    let path = sales.path().join(format!("_delta_log/{version:020}.json"));
    let lines: Vec<_> = actions.iter().map(Json::to_string).collect();
    std::fs::write(path, lines.join("\n")).unwrap();
}

fn protocol(reader: &[&str], writer: &[&str]) -> Json {
    json!({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reader, "writerFeatures": writer}})
}

async fn try_stage(sales: &Sales, intent: Intent) -> Result<(), Error> {
    let files = || std::fs::read_dir(sales.path()).unwrap().count();
    let before = files();
    let staged = stage(&sales.table, "r1", &days(&[MON]), intent, batch(&[(MON, Some("FR"), 1, 10)])).await;
    if staged.is_err() {
        assert_eq!(files(), before, "nothing was written");
    }
    staged.map(drop)
}

async fn refused(sales: &Sales, feature: &str) {
    let error = try_stage(sales, Intent::Replace).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains(feature), "{error}");
}

fn by_id() -> Intent {
    Intent::Merge(MergeKeys { keys: vec!["id".into()], newer: None, delete_vanished: None })
}

#[tokio::test]
async fn what_files_of_ours_would_not_have_is_refused_by_name() {
    refused(&with(&[("delta.appendOnly", "true")], &[]).await, "appendOnly").await;
    let generated = [("delta.generationExpression", "id + 1")];
    refused(&with(&[], &generated).await, "generatedColumns").await;
    let invariant = [("delta.invariants", r#"{"expression":{"expression":"amount > 0"}}"#)];
    refused(&with(&[], &invariant).await, "invariants").await;
    refused(&with(&[], &[("delta.identity.start", "1")]).await, "identityColumns").await;
}

/// What the library does not write is refused by it; each as a table of another engine would have it.
#[tokio::test]
async fn features_that_the_library_does_not_write_are_refused_by_name() {
    for (reader, writer, named) in [
        (vec![], vec!["rowTracking", "domainMetadata"], "RowTracking"),
        (vec![], vec!["clustering", "domainMetadata"], "Clustered"),
        (vec![], vec!["icebergCompatV1"], "IcebergCompatV1"),
        (vec![], vec!["icebergCompatV2"], "IcebergCompatV2"),
        (vec![], vec!["inCommitTimestamp"], "InCommitTimestamp"),
        (vec!["typeWidening"], vec!["typeWidening"], "TypeWidening"),
        (vec!["vacuumProtocolCheck"], vec!["vacuumProtocolCheck"], "VacuumProtocolCheck"),
        (vec![], vec!["aFeatureOfTomorrow"], "aFeatureOfTomorrow"),
    ] {
        let sales = with(&[], &[]).await;
        log(&sales, &[protocol(&reader, &writer)]).await;
        refused(&sales, named).await;
    }
}

#[tokio::test]
async fn a_table_with_mapped_columns_is_refused() {
    let sales = with(&[("delta.columnMapping.mode", "name")], &[]).await;
    refused(&sales, "columnMapping").await;
}

/// Whole partitions are replaced, which readers of the feed understand; a merge would write unchanged rows again.
#[tokio::test]
async fn a_change_data_feed_tells_of_replaces_and_merges_are_refused() {
    let sales = with(&[("delta.enableChangeDataFeed", "true")], &[]).await;
    sales.replace("r1", &days(&[MON]), &[(MON, Some("FR"), 1, 10)]).await;
    sales.replace("r2", &days(&[MON]), &[(MON, Some("FR"), 1, 11)]).await;
    let error = try_stage(&sales, by_id()).await.unwrap_err();
    assert!(error.to_string().contains("changeDataFeed"), "{error}");
    let session = deltalake::datafusion::prelude::SessionContext::new();
    let state = session.state();
    let raw = sales.raw().await;
    raw.update_datafusion_session(&state).unwrap();
    let feed = raw.scan_cdf().with_starting_version(2).build(&state, None).await.unwrap();
    let feed = deltalake::datafusion::physical_plan::execute_stream(feed, state.task_ctx()).unwrap();
    let batches: Vec<_> = feed.try_collect().await.unwrap();
    let mut seen: Vec<_> = batches
        .iter()
        .flat_map(|batch| {
            lines(
                &batch
                    .project(&["amount", "_change_type"].map(|n| batch.schema().index_of(n).unwrap()))
                    .unwrap(),
            )
        })
        .collect();
    seen.sort();
    assert_eq!(seen, ["10/delete", "11/insert"]);
}

/// CHECK constraints hold for our rows, NULL among them; one that came after staging is not passed by.
#[tokio::test]
async fn constraints_are_checked_at_staging_and_at_the_commit() {
    let sales = Sales::new().await;
    let early = stage(&sales.table, "early", &days(&[TUE]), Intent::Replace, batch(&[(TUE, None, 1, -1)]))
        .await
        .unwrap();
    sales.raw().await.add_constraint().with_constraint("positive", "amount > 0").await.unwrap();
    let rows = [(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, -5), (MON, None, 3, 0)];
    let error = stage(&sales.table, "r1", &days(&[MON]), Intent::Replace, batch(&rows)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("2 rows break the constraint `positive`"), "{error}");
    sales.replace("r2", &days(&[MON]), &rows[..1]).await;
    let base = sales.table.head(&early.scope).await.unwrap();
    let outcome = commit(&sales.table, &[apply(&early)], &base).await.unwrap();
    assert_eq!(outcome, CommitOutcome::SchemaChanged);
    assert_eq!(sales.rows().await, texts(&rows[..1]));
}

/// Rows that another engine took out of a file by a deletion vector are not read, and go with the file.
#[tokio::test]
async fn deletion_vectors_are_read_and_replaced() {
    let sales = Sales::with(&[(MON, Some("FR"), 1, 10), (MON, Some("FR"), 2, 20), (TUE, None, 3, 30)]).await;
    let monday = days(&[MON]);
    let base = sales.table.head(&monday).await.unwrap();
    let whole = sales.pin(Slice::All).await;
    let mut add = added(&sales, 1, "2026-10-05");
    let path = add["add"]["path"].clone();
    let values = add["add"]["partitionValues"].clone();
    // The bitmap of row 0, see "Deletion Vector Format" in the protocol of Delta.
    let mut bytes = 1_681_511_377_u32.to_le_bytes().to_vec();
    bytes.extend(1_u64.to_le_bytes());
    for word in [0_u32, 12_346, 1, 0, 16] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0_u16.to_le_bytes());
    let size = bytes.len();
    bytes.resize(size.next_multiple_of(4), 0);
    add["add"]["deletionVector"] =
        json!({"storageType": "i", "pathOrInlineDv": z85(&bytes), "sizeInBytes": size, "cardinality": 1});
    let remove = json!({"remove": {"path": path, "deletionTimestamp": 1, "dataChange": true,
        "extendedFileMetadata": true, "partitionValues": values, "size": add["add"]["size"]}});
    log(&sales, &[protocol(&["deletionVectors"], &["deletionVectors"]), remove, add]).await;
    assert_eq!(sales.rows().await.len(), 2, "another reader misses the row");
    let now = sales.pin(Slice::Partitions([day(MON)].into())).await;
    assert_eq!(sales.read(&now).await.unwrap().len(), 1);
    assert_eq!(sales.read(&whole).await.unwrap().len(), 3, "the version before has it");
    let rows = batch(&[(MON, None, 9, 90)]);
    let staged = stage(&sales.table, "r1", &monday, Intent::Replace, rows).await.unwrap();
    let outcome = commit(&sales.table, &[apply(&staged)], &base).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Conflicted { .. }), "a row went: {outcome:?}");
    let base = sales.table.head(&monday).await.unwrap();
    let kept = done(commit(&sales.table, &[apply(&staged)], &base).await.unwrap()).kept.unwrap();
    assert_eq!(sales.rows().await, texts(&[(MON, None, 9, 90), (TUE, None, 3, 30)]));
    let stamp = reprocess_core::ports::writer::StampId {
        op: reprocess_core::ports::writer::Op::Restore,
        ..stamp("undo", &monday, &Intent::Replace)
    };
    let undo = entry(stamp, &monday, reprocess_core::ports::writer::Change::Restore(kept));
    let base = sales.table.head(&monday).await.unwrap();
    done(commit(&sales.table, &[undo], &base).await.unwrap());
    assert_eq!(sales.rows().await.len(), 2, "the file is back, without the row");
    sales.write("merge", &Scope::whole_table(), by_id(), batch(&[(TUE, None, 3, 33)])).await;
    assert_eq!(sales.rows().await.len(), 2);
}

/// The action of the file of a day in a version of the log.
fn added(sales: &Sales, version: u64, day: &str) -> Json {
    let text = std::fs::read_to_string(sales.path().join(format!("_delta_log/{version:020}.json"))).unwrap();
    let actions = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    actions.into_iter().find(|action| action["add"]["partitionValues"]["day"] == day).unwrap()
}

/// See <https://rfc.zeromq.org/spec/32/>.
fn z85(bytes: &[u8]) -> String {
    let letters = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    let mut text = String::new();
    for chunk in bytes.chunks(4) {
        let word = chunk.iter().fold(0_u64, |word, byte| word * 256 + u64::from(*byte));
        for power in [85_u64.pow(4), 85_u64.pow(3), 85_u64.pow(2), 85, 1] {
            text.push(char::from(letters[usize::try_from(word / power % 85).unwrap()]));
        }
    }
    text
}

/// A new column that needs a feature which the table has not would make it unreadable.
#[tokio::test]
async fn a_new_column_that_needs_a_feature_is_refused() {
    use arrow_array::{RecordBatch, TimestampMicrosecondArray};
    use arrow_schema::{DataType, Field, Schema, TimeUnit};
    use reprocess_core::domain::request::SchemaPolicy;
    use reprocess_core::ports::writer::StageRequest;
    let sales = Sales::new().await;
    let mut fields: Vec<_> = columns().fields().iter().map(|field| field.as_ref().clone()).collect();
    fields.push(Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, None), true));
    let mut arrays = batch(&[(MON, None, 1, 10)]).columns().to_vec();
    arrays.push(std::sync::Arc::new(TimestampMicrosecondArray::from(vec![1])));
    let rows = RecordBatch::try_new(std::sync::Arc::new(Schema::new(fields)), arrays).unwrap();
    let request = StageRequest {
        schema: SchemaPolicy::AddNullable,
        ..request(&sales.table, "r1", &days(&[MON]), Intent::Replace).await
    };
    let error = sales.table.stage(&request, rows.into()).await.unwrap_err();
    assert!(error.to_string().contains("timestampNtz"), "{error}");
}

/// Columns that Delta would keep as others are refused when the table is made.
#[tokio::test]
async fn columns_that_would_come_back_as_others_are_refused() {
    use arrow_schema::{DataType, Field, Schema, TimeUnit};
    for kind in [DataType::UInt64, DataType::Timestamp(TimeUnit::Nanosecond, None), DataType::Date64] {
        let sales = Sales::absent();
        let mut fields: Vec<_> = columns().fields().iter().map(|field| field.as_ref().clone()).collect();
        fields.push(Field::new("odd", kind.clone(), true));
        let error = sales.table.create(&Schema::new(fields).into()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("`odd`"), "{kind}: {error}");
        assert_eq!(sales.table.schema().await.unwrap(), None);
    }
}
