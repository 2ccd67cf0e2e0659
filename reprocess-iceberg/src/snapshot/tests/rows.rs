use iceberg::spec::{FormatVersion, MAIN_BRANCH};

use super::super::with_path;
use super::lab::Lab;

async fn first_rows(lab: &Lab) -> Vec<(String, Option<i64>)> {
    lab.entries().await.into_iter().map(|(name, (_, _, first))| (name, first)).collect()
}

fn named(expected: &[(&str, i64)]) -> Vec<(String, Option<i64>)> {
    expected.iter().map(|(name, first)| ((*name).to_owned(), Some(*first))).collect()
}

#[tokio::test]
async fn rows_keep_their_ids_when_their_manifest_is_written_again() {
    let mut lab = Lab::new(FormatVersion::V3);
    let first = lab.append(11, vec![lab.file(1, "a", 10), lab.file(1, "b", 20), lab.file(1, "c", 30)]).await;
    assert_eq!(first.snapshot.row_range(), Some((0, 60)));
    assert_eq!(first_rows(&lab).await, named(&[("a", 0), ("b", 10), ("c", 30)]));
    let draft = lab.replacing(12, &["b"], vec![lab.file(1, "d", 5)]).await;
    let second = lab.commit(&draft).await;
    // The manifest of the new file comes first; that of the other two takes ids as well, which nobody gets.
    assert_eq!(second.snapshot.row_range(), Some((60, 45)));
    assert_eq!(first_rows(&lab).await, named(&[("a", 0), ("c", 30), ("d", 60)]));
    let draft = lab.replacing(13, &["a"], vec![]).await;
    lab.commit(&draft).await;
    assert_eq!(first_rows(&lab).await, named(&[("c", 30), ("d", 60)]));
    assert_eq!(lab.metadata.next_row_id(), 135);
}

#[tokio::test]
async fn rows_keep_their_ids_when_manifests_are_put_together() {
    let mut lab = Lab::with(FormatVersion::V3, &[("commit.manifest.min-count-to-merge", "3")]);
    lab.append(11, vec![lab.file(3, "c", 10)]).await;
    lab.append(12, vec![lab.file(2, "b", 10)]).await;
    lab.append(13, vec![lab.file(1, "a", 10)]).await;
    let before = first_rows(&lab).await;
    assert_eq!(before, named(&[("a", 20), ("b", 10), ("c", 0)]));
    lab.commit(&lab.draft(14)).await;
    assert_eq!(lab.tip(MAIN_BRANCH).await.manifests.len(), 1);
    assert_eq!(first_rows(&lab).await, before);
}

#[tokio::test]
async fn rows_of_a_table_that_was_upgraded_get_ids_and_keep_them() {
    let mut lab = Lab::new(FormatVersion::V2);
    lab.append(11, vec![lab.file(1, "a", 10), lab.file(1, "b", 20), lab.file(2, "c", 30)]).await;
    lab.put(lab.builder_of().upgrade_format_version(FormatVersion::V3).unwrap());
    let draft = lab.replacing(12, &["a"], vec![lab.file(1, "d", 5)]).await;
    lab.commit(&draft).await;
    assert_eq!(first_rows(&lab).await, named(&[("b", 5), ("c", 25), ("d", 0)]));
    let draft = lab.replacing(13, &["d"], vec![lab.file(1, "e", 1)]).await;
    lab.commit(&draft).await;
    assert_eq!(first_rows(&lab).await, named(&[("b", 5), ("c", 25), ("e", 55)]));
}

#[tokio::test]
async fn a_copied_file_is_the_same_but_for_its_path_and_the_ids_of_its_rows() {
    let mut lab = Lab::new(FormatVersion::V3);
    let mut file = lab.file(1, "a", 10);
    lab.append(11, vec![file.clone()]).await;
    let draft = lab.replacing(12, &["a"], vec![]).await;
    assert_eq!(draft.removed[0].first_row_id, Some(0));
    let copy = with_path(&draft.removed[0].file, &lab.path("copy")).unwrap();
    assert_eq!((copy.file_path(), copy.first_row_id()), (lab.path("copy").as_str(), None));
    file = with_path(&file, &lab.path("copy")).unwrap();
    assert_eq!(copy, file);
}
