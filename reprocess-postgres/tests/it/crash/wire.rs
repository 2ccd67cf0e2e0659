//! A way to the server on which what clients say is counted, and on which one connection ends at a chosen word.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server ends it before it hears the word.
    BeforeTheWord,
    /// The server has answered, and the answer is lost.
    AfterTheWord,
}

/// At which word of all that are said over this way; 0 for none.
#[derive(Debug)]
struct Plan {
    server: String,
    database: String,
    end: End,
    at: AtomicU64,
    said: AtomicU64,
}

pub(super) struct Wire {
    address: String,
    plan: Arc<Plan>,
}

impl Wire {
    pub(super) async fn before(address: &str, end: End) -> Self {
        let options: PgConnectOptions = address.parse().unwrap();
        let plan = Arc::new(Plan {
            server: format!("{}:{}", options.get_host(), options.get_port()),
            database: address.to_owned(),
            end,
            at: AtomicU64::new(0),
            said: AtomicU64::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let listening = Arc::clone(&plan);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, Arc::clone(&listening)));
            }
        });
        Self { address: options.host("127.0.0.1").port(port).to_url_lossy().to_string(), plan }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Counts anew, and ends the connection on which the word of this number is said.
    pub(super) fn end_at(&self, word: u64) {
        self.plan.said.store(0, Ordering::SeqCst);
        self.plan.at.store(word, Ordering::SeqCst);
    }

    /// How many words were said.
    pub(super) fn said(&self) -> u64 {
        self.plan.said.load(Ordering::SeqCst)
    }
}

/// Carries words and answers until either side leaves or the connection is to end.
async fn carry(mut client: TcpStream, plan: Arc<Plan>) {
    let mut server = TcpStream::connect(&plan.server).await.unwrap();
    let (mut word, mut answer) = (vec![0; 65_536], vec![0; 65_536]);
    let (mut backend, mut ends) = (None, false);
    loop {
        tokio::select! {
            read = client.read(&mut word) => {
                let Ok(length @ 1..) = read else { return };
                let number = plan.said.fetch_add(1, Ordering::SeqCst) + 1;
                ends |= number == plan.at.load(Ordering::SeqCst);
                if ends && plan.end == End::BeforeTheWord {
                    terminate(&plan.database, backend.unwrap()).await;
                    ends = false;
                }
                // A server that is gone has left its reason to be read.
                let _ = server.write_all(&word[..length]).await;
            }
            read = server.read(&mut answer) => {
                let Ok(length @ 1..) = read else { return };
                backend = backend.or_else(|| backend_of(&answer[..length]));
                if ends || client.write_all(&answer[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The process that the server says it has for the connection, among its first answers.
fn backend_of(answer: &[u8]) -> Option<i32> {
    let key = answer.windows(9).find(|bytes| bytes.starts_with(b"K\0\0\0\x0c"))?;
    Some(i32::from_be_bytes(key[5..9].try_into().unwrap()))
}

async fn terminate(address: &str, backend: i32) {
    let mut raw = PgConnection::connect(address).await.unwrap();
    let ended: bool = sqlx::query_scalar("SELECT pg_terminate_backend($1, 10000)")
        .bind(backend)
        .fetch_one(&mut raw)
        .await
        .unwrap();
    assert!(ended, "the server did not end a connection");
    raw.close().await.unwrap();
}
