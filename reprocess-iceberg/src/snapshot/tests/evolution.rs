use iceberg::spec::{
    FormatVersion, Literal, MAIN_BRANCH, PartitionSpec, Schema, Struct, Transform, UnboundPartitionSpec,
};
use reprocess_core::ErrorKind;

use super::super::{Desk, Draft};
use super::lab::{Lab, schema};

/// By the amount from now on, and no longer by the day.
fn by_amount(lab: &mut Lab) {
    let spec = UnboundPartitionSpec::builder().add_partition_field(2, "amount", Transform::Identity).unwrap();
    lab.put(lab.builder_of().add_default_partition_spec(spec.build()).unwrap());
}

fn set_columns(lab: &mut Lab, columns: Schema) {
    lab.put(lab.builder_of().add_schema(columns).unwrap().set_current_schema(-1).unwrap());
}

#[tokio::test]
async fn a_manifest_of_an_older_spec_is_written_again_by_it_and_new_files_by_the_new_one() {
    for format in [FormatVersion::V2, FormatVersion::V3] {
        let mut lab = Lab::new(format);
        lab.append(11, vec![lab.file(1, "a", 10), lab.file(1, "b", 20)]).await;
        by_amount(&mut lab);
        set_columns(&mut lab, schema(&[(1, "day"), (2, "amount"), (3, "note")]));
        let new = lab.file_in(Struct::from_iter([Some(Literal::long(7))]), "n", 5);
        let draft = lab.replacing(12, &["a"], vec![new]).await;
        assert_eq!(draft.removed[0].spec.spec_id(), 0);
        lab.commit(&draft).await;
        let live = lab.live(MAIN_BRANCH).await;
        assert_eq!((live["b"].spec.spec_id(), live["b"].schema.schema_id()), (0, 0));
        assert_eq!((live["n"].spec.spec_id(), live["n"].schema.schema_id()), (1, 1));
        let manifests = lab.tip(MAIN_BRANCH).await.manifests;
        let mut specs: Vec<_> = manifests.iter().map(|manifest| manifest.partition_spec_id).collect();
        specs.sort_unstable();
        assert_eq!(specs, [0, 1]);
    }
}

#[tokio::test]
async fn files_of_a_spec_whose_column_was_dropped_go_without_a_panic() {
    let mut lab = Lab::with(FormatVersion::V2, &[("write.summary.partition-limit", "10")]);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(1, "b", 20)]).await;
    by_amount(&mut lab);
    set_columns(&mut lab, schema(&[(2, "amount")]));
    let draft = lab.replacing(12, &["a"], vec![]).await;
    let assembled = lab.commit(&draft).await;
    assert_eq!(lab.names(MAIN_BRANCH).await, ["b"]);
    let told = &assembled.snapshot.summary().additional_properties;
    assert_eq!(told["partitions.day=1"], "deleted-data-files=1,deleted-records=10,removed-files-size=100");
    let draft = lab.replacing(13, &["b"], vec![]).await;
    lab.commit(&draft).await;
    assert_eq!(lab.names(MAIN_BRANCH).await, Vec::<String>::new());
}

#[tokio::test]
async fn new_files_of_a_spec_whose_column_is_gone_are_refused() {
    let mut lab = Lab::new(FormatVersion::V2);
    let old = lab.metadata.default_partition_spec().clone();
    by_amount(&mut lab);
    set_columns(&mut lab, schema(&[(2, "amount")]));
    let draft = Draft { added: vec![lab.file(1, "a", 10)], added_spec: old, ..lab.draft(11) };
    let tip = lab.tip(MAIN_BRANCH).await;
    assert!(Desk::new().assemble_on(&lab.manifests, lab.head(&tip), &draft).await.is_err());
}

