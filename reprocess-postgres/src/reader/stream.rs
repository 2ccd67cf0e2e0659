//! Streams of rows that own their connection.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::StreamExt;
use futures::stream;
use reprocess_core::ports::reader::RowStream;
use reprocess_core::{Error, ErrorKind, Result};
use tokio::sync::mpsc;

use crate::config::Tx;
use crate::layout::{Layout, read};
use crate::sql::Sql;

/// How many batches wait for the reader of a stream.
const WAITING_BATCHES: usize = 2;

/// The batch, or `None` at the proper end: a stream that merely stops was cut off.
type Item = Result<Option<RecordBatch>>;

/// The rows of a statement, as its transaction sees them. `misfit` is the error of a value that does not fit its column.
pub(crate) fn stream(
    transaction: Tx,
    sql: Sql,
    layout: Layout,
    misfit: ErrorKind,
    batch_rows: usize,
) -> (SchemaRef, RowStream) {
    let schema = Arc::clone(layout.schema());
    let (send, receive) = mpsc::channel(WAITING_BATCHES);
    tokio::spawn(async move {
        if let Err(e) = pump(transaction, sql, layout, misfit, batch_rows, &send).await {
            // Nobody listens any more where this fails.
            send.send(Err(e)).await.ok();
        }
    });
    let rows = stream::unfold(Some(receive), |receive| async {
        let mut receive = receive?;
        match receive.recv().await {
            Some(Ok(Some(batch))) => Some((Ok(batch), Some(receive))),
            Some(Ok(None)) => None,
            Some(Err(e)) => Some((Err(e), None)),
            None => Some((Err(Error::new(ErrorKind::Unavailable, "a read was cut off")), None)),
        }
    });
    (schema, rows.boxed())
}

async fn pump(
    mut transaction: Tx,
    sql: Sql,
    layout: Layout,
    misfit: ErrorKind,
    batch_rows: usize,
    send: &mpsc::Sender<Item>,
) -> Result<()> {
    let mut batches = read(&mut transaction, sql, &layout, misfit, batch_rows).await?;
    while let Some(batch) = batches.next().await? {
        if send.send(Ok(Some(batch))).await.is_err() {
            return Ok(());
        }
    }
    drop(batches);
    transaction.rollback().await?;
    send.send(Ok(None)).await.ok();
    Ok(())
}
