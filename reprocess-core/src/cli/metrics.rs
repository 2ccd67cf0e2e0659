//! What is measured, for Prometheus.

use std::net::SocketAddr;

use metrics_exporter_prometheus::PrometheusBuilder;

use crate::engine::Engine;
use crate::error::{Error, Result};

/// Upper bounds of what is counted of a duration, in seconds.
const SECONDS: [f64; 10] = [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0];

/// Does work and serves what is measured meanwhile, where an address is given.
pub(super) async fn served(
    engine: &Engine,
    address: Option<SocketAddr>,
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    let Some(address) = address else { return work.await };
    let refuse = |e: &dyn std::fmt::Display| {
        Error::invalid(format!("what is measured cannot be served at {address}: {e}"))
    };
    let builder = PrometheusBuilder::new().with_http_listener(address);
    let builder = builder.set_buckets(&SECONDS).map_err(|e| refuse(&e))?;
    let (recorder, server) = builder.build().map_err(|e| refuse(&e))?;
    ::metrics::set_global_recorder(recorder).map_err(|e| refuse(&e))?;
    let measured = async {
        loop {
            if let Err(error) = engine.measure().await {
                tracing::warn!(%error, "the ledger could not be measured");
            }
            engine.look_again().await;
        }
    };
    tokio::select! {
        biased;
        done = work => done,
        ended = server => Err(refuse(&format!("the server ended: {ended:?}"))),
        () = measured => Ok(()),
    }
}
