//! Data files are encoded beside whoever makes their rows, those of a bounded number of partitions at once.

use std::collections::BTreeMap;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_select::take::take_record_batch;
use futures::TryStreamExt;
use reprocess_core::Result;
use reprocess_core::domain::partition::{PartitionKey, Partitioning};
use reprocess_core::domain::rows::partition_runs;
use reprocess_core::ports::reader::RowStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::broken_promise;

/// How many batches wait between who makes them and who encodes them.
const WAITING: usize = 2;
/// Larger batches are divided, so that one part is encoded while the next is looked at.
pub const ROWS_AT_ONCE: usize = 16_384;

/// What writes rows into the files of a format.
pub trait Sink: Send + 'static {
    /// What becomes of a file that is written.
    type File: Send + 'static;

    /// Takes rows, of which a call has no more than [`ROWS_AT_ONCE`].
    fn write(&mut self, rows: &RecordBatch) -> impl Future<Output = Result<()>> + Send;

    /// Ends the files once all rows are in them, and answers all. Called once; after an error of it follows
    /// [`give_up`](Self::give_up).
    fn close(&mut self) -> impl Future<Output = Result<Vec<Self::File>>> + Send;

    /// Leaves neither an open upload nor a file behind.
    fn give_up(self) -> impl Future<Output = Result<()>> + Send;
}

/// Writes rows in a task of its own.
#[derive(Debug)]
pub struct Encoder<F> {
    rows: mpsc::Sender<Piece>,
    task: JoinHandle<Result<Vec<F>>>,
}

#[derive(Debug)]
enum Piece {
    Rows(RecordBatch),
    /// Without it the rows are not all, and what was written is given up.
    End,
}

