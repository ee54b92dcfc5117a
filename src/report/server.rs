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
use super::published::{Lock, Published};
use crate::model::time::elapsed;

/// Bytes of a request's body. Nothing here reads one.
const BODY: u64 = 64 * 1024;

/// What the handlers read.
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
        Some(at) if elapsed(at, Timestamp::now()) > endpoints.stuck_after => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("the loop has not turned since {at}\n"))
        }
        _ => (StatusCode::OK, "ok\n".to_owned()),
    }
}

async fn ready(State(endpoints): State<Endpoints>) -> (StatusCode, &'static str) {
    let snapshot = endpoints.published.get();
    if matches!(snapshot.lock, Lock::StandingBy(_)) {
        (StatusCode::OK, "standing by: another watchdog holds the lock\n")
    } else if snapshot.store_failing {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the journal can't be written: nothing is done to any TPU\n",
        )
    } else if snapshot.polls == 0 {
        (StatusCode::SERVICE_UNAVAILABLE, "the first poll is not done\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

async fn status(State(endpoints): State<Endpoints>) -> Response {
    match serde_json::to_string(&endpoints.published.get().status) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
