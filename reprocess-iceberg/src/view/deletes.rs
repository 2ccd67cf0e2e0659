//! Which deletes apply to which data files, see "Scan Planning" in the specification of Iceberg.

use std::collections::BTreeMap;
use std::sync::Arc;

use iceberg::spec::{DataContentType, DataFileFormat, PrimitiveLiteral, Struct};

use super::Named;

/// Id of the column of paths in a file of position deletes.
const FILE_PATH: i32 = i32::MAX - 101;

type Few<'a> = Vec<&'a Arc<Named>>;

/// Files of deletes, of the least sequence number first.
#[derive(Default)]
pub(super) struct Deletes<'a> {
    /// Deletion vectors by the path of the data file that they are for.
    vectors: BTreeMap<String, Few<'a>>,
    /// Position deletes that are for one data file.
    of_path: BTreeMap<String, Few<'a>>,
    of_partition: Parts<'a>,
    /// Equality deletes.
    equal_in: Parts<'a>,
    /// Those of a spec without fields, which apply in every partition.
    equal_everywhere: Few<'a>,
}

/// By the id of a spec and values of its fields.
#[allow(
    clippy::disallowed_types,
    reason = "values of the library have no order, and entries are only looked up"
)]
type Parts<'a> = std::collections::HashMap<(i32, &'a Struct), Few<'a>>;

impl<'a> Deletes<'a> {
    pub(super) fn new(deletes: &'a [Arc<Named>]) -> Self {
        let mut sorted: Few<'a> = deletes.iter().collect();
        sorted.sort_by_key(|delete| delete.sequence_number);
        let mut found = Self::default();
        for delete in sorted {
            let part = (delete.spec.spec_id(), delete.file.partition());
            match (delete.file.content_type(), only_path(delete)) {
                (DataContentType::Data, _) => {}
                (DataContentType::EqualityDeletes, _) if delete.spec.is_unpartitioned() => {
                    found.equal_everywhere.push(delete);
                }
                (DataContentType::EqualityDeletes, _) => found.equal_in.entry(part).or_default().push(delete),
                (DataContentType::PositionDeletes, Some(path)) => {
                    let is_vector = delete.file.file_format() == DataFileFormat::Puffin;
                    let of_path = if is_vector { &mut found.vectors } else { &mut found.of_path };
                    of_path.entry(path).or_default().push(delete);
                }
                (DataContentType::PositionDeletes, None) => {
                    found.of_partition.entry(part).or_default().push(delete);
                }
            }
        }
        found
    }

    /// Those that apply to a data file, in the order of their paths.
    pub(super) fn of(&self, data: &'a Named) -> Vec<Arc<Named>> {
        let (path, part) = (data.file.file_path(), (data.spec.spec_id(), data.file.partition()));
        let at_least = |deletes: Option<&'_ Few<'a>>, least: i64| -> Few<'a> {
            let deletes = deletes.map(Vec::as_slice).unwrap_or_default();
            deletes[deletes.partition_point(|delete| delete.sequence_number < least)..].to_vec()
        };
        // Rows may be deleted from a file by the commit that adds it, but not rows that are equal to some.
        let (since, after) = (data.sequence_number, data.sequence_number.saturating_add(1));
        let mut found = at_least(self.vectors.get(path), since);
        // A deletion vector has taken in all position deletes of its file.
        if found.is_empty() {
            found.extend(at_least(self.of_path.get(path), since));
            found.extend(at_least(self.of_partition.get(&part), since));
        }
        found.extend(at_least(self.equal_in.get(&part), after));
        found.extend(at_least(Some(&self.equal_everywhere), after));
        let mut found: Vec<_> = found.into_iter().cloned().collect();
        found.sort_by(|a, b| {
            let place = |delete: &'_ Named| delete.file.content_offset();
            a.file.file_path().cmp(b.file.file_path()).then_with(|| place(a).cmp(&place(b)))
        });
        found
    }
}

/// The data file that all deletes of a file are for, where there is only one.
fn only_path(delete: &Named) -> Option<String> {
    let file = &delete.file;
    if let Some(path) = file.referenced_data_file() {
        return Some(path);
    }
    let (least, most) = (file.lower_bounds().get(&FILE_PATH)?, file.upper_bounds().get(&FILE_PATH)?);
    match (least.literal(), most.literal()) {
        (PrimitiveLiteral::String(least), PrimitiveLiteral::String(most)) if least == most => {
            Some(least.clone())
        }
        _ => None,
    }
}
