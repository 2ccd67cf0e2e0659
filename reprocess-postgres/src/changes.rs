//! The log of what changed when: where the versions of tables, partitions and slices come from.
//!
//! A version has two parts. The first is of our commits: each takes the next number of its table and logs it for each
//! key it touched, and a partition has the greatest number logged for a key that overlaps it. Commits to different
//! partitions run beside each other, so the number is taken last, by a row that stays locked until the commit: whoever
//! sees a number sees all that are smaller, and none is left out. The second part is of what others wrote, as the
//! triggers log it. Others are never made to wait, so what they log has no order: it is counted. What is committed is
//! never taken back and never seen in part, so the count of what overlaps a partition grows with each change of it,
//! however late the change is committed, and says which changes those are. A version of the table says for others
//! which of their transactions had ended, as a snapshot of PostgreSQL does.
//!
//! The digest of a partition's rows would do without a log and triggers, but each look at a base would read the rows.

mod foreign;
mod moment;
mod own;

use reprocess_core::Result;
use reprocess_core::domain::ids::PartitionVersion;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::slice::Slice;
use sqlx::PgConnection;

pub(crate) use moment::Moment;
use moment::Others;

use crate::schema::Schema;

const READ: &str = "read the log of changes";
const WRITE: &str = "write the log of changes";

/// The log of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changes<'a> {
    pub(crate) t: i64,
    pub(crate) partitioning: &'a Partitioning,
    /// Where our own tables are.
    pub(crate) schema: &'a Schema,
}

/// Which changes of ours and of others there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) own: i64,
    pub(crate) others: i64,
}

impl Version {
    pub(crate) fn partition(self) -> PartitionVersion {
        let Self { own, others } = self;
        PartitionVersion::new(if others == 0 { own.to_string() } else { format!("{own}.{others}") })
    }
}

/// Versions of keys, and the moment that they are of.
#[derive(Clone, Debug)]
pub(crate) struct Versions {
    pub(crate) keys: Vec<Version>,
    pub(crate) moment: Moment,
}

impl Changes<'_> {
    /// Versions of keys now, in order.
    pub(crate) async fn now(&self, connection: &mut PgConnection, keys: &[PartitionKey]) -> Result<Versions> {
        let keys = keys.iter().map(|key| self.partitioning.check_key(key)).collect::<Result<Vec<_>>>()?;
        let seq = self.seq(connection).await?;
        let own = self.own(connection, &keys, Moment::NOW).await?;
        let foreign = self.foreign(connection, &Others::All).await?;
        let versions = keys.iter().zip(own).map(|(key, own)| {
            let others = foreign.touched.iter().filter(|t| key.overlaps(&t.key)).map(|t| t.weight).sum();
            Version { own, others }
        });
        let others = if foreign.touched.is_empty() { Others::None } else { Others::Ended(foreign.snapshot) };
        Ok(Versions { keys: versions.collect(), moment: Moment { seq, others } })
    }

    /// Version of a slice as of a moment. Where it can no longer be told, since what others did at different times was
    /// put together, it is one that the slice has at no time.
    pub(crate) async fn slice(
        &self,
        connection: &mut PgConnection,
        slice: &Slice,
        at: &Moment,
    ) -> Result<PartitionVersion> {
        let keys = self.keys_of(slice)?;
        let own = self.own(connection, &keys, at.seq).await?.into_iter().max().unwrap_or(0);
        let mut others = 0;
        for touched in self.foreign(connection, &at.others).await?.touched {
            if keys.iter().any(|key| key.overlaps(&touched.key)) {
                if touched.unsure {
                    return Ok(PartitionVersion::new(format!("{own}.?{}", at.table())));
                }
                others += touched.weight;
            }
        }
        Ok(Version { own, others }.partition())
    }

    fn keys_of(&self, slice: &Slice) -> Result<Vec<PartitionKey>> {
        let keys = match (slice, self.partitioning.time()) {
            (Slice::Time(slice), Some((column, calendar))) if slice.column == column => calendar
                .keys_in(&slice.interval)
                .filter_map(|value| self.partitioning.time_key(value))
                .map(|key| {
                    slice.only.bound().fold(key, |key, (column, value)| key.and(column, value.clone()))
                })
                .collect(),
            (Slice::Partitions(keys), _) => keys.iter().cloned().collect(),
            _ => vec![PartitionKey::whole()],
        };
        keys.iter().map(|key| self.partitioning.check_key(key)).collect()
    }

    /// The keys that changed after a moment, or may have.
    pub(crate) async fn since(
        &self,
        connection: &mut PgConnection,
        after: &Moment,
    ) -> Result<Vec<PartitionKey>> {
        let mut keys = self.own_since(connection, after.seq).await?;
        let now = self.foreign(connection, &Others::All).await?.touched;
        let then = self.foreign(connection, &after.others).await?.touched;
        for touched in now {
            let same = |t: &&foreign::Touched| t.key == touched.key && !t.unsure;
            let before: i64 = then.iter().filter(same).map(|t| t.weight).sum();
            if before != touched.weight {
                keys.push(touched.key);
            }
        }
        Ok(keys)
    }

    pub(crate) async fn log_whole(&self, connection: &mut PgConnection) -> Result<i64> {
        self.log(connection, &[PartitionKey::whole()]).await
    }
}
