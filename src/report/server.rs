//! The HTTP endpoints: metrics, health, status as JSON, and a page.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use tokio::net::TcpListener;

use super::access::{Access, Token};
use super::connections::{self, Limits};
use super::metrics::Metrics;
use super::page;
use super::published::{Lock, Published, Reading, Snapshot};
use super::sentence;
use crate::model::time::elapsed;

/// Bytes of a request's body. Nothing here reads one.
const BODY: u64 = 64 * 1024;

/// The state that the handlers read.
#[derive(Clone)]
pub struct Endpoints {
    /// The shell's snapshots.
    pub published: Published,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// A loop that has not turned for this long is not healthy.
    pub stuck_after: Duration,
}

/// Binds the address.
///
/// # Errors
/// When it is taken or not allowed.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until the future is dropped. Off loopback all but `/metrics` and `/-/` needs the token.
pub async fn serve(listener: TcpListener, endpoints: Endpoints, token: Option<Token>) {
    let address = match listener.local_addr() {
        Ok(address) => address,
        Err(error) => {
            return tracing::error!(
                "the HTTP endpoints are not served: the listener's own address can't be read: {error}; restart tpu-watchdog"
            );
        }
    };
    let router = router(endpoints, Access::new(address, token));
    connections::serve(listener, router, Limits::default()).await;
}

fn router(endpoints: Endpoints, access: Access) -> Router {
    Router::new()
        .route(
            "/",
            get(async |State(e): State<Endpoints>| {
                Html(page::render(&e.published.get(), Timestamp::now()))
            }),
        )
        .route("/metrics", get(metrics))
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .route("/api/v1/status", get(status))
        .with_state(endpoints)
        .layer(from_fn_with_state(Arc::new(access), guard))
}

/// Stands before every path, also before those that do not exist.
async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    if let Err(refused) = access.check(request.uri(), request.headers()) {
        return refused.into_response();
    }
    if request.body().size_hint().lower() > BODY {
        return (StatusCode::PAYLOAD_TOO_LARGE, "a request may have a body of at most 64 KiB\n")
            .into_response();
    }
    next.run(request).await
}

async fn metrics(State(endpoints): State<Endpoints>) -> Response {
    let text = endpoints.metrics.render(&endpoints.published.get());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn healthy(State(endpoints): State<Endpoints>) -> (StatusCode, String) {
    match endpoints.published.get().turned_at {
        Some(at) if elapsed(at, Timestamp::now()) > endpoints.stuck_after => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the main loop has made no progress since {at}\n"),
        ),
        _ => (StatusCode::OK, "ok\n".to_owned()),
    }
}

async fn ready(State(endpoints): State<Endpoints>) -> (StatusCode, String) {
    match readiness(&endpoints.published.get()) {
        Ok(text) => (StatusCode::OK, format!("{text}\n")),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// Whether the watchdog can do its work, or why it can't. A standby can: it would take over.
fn readiness(snapshot: &Snapshot) -> Result<&'static str, String> {
    let reason = match (&snapshot.lock, &snapshot.reading) {
        (Lock::StandingBy(_), _) => return Ok("standing by: another watchdog holds the lock"),
        _ if snapshot.store_failing => {
            "the journal can't be read or written: nothing is done to any TPU; the log says why"
        }
        (Lock::Unknown, _) => "the journal is not read yet, and the lock not taken",
        (Lock::Held, Reading::NotYet) => "the first poll is not done",
        (Lock::Held, Reading::Failed(failure)) => {
            return Err(format!(
                "no zone could be read since the start: {failure}; the log has the answer of the API"
            ));
        }
        (Lock::Held, Reading::Done) => return Ok("ok"),
    };
    Err(reason.to_owned())
}

async fn status(State(endpoints): State<Endpoints>) -> Response {
    let mut document = endpoints.published.get().status.clone();
    sentence::fill(&mut document, Timestamp::now());
    match serde_json::to_string(&document) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_what_can_read_the_journal_and_the_api_or_would_take_over() {
        let ready = |lock: Lock, store_failing: bool, reading: Reading| {
            readiness(&Snapshot { lock, store_failing, reading, ..Snapshot::default() })
        };
        let standing_by = Lock::StandingBy("vm-1:7:aa".into());
        let failed = Reading::Failed("us-central2-b: permission".into());
        assert_eq!(ready(Lock::Held, false, Reading::Done), Ok("ok"));
        assert!(ready(standing_by, false, Reading::NotYet).is_ok());
        for (lock, store_failing, reading, words) in [
            (Lock::Unknown, false, Reading::NotYet, "the journal is not read yet"),
            (Lock::Unknown, true, Reading::NotYet, "can't be read or written"),
            (Lock::Held, true, Reading::Done, "can't be read or written"),
            (Lock::Held, false, Reading::NotYet, "the first poll is not done"),
            (Lock::Held, false, failed, "since the start: us-central2-b: permission"),
        ] {
            let reason = ready(lock, store_failing, reading).unwrap_err();
            assert!(reason.contains(words), "{reason}");
        }
    }
}