#[tokio::test]
async fn new_columns_become_those_of_the_table_with_the_snapshot_and_only_where_nobody_changed_them() {
    let mut lab = Lab::new(FormatVersion::V2);
    let columns = schema(&[(1, "day"), (2, "amount"), (3, "note")]);
    let draft = Draft { added: vec![lab.file(1, "a", 10)], columns: Some(columns.clone()), ..lab.draft(11) };
    let assembled = lab.assembled(&mut Desk::new(), &draft).await;
    assert_eq!(assembled.snapshot.schema_id(), Some(1));
    lab.change(&assembled);
    assert_eq!(lab.metadata.current_schema_id(), 1);
    assert_eq!(lab.metadata.current_schema().as_struct(), columns.as_struct());
    assert_eq!(lab.live(MAIN_BRANCH).await["a"].schema.schema_id(), 1);

    let late = Draft { columns: Some(schema(&[(1, "day"), (2, "amount"), (3, "other")])), ..lab.draft(12) };
    let late = lab.assembled(&mut Desk::new(), &late).await;
    set_columns(&mut lab, schema(&[(1, "day"), (2, "amount"), (3, "note"), (4, "more")]));
    let refused = late.requirements.iter().filter(|required| required.check(Some(&lab.metadata)).is_err());
    assert_eq!(refused.count(), 2, "neither the columns nor the last id of one are what they were");
}

#[tokio::test]
async fn columns_that_the_table_had_before_come_back_with_their_id() {
    let mut lab = Lab::new(FormatVersion::V2);
    lab.append(11, vec![lab.file(1, "a", 10)]).await;
    set_columns(&mut lab, schema(&[(1, "day"), (2, "amount"), (3, "note")]));
    let same = Draft { columns: Some(lab.metadata.current_schema().as_ref().clone()), ..lab.draft(12) };
    assert_eq!(lab.commit(&same).await.updates.len(), 2, "columns that the table has already are no change");
    let back =
        lab.commit(&Draft { columns: Some(schema(&[(1, "day"), (2, "amount")])), ..lab.draft(13) }).await;
    assert_eq!(back.snapshot.schema_id(), Some(0));
    assert_eq!(lab.metadata.current_schema_id(), 0);
    assert_eq!(lab.metadata.last_column_id(), 3);
}

#[tokio::test]
async fn columns_without_what_the_table_is_partitioned_by_are_refused_by_name() {
    let mut lab = Lab::new(FormatVersion::V2);
    by_amount(&mut lab);
    let draft = Draft { columns: Some(schema(&[(1, "day")])), ..lab.draft(11) };
    let tip = lab.tip(MAIN_BRANCH).await;
    let refused = Desk::new().assemble_on(&lab.manifests, lab.head(&tip), &draft).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.context().any(|(name, value)| (name, value) == ("partition field", "amount")));
}

#[tokio::test]
async fn a_snapshot_is_refused_after_the_default_spec_changed() {
    let mut lab = Lab::new(FormatVersion::V2);
    lab.append(11, vec![lab.file(1, "a", 10)]).await;
    let draft = lab.replacing(12, &["a"], vec![]).await;
    let assembled = lab.assembled(&mut Desk::new(), &draft).await;
    by_amount(&mut lab);
    assert!(assembled.requirements.iter().any(|required| required.check(Some(&lab.metadata)).is_err()));
}

#[tokio::test]
async fn a_table_that_was_upgraded_keeps_its_old_entries_and_goes_on_with_numbers() {
    let mut lab = Lab::new(FormatVersion::V1);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(1, "b", 20), lab.file(2, "c", 30)]).await;
    lab.put(lab.builder_of().upgrade_format_version(FormatVersion::V2).unwrap());
    let draft = lab.replacing(12, &["a"], vec![lab.file(1, "d", 5)]).await;
    lab.commit(&draft).await;
    let entries: Vec<_> = lab.entries().await.into_values().collect();
    assert_eq!(entries, [(11, 0, None), (11, 0, None), (12, 1, None)], "of b, c and d");
    assert_eq!(lab.deleted().await, [("a".to_owned(), 12, 0)]);
}

#[tokio::test]
async fn an_unpartitioned_table_has_one_manifest_for_each_commit() {
    let mut lab = Lab::new(FormatVersion::V2);
    let spec = PartitionSpec::unpartition_spec().into_unbound();
    lab.put(lab.builder_of().add_default_partition_spec(spec).unwrap());
    let file = |name| lab.file_in(Struct::empty(), name, 10);
    let files = vec![file("a"), file("b")];
    let first = lab.append(11, files).await;
    assert_eq!(lab.paths().await.len(), 1);
    assert_eq!(first.snapshot.summary().additional_properties["changed-partition-count"], "1");
    let draft = lab.replacing(12, &["a"], vec![lab.file_in(Struct::empty(), "c", 5)]).await;
    lab.commit(&draft).await;
    assert_eq!(lab.names(MAIN_BRANCH).await, ["b", "c"]);
}
