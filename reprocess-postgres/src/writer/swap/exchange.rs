//! The exchange itself, in the transaction of the commit.

use reprocess_core::domain::partition::PartitionKey;
use reprocess_core::ports::writer::{Change, CommitEntry};
use reprocess_core::{Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::{LOCK_WAIT, Swap, Swapped, is_crowded};
use crate::catalog::{Exclusive, Managed};
use crate::layout::quoted;
use crate::shadow::{self, BOUNDS, Found, index_name, rows_name};
use crate::sql::Statement;
use crate::writer::PostgresTable;
use crate::writer::keep::{self, KeptEntry};

const WHAT: &str = "swap a partition";

/// What an exchange came to.
#[derive(Debug)]
pub(in crate::writer) enum Exchange {
    Done(Swapped),
    /// Others have changed which partitions there are.
    OtherChildren,
    /// Why the rows have to be inserted.
    No(String),
}

/// One partition with the staged set that takes its place.
struct Pair {
    entry: CommitEntry,
    set: Found,
    place: Exclusive,
    key: PartitionKey,
}

impl Swap {
    /// Puts the sets of the entries in the place of their partitions. The replaced rows are kept under the number, or
    /// left for the next sweep.
    pub(in crate::writer) async fn exchange(
        &self,
        table: &PostgresTable,
        connection: &mut PgConnection,
        managed: &Managed,
        entries: &[CommitEntry],
        kept: Option<i64>,
    ) -> Result<Exchange> {
        let exchanged = self.try_exchange(table, connection, managed, entries, kept).await;
        match exchanged {
            // Whatever a server says against it: the rows can still be inserted.
            Err(e)
                if !is_crowded(&e)
                    && matches!(
                        e.kind(),
                        ErrorKind::Invalid
                            | ErrorKind::Unsupported
                            | ErrorKind::NotFound
                            | ErrorKind::Internal
                    ) =>
            {
                Ok(Exchange::No(e.to_string()))
            }
            exchanged => exchanged,
        }
    }

    async fn try_exchange(
        &self,
        table: &PostgresTable,
        connection: &mut PgConnection,
        managed: &Managed,
        entries: &[CommitEntry],
        kept: Option<i64>,
    ) -> Result<Exchange> {
        let pairs = self.pairs(table, connection, entries).await?;
        if pairs.is_empty() {
            return Ok(Exchange::Done(Swapped::default()));
        }
        for pair in &pairs {
            verify(connection, &pair.set).await?;
        }
        Statement::new(LOCK_WAIT).execute(connection, WHAT).await?;
        let lock = format!("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE", managed.name.quoted());
        Statement::new(lock).execute(connection, WHAT).await?;
        if managed.has_other_children(connection).await? {
            return Ok(Exchange::OtherChildren);
        }
        let mut swapped = Swapped::default();
        for mut pair in pairs {
            let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", pair.place.quoted());
            Statement::new(lock).execute(connection, WHAT).await?;
            match managed.exclusive(connection, &pair.key).await? {
                // Another swap may have been there in between.
                Ok(now) if now.is_like(&pair.place) => pair.place = now,
                Ok(_) => {
                    let name = &pair.place.name;
                    return Ok(Exchange::No(format!(
                        "the partition `{name}` was altered since the rows were staged"
                    )));
                }
                Err(why) => return Ok(Exchange::No(why)),
            }
            pair.exchange(connection, managed, kept).await?;
            swapped.stamps.push(pair.entry.stamp);
            swapped.touched.push(pair.key);
        }
        Ok(Exchange::Done(swapped))
    }

    async fn pairs(
        &self,
        table: &PostgresTable,
        connection: &mut PgConnection,
        entries: &[CommitEntry],
    ) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        for entry in entries.iter().filter(|entry| self.sets.iter().any(|(stamp, _)| *stamp == entry.stamp)) {
            let Change::Apply(staged) = &entry.change else { continue };
            let keys = entry.scope.partitions();
            let [key] = keys.as_slice() else { continue };
            let set = shadow::take(connection, table, &staged.id).await?;
            let set = set
                .filter(|set| set.staged.digest == staged.digest)
                .ok_or_else(|| shadow::gone(&staged.id))?;
            if let Some(waiting) = &set.waiting {
                let place = waiting.place.clone();
                pairs.push(Pair { entry: entry.clone(), key: key.clone(), place, set });
            }
        }
        Ok(pairs)
    }
}