impl<F: Send + 'static> Encoder<F> {
    /// Begins to write.
    pub fn start(sink: impl Sink<File = F>) -> Self {
        let (rows, received) = mpsc::channel(WAITING);
        Self { rows, task: tokio::spawn(write_all(sink, received)) }
    }

    /// Takes rows as fast as they can be written.
    pub async fn push(&self, batch: &RecordBatch) -> Result<()> {
        for part in parts_of(batch) {
            // Where the task has failed, its error is told by `finish`.
            if self.rows.send(Piece::Rows(part)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Takes all rows of a stream.
    pub async fn push_all(&self, mut rows: RowStream) -> Result<()> {
        while let Some(batch) = rows.try_next().await? {
            self.push(&batch).await?;
        }
        Ok(())
    }

    /// The files, once all rows are in them.
    pub async fn finish(self) -> Result<Vec<F>> {
        let _ = self.rows.send(Piece::End).await;
        self.task.await.map_err(|e| broken_promise("the task that writes data files ended", e))?
    }

    /// Leaves no open upload behind.
    pub async fn give_up(self) {
        drop(self.rows);
        let _ = self.task.await;
    }
}

async fn write_all<S: Sink>(mut sink: S, mut rows: mpsc::Receiver<Piece>) -> Result<Vec<S::File>> {
    let ended = loop {
        match rows.recv().await {
            Some(Piece::Rows(batch)) => {
                if let Err(e) = sink.write(&batch).await {
                    break Err(e);
                }
            }
            Some(Piece::End) => match sink.close().await {
                Ok(files) => return Ok(files),
                Err(e) => break Err(e),
            },
            None => break Ok(Vec::new()),
        }
    };
    if let Err(e) = sink.give_up().await {
        tracing::warn!(error = %e, "data files that nobody needs could not be removed");
    }
    ended
}

/// Parts that are encoded while the next is looked at.
pub fn parts_of(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let starts = (0..batch.num_rows()).step_by(ROWS_AT_ONCE);
    starts.map(|start| batch.slice(start, ROWS_AT_ONCE.min(batch.num_rows() - start)))
}

/// The rows of a batch by the partitions that they lie in, in the order of those. `in_file` are the same rows with the
/// columns that files have, which are what is divided.
pub fn divided(
    partitioning: &Partitioning,
    batch: &RecordBatch,
    in_file: &RecordBatch,
) -> Result<Vec<(PartitionKey, RecordBatch)>> {
    let mut runs = partition_runs(partitioning, batch)?;
    if runs.len() == 1 {
        return Ok(runs.drain(..).map(|(key, _)| (key, in_file.clone())).collect());
    }
    let mut rows_of = BTreeMap::<_, Vec<u64>>::new();
    for (key, run) in runs {
        rows_of.entry(key).or_default().extend(run.filter_map(|row| u64::try_from(row).ok()));
    }
    let taken = rows_of.into_iter().map(|(key, rows)| {
        let rows = take_record_batch(in_file, &UInt64Array::from(rows));
        Ok((key, rows.map_err(|e| broken_promise("rows of a partition cannot be taken", e))?))
    });
    taken.collect()
}

/// The writers that are open at once, no more than there may be.
#[derive(Debug)]
pub struct Open<K, W> {
    most: usize,
    turn: u64,
    writers: BTreeMap<K, (u64, W)>,
}

impl<K: Ord + Clone, W> Open<K, W> {
    /// No more than so many, and at least one.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), turn: 0, writers: BTreeMap::new() }
    }

    /// The open writer of a key, for which its turn comes.
    pub fn get(&mut self, key: &K) -> Option<&mut W> {
        let (turn, writer) = self.writers.get_mut(key)?;
        self.turn += 1;
        *turn = self.turn;
        Some(writer)
    }

    /// Takes out the writer that waited longest, to be closed, where no further one may be open.
    pub fn make_room(&mut self) -> Option<W> {
        if self.writers.len() < self.most {
            return None;
        }
        let oldest = self.writers.iter().min_by_key(|(_, (turn, _))| *turn)?.0.clone();
        self.writers.remove(&oldest).map(|(_, writer)| writer)
    }

    /// A writer that was opened for a key.
    pub fn insert(&mut self, key: K, writer: W) {
        self.turn += 1;
        self.writers.insert(key, (self.turn, writer));
    }

    /// Takes out the writer of the least key.
    pub fn pop(&mut self) -> Option<W> {
        self.writers.pop_first().map(|(_, (_, writer))| writer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use reprocess_core::Error;

    use super::*;
    use crate::testing::{MON, TUE, batch, by_day, day, lines};

    /// Notes what it was asked for; fails at the row, or at the end, that it is told.
    struct Notes {
        said: Arc<Mutex<Vec<String>>>,
        fails_at: Option<&'static str>,
    }

    impl Notes {
        fn say(&self, what: &str) -> Result<()> {
            self.said.lock().unwrap().push(what.to_owned());
            match self.fails_at {
                Some(place) if place == what => Err(Error::invalid(format!("{what} failed"))),
                _ => Ok(()),
            }
        }
    }

    impl Sink for Notes {
        type File = String;

        async fn write(&mut self, rows: &RecordBatch) -> Result<()> {
            self.say(&format!("write {}", rows.num_rows()))
        }

        async fn close(&mut self) -> Result<Vec<String>> {
            self.say("close").map(|()| vec!["a file".to_owned()])
        }

        async fn give_up(self) -> Result<()> {
            self.say("give up")
        }
    }

    fn sink(fails_at: Option<&'static str>) -> (Notes, Arc<Mutex<Vec<String>>>) {
        let said = Arc::default();
        (Notes { said: Arc::clone(&said), fails_at }, said)
    }

    #[tokio::test]
    async fn large_batches_are_written_in_parts() {
        let (sink, said) = sink(None);
        let encoder = Encoder::start(sink);
        let rows = vec![(MON, 1, None); ROWS_AT_ONCE + 1];
        encoder.push(&batch(&rows)).await.unwrap();
        assert_eq!(encoder.finish().await.unwrap(), ["a file"]);
        assert_eq!(*said.lock().unwrap(), ["write 16384", "write 1", "close"]);
    }

    #[tokio::test]
    async fn what_failed_is_given_up_and_told_at_the_end() {
        for place in ["write 1", "close"] {
            let (sink, said) = sink(Some(place));
            let encoder = Encoder::start(sink);
            for _ in 0..9 {
                encoder.push(&batch(&[(MON, 1, None)])).await.unwrap();
            }
            let error = encoder.finish().await.unwrap_err();
            assert!(error.to_string().contains(place), "{error}");
            assert_eq!(said.lock().unwrap().last().unwrap(), "give up");
        }
    }

    #[tokio::test]
    async fn rows_without_an_end_are_given_up() {
        let (sink, said) = sink(None);
        let encoder = Encoder::start(sink);
        encoder.push(&batch(&[(MON, 1, None)])).await.unwrap();
        encoder.give_up().await;
        assert_eq!(*said.lock().unwrap(), ["write 1", "give up"]);
    }

    #[test]
    fn rows_are_divided_by_their_partitions() {
        let rows = batch(&[(TUE, 1, None), (MON, 2, None), (TUE, 3, None)]);
        let parts = divided(&by_day(), &rows, &rows.project(&[1]).unwrap()).unwrap();
        let parts: Vec<_> = parts.into_iter().map(|(key, rows)| (key, lines(&[rows]))).collect();
        let expected = [(day(MON), vec!["2".to_owned()]), (day(TUE), vec!["1".to_owned(), "3".to_owned()])];
        assert_eq!(parts, expected);
        assert!(divided(&by_day(), &batch(&[]), &batch(&[])).unwrap().is_empty());
    }

    #[test]
    fn the_writer_that_waited_longest_makes_room() {
        let mut open = Open::new(2);
        assert!(open.make_room().is_none());
        open.insert("a", 'A');
        open.insert("b", 'B');
        assert_eq!(open.get(&"a"), Some(&mut 'A'));
        assert_eq!(open.make_room(), Some('B'));
        assert_eq!(open.make_room(), None);
        open.insert("0", '0');
        assert_eq!(open.get(&"b"), None);
        assert_eq!([open.pop(), open.pop(), open.pop()], [Some('0'), Some('A'), None]);
    }
}
