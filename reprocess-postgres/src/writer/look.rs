//! Looking at a table whose partitions others may change meanwhile.
//!
//! Which partitions there are is nothing that a snapshot keeps: a reader sees a partition go or come that others detach
//! or attach after its moment. So a reader of a partitioned table locks it as readers do before its moment begins, and
//! has the partitions compared with those that are registered.

use std::sync::atomic::Ordering;

use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::{PostgresTable, lock};
use crate::catalog::Managed;
use crate::config::Tx;

/// How often a look is begun anew.
const MOST_LOOKS: usize = 20;

impl PostgresTable {
    /// A transaction that reads this table at one moment, and the table then. What others did to its partitions until
    /// then is noted.
    pub(crate) async fn look(&self) -> Result<(Tx, Option<Managed>)> {
        for _ in 0..MOST_LOOKS {
            let locks = self.partitioned.load(Ordering::Relaxed);
            let Some(mut tx) = self.begin_look(locks).await? else {
                self.partitioned.store(false, Ordering::Relaxed);
                continue;
            };
            let managed = self.managed(&mut tx).await?;
            let Some(table) = managed.as_ref().filter(|table| table.partitioned) else {
                return Ok((tx, managed));
            };
            if !locks {
                self.partitioned.store(true, Ordering::Relaxed);
                tx.rollback().await?;
            } else if table.has_other_children(&mut tx).await? {
                tx.rollback().await?;
                self.take_on().await?;
            } else {
                return Ok((tx, managed));
            }
        }
        Err(self.in_table(unsettled()))
    }

    /// `None` where there is no table to lock.
    async fn begin_look(&self, locks: bool) -> Result<Option<Tx>> {
        if !locks {
            return self.database.begin_read().await.map(Some);
        }
        match self.database.begin_read_of(&[self.name.quoted()].into()).await {
            Ok(tx) => Ok(Some(tx)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.in_table(e)),
        }
    }

    /// The table in a transaction of several, which locked those of them that are [known](Self::partitioned_name) to be
    /// partitioned.
    pub(crate) async fn looked_at(&self, connection: &mut PgConnection) -> Result<Option<Managed>> {
        let managed = self.managed(connection).await?;
        if let Some(table) = managed.as_ref().filter(|table| table.partitioned)
            && (!self.partitioned.load(Ordering::Relaxed) || table.has_other_children(connection).await?)
        {
            return Err(self.in_table(unsettled()));
        }
        Ok(managed)
    }

    /// The name to lock for readers, where the table is known to be partitioned.
    pub(crate) fn partitioned_name(&self) -> Option<&str> {
        self.partitioned.load(Ordering::Relaxed).then(|| self.name.quoted())
    }

    /// Takes on what others did to the partitions, and notes the keys that may have other rows by that as changed.
    pub(super) async fn take_on(&self) -> Result<()> {
        let mut tx = self.database.begin().await?;
        lock::whole_table(&mut tx, self).await?;
        let Some(managed) = self.managed(&mut tx).await? else { return tx.rollback().await };
        let touched = managed.take_on(&mut tx).await.map_err(|e| {
            self.in_table(e)
                .with_advice("adopt the table again, by a role that owns it: its partitions are others")
        })?;
        if !touched.is_empty() {
            managed.changes().log(&mut tx, &touched).await?;
        }
        tx.commit().await
    }
}

fn unsettled() -> Error {
    Error::new(ErrorKind::Unavailable, "the partitions of the table are being changed")
        .with_advice("try again")
}
