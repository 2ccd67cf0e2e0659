//! A way to the server on which the answer to a COMMIT can be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) struct Proxy {
    address: String,
    loses: Arc<AtomicBool>,
}

impl Proxy {
    /// In front of the server of a database.
    pub(crate) async fn before(address: &str) -> Self {
        let options: PgConnectOptions = address.parse().unwrap();
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let loses = Arc::new(AtomicBool::new(false));
        let losing = Arc::clone(&loses);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(carry(client, server, Arc::clone(&losing)));
            }
        });
        Self { address: options.host("127.0.0.1").port(port).to_url_lossy().to_string(), loses }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The answer to the next COMMIT is lost, and the connection with it.
    pub(crate) fn lose_the_next(&self) {
        self.loses.store(true, Ordering::SeqCst);
    }

    /// Whether it was.
    pub(crate) fn has_lost(&self) -> bool {
        !self.loses.load(Ordering::SeqCst)
    }
}

async fn carry(client: TcpStream, server: TcpStream, loses: Arc<AtomicBool>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (lost, is_lost) = watch::channel(false);
    tokio::spawn(ask(from_client, to_server, loses, lost));
    answer(from_server, to_client, is_lost).await;
}

async fn ask(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    loses: Arc<AtomicBool>,
    lost: watch::Sender<bool>,
) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = client.read(&mut bytes).await {
        let asks = bytes[..length].windows(8).any(|word| word == b"; COMMIT");
        if asks && loses.swap(false, Ordering::SeqCst) {
            lost.send(true).unwrap();
        }
        if server.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

async fn answer(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, lost: watch::Receiver<bool>) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = server.read(&mut bytes).await {
        // The server has answered, so that it has committed.
        if *lost.borrow() || client.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}
