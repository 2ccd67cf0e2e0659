//! A log and the archive of what it no longer holds, read as one source.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::domain::event_time::{EventTime, LeftOut};
use crate::domain::ids::{PartitionVersion, TableId, TableVersion};
use crate::domain::interval::Interval;
use crate::domain::retention::{Segment, Source, segments};
use crate::domain::schema::conform;
use crate::domain::slice::{Pin, Slice, TimeSlice};
use crate::error::{Error, ErrorKind, Result};
use crate::ports::reader::{Availability, Coverage, RowStream, SnapshotReader};

/// A log and its archive as one source of events: what happened since the log holds everything is read from the log, what
/// happened before from the archive. The two meet at an instant that is part of the version, and at which no event is lost or
/// read twice, since each is read by when it happened.
///
/// Only intervals are read, and only complete ones: the log must have come past the lateness after their end. What
/// neither holds is refused when a plan is made, with the missing span named. Columns are found by name
/// on both sides.
#[derive(Debug)]
pub struct ArchivedLog {
    table: TableId,
    log: Arc<dyn Coverage>,
    archive: Option<Arc<dyn Coverage>>,
    event_time: EventTime,
    margin: TimeDelta,
    schema: SchemaRef,
    left_out: Arc<Mutex<LeftOut>>,
}

/// A version of both.
#[derive(Serialize, Deserialize)]
struct Version {
    log: TableVersion,
    archive: Option<TableVersion>,
    /// What happened from then on is read from the log; `None` where it holds nothing.
    from_log: Option<DateTime<Utc>>,
}

/// What is read of an interval, and the version of its content.
#[derive(Serialize, Deserialize)]
struct Part {
    #[serde(flatten)]
    segment: Segment,
    content: PartitionVersion,
}

/// What one side reads of a pin.
struct Reading<'a> {
    side: &'a Arc<dyn Coverage>,
    interval: Interval,
    pin: Pin,
}

impl ArchivedLog {
    /// A log without an archive, whose events have these columns.
    pub fn new(
        table: impl Into<TableId>,
        schema: SchemaRef,
        log: Arc<dyn Coverage>,
        event_time: EventTime,
    ) -> Self {
        Self {
            table: table.into(),
            log,
            archive: None,
            event_time,
            margin: TimeDelta::zero(),
            schema,
            left_out: Arc::default(),
        }
    }

    /// Adds the archive of what the log no longer holds.
    #[must_use]
    pub fn with_archive(mut self, archive: Arc<dyn Coverage>) -> Self {
        self.archive = Some(archive);
        self
    }

    /// Leaves the oldest part of the log alone, which it may drop before it is read: so much of its time, in milliseconds.
    #[must_use]
    pub fn with_margin_ms(mut self, ms: u32) -> Self {
        self.margin = TimeDelta::milliseconds(ms.into());
        self
    }

    /// Events that were read so far and do not count, by the rule of the event time.
    pub fn left_out(&self) -> LeftOut {
        *self.left_out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where an interval is read, oldest part first.
    async fn segments(&self, version: &Version, interval: Interval) -> Result<Vec<Segment>> {
        let logged = self.log.coverage(&version.log).await?;
        let complete_at = self.event_time.complete_at(&interval);
        if logged.is_none_or(|logged| logged.end() < complete_at) && version.from_log.is_some() {
            let error =
                Error::new(ErrorKind::State, format!("{interval} is not complete before {complete_at}"));
            return Err(error.with_context("table", &self.table).with_retry(true).with_advice(
                "events that belong to it may still come: run it when the log has come so far",
            ));
        }
        let log = version
            .from_log
            .and_then(|from| Interval::new(from, interval.end().max(from + TimeDelta::nanoseconds(1))));
        let archive = match (&self.archive, &version.archive) {
            (Some(archive), Some(version)) => archive.coverage(version).await?,
            _ => None,
        };
        segments(interval, log, archive).map_err(|e| e.with_context("table", &self.table))
    }

    fn side(&self, source: Source, version: &Version) -> Result<(&Arc<dyn Coverage>, TableVersion)> {
        match (source, &self.archive, &version.archive) {
            (Source::Log, ..) => Ok((&self.log, version.log.clone())),
            (Source::Archive, Some(archive), Some(version)) => Ok((archive, version.clone())),
            (Source::Archive, ..) => {
                Err(Error::new(ErrorKind::PinBroken, "the archive is no longer declared")
                    .with_context("table", &self.table))
            }
        }
    }

    async fn parts(&self, version: &Version, slice: &TimeSlice) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for segment in self.segments(version, slice.interval).await? {
            let (side, version) = self.side(segment.source, version)?;
            let contents = side.slice_versions(&version, &[within(slice, &segment)]).await?;
            let content = contents.into_iter().next().ok_or_else(|| {
                Error::internal("a reader answered no version for a slice").with_context("table", &self.table)
            })?;
            parts.push(Part { segment, content });
        }
        Ok(parts)
    }

