//! The part of a table that a pin names.

use std::collections::BTreeMap;

use arrow_schema::SchemaRef;

use super::rows::{self, Parts};
use super::state::State;
use crate::domain::effective::EffectiveRows;
use crate::domain::partition::PartitionKey;
use crate::domain::slice::{Pin, Slice};
use crate::error::{Error, ErrorKind, Result};

impl State {
    /// The rows of a slice at a version, by partition.
    pub(super) fn slice_at(&self, version: u64, schema: &SchemaRef, slice: &Slice) -> Result<Parts> {
        self.check_slice(slice)?;
        let parts = self.rows_at(version, schema, |key| slice.holds(key))?;
        narrow(parts, slice)
    }

    /// The version that last changed the rows of a slice, up to a version.
    pub(super) fn slice_version(&self, version: u64, slice: &Slice) -> Result<u64> {
        self.check_slice(slice)?;
        let wanted = |key: &PartitionKey| slice.holds(key);
        if whole_partitions(slice) {
            return Ok(self.last_change(version, wanted));
        }
        let mut last = self.last_change(version, wanted);
        while last > 0 && self.slice_content(last, slice)? == self.slice_content(last - 1, slice)? {
            last = self.last_change(last - 1, wanted);
        }
        Ok(last)
    }

    fn check_slice(&self, slice: &Slice) -> Result<()> {
        slice.check(&self.spec.partitioning).map_err(|e| e.with_context("table", &self.spec.id))
    }

    fn slice_content(&self, version: u64, slice: &Slice) -> Result<BTreeMap<Vec<u8>, u64>> {
        let parts = self.slice_at(version, &self.schema_at(version), slice)?;
        rows::multiset(&rows::flatten(parts))
    }

    /// The number of the version of a pin that can be read and whose content is what the pin says.
    pub(super) fn check_pin(&self, pin: &Pin) -> Result<u64> {
        let version = self.check_readable(pin)?;
        if self.slice_version(version, &pin.slice)?.to_string() != pin.content.as_str() {
            return Err(broken(pin, "the pin names another content than its version has"));
        }
        Ok(version)
    }

    pub(super) fn check_readable(&self, pin: &Pin) -> Result<u64> {
        if pin.table != self.spec.id {
            return Err(Error::invalid(format!("the pin is of table `{}`", pin.table))
                .with_context("table", &self.spec.id));
        }
        let version = self.number(&pin.version)?;
        if version < self.expired_before && !self.held.contains(pin) {
            return Err(broken(pin, "the version of the pin has expired"));
        }
        Ok(version)
    }
}

pub(super) fn broken(pin: &Pin, message: &str) -> Error {
    Error::new(ErrorKind::PinBroken, message)
        .with_context("table", &pin.table)
        .with_context("version", &pin.version)
        .with_context("slice", &pin.slice)
        .with_advice("plan again with current inputs")
}

/// Whether the slice takes whole partitions.
fn whole_partitions(slice: &Slice) -> bool {
    !matches!(slice, Slice::AsOf(_))
}

/// Takes the rows of a slice out of those of its partitions.
pub(super) fn narrow(parts: Parts, slice: &Slice) -> Result<Parts> {
    let Slice::AsOf(slice) = slice else {
        return Ok(parts.into_iter().filter(|(key, _)| slice.holds(key)).collect());
    };
    let mut effective = EffectiveRows::new(slice);
    parts.values().flatten().try_for_each(|batch| effective.observe(batch))?;
    let mut found = Parts::new();
    for (key, batches) in parts {
        for batch in &batches {
            let picks: Vec<_> = effective.rows(batch)?.into_iter().map(|row| (0, row)).collect();
            found.entry(key.clone()).or_default().extend(rows::pick(&[batch], &picks)?);
        }
    }
    Ok(found)
}
