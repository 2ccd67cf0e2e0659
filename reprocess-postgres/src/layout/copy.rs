//! Rows of statements, read by COPY.

use std::collections::VecDeque;

use arrow_array::RecordBatch;
use futures::{Stream, StreamExt};
use reprocess_core::{ErrorKind, Result};
use sqlx::PgConnection;

use super::Layout;
use super::decode::Decoder;
use crate::error::{Doing, map};
use crate::sql::{Sql, set};

const WHAT: &str = "read rows";

/// Runs a statement that selects the readable columns of the layout, in order.
pub(crate) async fn read<'c>(
    connection: &'c mut PgConnection,
    sql: Sql,
    layout: &Layout,
    misfit: ErrorKind,
    batch_rows: usize,
) -> Result<Batches<impl Stream<Item = Result<impl AsRef<[u8]>, sqlx::Error>> + Unpin + Send + 'c>> {
    let (text, values) = sql.copied()?;
    set(connection, values, WHAT).await?;
    let copy = format!("COPY (\n{text}\n) TO STDOUT (FORMAT binary)");
    let chunks = connection.copy_out_raw(&copy).await.doing(WHAT)?.fuse();
    let decoder = Decoder::new(layout, misfit, batch_rows);
    Ok(Batches { chunks, decoder, ready: VecDeque::new() })
}

/// The rows of a statement in batches.
pub(crate) struct Batches<S> {
    chunks: S,
    decoder: Decoder,
    ready: VecDeque<RecordBatch>,
}

impl<S, B> Batches<S>
where
    S: Stream<Item = Result<B, sqlx::Error>> + Unpin,
    B: AsRef<[u8]>,
{
    /// The next batch; `None` after the last row. Never an empty one.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some(batch));
            }
            match self.chunks.next().await {
                Some(Ok(bytes)) => self.ready.extend(self.decoder.push(bytes.as_ref())?),
                Some(Err(e)) => return Err(map(e, WHAT)),
                None => return self.decoder.finish(),
            }
        }
    }
}