    /// What each side reads of a pin, oldest part first.
    fn readings(&self, pin: &Pin) -> Result<Vec<Reading<'_>>> {
        let (version, slice) = (self.version(&pin.version)?, self.time_of(&pin.slice)?);
        let parts: Vec<Part> = self.read_text("content", pin.content.as_str())?;
        let reading = |part: Part| {
            let (side, version) = self.side(part.segment.source, &version)?;
            let table = side.table().clone();
            let pin = Pin { table, version, slice: within(slice, &part.segment), content: part.content };
            Ok(Reading { side, interval: part.segment.interval, pin })
        };
        parts.into_iter().map(reading).collect()
    }

    fn time_of<'a>(&self, slice: &'a Slice) -> Result<&'a TimeSlice> {
        match slice {
            Slice::Time(slice) => Ok(slice),
            _ => Err(Error::new(ErrorKind::Unsupported, "events are read by intervals, and by nothing else")
                .with_context("table", &self.table)),
        }
    }

    fn version(&self, version: &TableVersion) -> Result<Version> {
        self.read_text("version", version.as_str())
    }

    fn read_text<T: DeserializeOwned>(&self, what: &str, text: &str) -> Result<T> {
        serde_json::from_str(text).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("`{text}` is no {what} of a log with its archive"))
                .with_context("table", &self.table)
                .with_source(e)
        })
    }

    fn text(&self, of: &impl Serialize) -> Result<String> {
        serde_json::to_string(of).map_err(|e| Error::internal("a version has no text").with_source(e))
    }
}

/// The part of a slice that a segment holds.
fn within(slice: &TimeSlice, segment: &Segment) -> Slice {
    Slice::Time(TimeSlice { interval: segment.interval, ..slice.clone() })
}

#[async_trait]
impl SnapshotReader for ArchivedLog {
    fn table(&self) -> &TableId {
        &self.table
    }

    async fn current(&self) -> Result<TableVersion> {
        let log = self.log.current().await?;
        let logged = self.log.coverage(&log).await?;
        // What happened then may have been taken up to the lead before.
        let lead = TimeDelta::milliseconds(self.event_time.lead_ms.into());
        let archive = match &self.archive {
            Some(archive) => Some(archive.current().await?),
            None => None,
        };
        let from_log = logged.map(|logged| logged.start() + lead + self.margin);
        Ok(TableVersion::new(self.text(&Version { log, archive, from_log })?))
    }

    async fn availability(&self, version: &TableVersion) -> Result<Availability> {
        let version = self.version(version)?;
        let mut all = vec![self.log.availability(&version.log).await?];
        if let (Some(archive), Some(version)) = (&self.archive, &version.archive) {
            all.push(archive.availability(version).await?);
        }
        let mut first = None;
        for one in all {
            match one {
                Availability::Expired => return Ok(Availability::Expired),
                Availability::Readable { until } => first = [first, until].into_iter().flatten().min(),
            }
        }
        Ok(Availability::Readable { until: first })
    }

    async fn slice_versions(
        &self,
        version: &TableVersion,
        slices: &[Slice],
    ) -> Result<Vec<PartitionVersion>> {
        let version = self.version(version)?;
        let mut versions = Vec::new();
        for slice in slices {
            let parts = self.parts(&version, self.time_of(slice)?).await?;
            versions.push(PartitionVersion::new(self.text(&parts)?));
        }
        Ok(versions)
    }

    async fn hold(&self, pins: &[Pin]) -> Result<()> {
        for pin in pins {
            for reading in self.readings(pin)? {
                reading.side.hold(&[reading.pin]).await?;
            }
        }
        Ok(())
    }

    async fn release(&self, pins: &[Pin]) -> Result<()> {
        for pin in pins {
            for reading in self.readings(pin)? {
                reading.side.release(&[reading.pin]).await?;
            }
        }
        Ok(())
    }

    async fn read(&self, pin: &Pin) -> Result<(SchemaRef, RowStream)> {
        let mut all = Vec::new();
        for Reading { side, interval, pin } in self.readings(pin)? {
            let (_, rows) = side.read(&pin).await?;
            let (event_time, schema) = (self.event_time.clone(), Arc::clone(&self.schema));
            let left_out = Arc::clone(&self.left_out);
            let counted = rows.and_then(move |batch| {
                let mut left_out = left_out.lock().unwrap_or_else(PoisonError::into_inner);
                let selected = event_time.select(&batch, &interval, &mut left_out);
                std::future::ready(selected.and_then(|batch| conform(&batch, &schema)))
            });
            all.push(counted);
        }
        Ok((Arc::clone(&self.schema), stream::iter(all).flatten().boxed()))
    }
}

#[cfg(test)]
#[path = "archived_log_tests.rs"]
mod tests;