/// Nobody but us writes the rows, so that they can be counted before everyone has to wait.
async fn verify(connection: &mut PgConnection, set: &Found) -> Result<()> {
    let (there,): (i64,) = Statement::new(format!("SELECT count(*) FROM {}", set.rows))
        .one(connection, "count the rows of a commit")
        .await?;
    if there == set.row_count {
        return Ok(());
    }
    let message = format!("{there} of {} staged rows are there", set.row_count);
    Err(Error::new(ErrorKind::Storage, message).with_context("staged", &set.staged.id))
}

impl Pair {
    async fn exchange(
        &self,
        connection: &mut PgConnection,
        managed: &Managed,
        kept: Option<i64>,
    ) -> Result<()> {
        let (n, place) = (self.set.n, &self.place);
        let (parent, ours) = (managed.name.quoted(), quoted(managed.schema.name()));
        let theirs = quoted(&place.schema);
        // Names that nobody has, for the way between two schemas.
        let (old, new) = (format!("reprocess_old_{n}"), format!("reprocess_new_{n}"));
        let mut steps = vec![
            format!("ALTER TABLE {parent} DETACH PARTITION {}", place.quoted()),
            format!("ALTER TABLE {parent} ATTACH PARTITION {} {}", self.set.rows, place.bounds),
            format!("ALTER TABLE {} DROP CONSTRAINT {BOUNDS}", self.set.rows),
            format!("ALTER TABLE {} RENAME TO {old}", place.quoted()),
            format!("ALTER TABLE {} RENAME TO {new}", self.set.rows),
        ];
        for (number, index) in place.indexes.iter().enumerate() {
            steps.push(format!("ALTER INDEX {theirs}.{} RENAME TO {old}_{number}", quoted(&index.name)));
        }
        steps.push(format!("ALTER TABLE {theirs}.{old} SET SCHEMA {ours}"));
        steps.push(format!("ALTER TABLE {ours}.{new} SET SCHEMA {theirs}"));
        for (number, index) in place.indexes.iter().enumerate() {
            let name = index_name(n, number);
            steps.push(format!("ALTER INDEX {theirs}.{name} RENAME TO {}", quoted(&index.name)));
        }
        steps.push(format!("ALTER TABLE {theirs}.{new} RENAME TO {}", quoted(&place.name)));
        for step in steps {
            Statement::new(step).execute(connection, WHAT).await?;
        }
        self.put_away(connection, managed, kept, &format!("{ours}.{old}")).await?;
        let (relation,): (i64,) = Statement::new("SELECT to_regclass($1)::oid::bigint")
            .bind(place.quoted())
            .one(connection, WHAT)
            .await?;
        managed.exchange_child(connection, place.relation, relation).await
    }

    /// What was replaced gets the name of kept rows, or that of the staged set, which the next sweep removes.
    async fn put_away(
        &self,
        connection: &mut PgConnection,
        managed: &Managed,
        kept: Option<i64>,
        old: &str,
    ) -> Result<()> {
        let name = match kept {
            Some(kept) => {
                let within = vec![self.entry.scope.clone()];
                let entry = KeptEntry { touched: vec![self.key.clone()], within, merge: None };
                let number = self.set.n.to_string();
                let slot = keep::register_alone(connection, managed, kept, &entry, &number).await?;
                Statement::new(slot.marks(old)).execute(connection, WHAT).await?;
                slot.rows().to_owned()
            }
            None => rows_name(&managed.schema, self.set.n),
        };
        let name = name.rsplit('.').next().unwrap_or_default();
        Statement::new(format!("ALTER TABLE {old} RENAME TO {name}")).execute(connection, WHAT).await?;
        Ok(())
    }
}
