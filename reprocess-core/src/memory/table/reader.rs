//! Reading the table at pins.

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use futures::{StreamExt, stream};

use super::{MemoryTable, rows};
use crate::domain::ids::{PartitionVersion, TableId, TableVersion};
use crate::domain::slice::{Pin, Slice};
use crate::error::Result;
use crate::ports::reader::{Availability, RowStream, SnapshotReader};

#[async_trait]
impl SnapshotReader for MemoryTable {
    fn table(&self) -> &TableId {
        &self.spec.id
    }

    async fn current(&self) -> Result<TableVersion> {
        Ok(self.lock()?.table_version())
    }

    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        let state = self.lock()?;
        Ok(match state.number(version)? {
            number if number < state.expired_before => Availability::Expired,
            _ => Availability::Readable { until: None },
        })
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let state = self.lock()?;
        let number = state.number(version)?;
        let of = |slice| Ok(PartitionVersion::new(state.slice_version(number, slice)?.to_string()));
        slices.iter().map(of).collect()
    }

    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        let mut state = self.lock()?;
        for pin in pins {
            state.check_pin(pin)?;
        }
        state.held.extend(pins.iter().cloned());
        Ok(())
    }

    async fn release(&self, pins: &[Pin]) -> Result<()> {
        let mut state = self.lock()?;
        pins.iter().for_each(|pin| {
            state.held.remove(pin);
        });
        Ok(())
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let state = self.lock()?;
        let version = state.check_pin(pin)?;
        let schema = state.schema_at(version);
        let batches = rows::flatten(state.slice_at(version, &schema, &pin.slice)?);
        Ok((schema, stream::iter(batches.into_iter().map(Ok)).boxed()))
    }
}
