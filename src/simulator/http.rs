//! The HTTP skin: the real REST protocol over the pure model, driven by the wall clock, with a hook
//! for faults and a log.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use jiff::Timestamp;
use serde_json::Value;
use tokio::net::TcpListener;

use super::api;
use super::cloud::Cloud;
use super::wire::{Reply, Request};
use super::{metadata, rights, storage};

/// The metadata server looks for a change so often, and answers without one after so long.
const LOOKS_AGAIN: Duration = Duration::from_millis(20);
const WAITS_FOR_CHANGE: Duration = Duration::from_secs(60);

/// A request, for the log and for faults.
#[derive(Debug, Clone)]
pub struct Logged {
    /// When.
    pub at: Timestamp,
    /// Method.
    pub method: String,
    /// Path with its query.
    pub path: String,
    /// Which of the simulator's doors it came through.
    pub door: &'static str,
    /// It carried this simulator's own access token.
    pub authorized: bool,
    /// Status of the answer; none when there was none.
    pub status: Option<u16>,
}

impl Logged {
    /// Whether it changes the world.
    pub fn is_mutation(&self) -> bool {
        // Objects in buckets are not what is meant.
        self.path.starts_with("/v")
            && (matches!(self.method.as_str(), "DELETE" | "PATCH")
                || self.method == "POST"
                    && ![":getGuestAttributes", ":testIamPermissions"]
                        .iter()
                        .any(|read| self.path.contains(read)))
    }
}

/// A fault in place of the regular answer.
pub enum Fault {
    /// Carried out, and answered like this.
    AnswerAfter(Reply),
    /// Not carried out, and answered like this.
    AnswerBefore(Reply),
    /// Not carried out, never answered.
    Hang,
    /// Carried out; then this is called, and the connection breaks.
    After(Box<dyn FnOnce() + Send>),
    /// This is called, and the connection breaks; not carried out.
    Before(Box<dyn FnOnce() + Send>),
}

/// Decides about faults, request by request.
pub type Hook = Box<dyn FnMut(&Logged) -> Option<Fault> + Send>;

/// A simulator that can be looked into while it serves.
#[derive(Clone)]
pub struct Simulator {
    cloud: Arc<Mutex<Cloud>>,
    hook: Arc<Mutex<Option<Hook>>>,
    log: Arc<Mutex<Vec<Logged>>>,
    door: &'static str,
}

impl Simulator {
    /// Over a cloud.
    pub fn new(cloud: Cloud) -> Self {
        Simulator {
            cloud: Arc::new(Mutex::new(cloud)),
            hook: Arc::default(),
            log: Arc::default(),
            door: "",
        }
    }

    /// Looks into (or changes) the cloud, as of now.
    pub fn with<T>(&self, look: impl FnOnce(&mut Cloud) -> T) -> T {
        let mut cloud = self.cloud.lock().unwrap_or_else(PoisonError::into_inner);
        cloud.advance(Timestamp::now());
        for line in std::mem::take(&mut cloud.struck) {
            tracing::info!("{line}");
        }
        look(&mut cloud)
    }

    /// Sets or clears the faults.
    pub fn set_hook(&self, hook: Option<Hook>) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// Everything that was asked so far.
    pub fn log(&self) -> Vec<Logged> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same simulator with another name for the requests that come in here.
    pub fn door(&self, door: &'static str) -> Simulator {
        Simulator { door, ..self.clone() }
    }

    /// Serves until the future is dropped.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        axum::serve(listener, Router::new().fallback(answer).with_state(self)).await
    }

    /// Binds a loopback address.
    ///
    /// # Errors
    /// When it is taken.
    pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
        TcpListener::bind(address).await
    }

    /// A read that waits for a change (`wait_for_change=true&last_etag=…`) is answered when there is
    /// one, or its time is over.
    async fn answer(&self, method: &str, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Reply {
        let ends = tokio::time::Instant::now() + WAITS_FOR_CHANGE;
        loop {
            let reply = self.carry_out(method, uri, headers, body);
            let query = query(uri.query().unwrap_or_default());
            let etag = reply.headers.iter().find(|(name, _)| *name == "etag").map(|(_, etag)| etag);
            let waits = query.get("wait_for_change").is_some_and(|waits| waits == "true")
                && etag.is_some()
                && query.get("last_etag") == etag;
            if !waits || tokio::time::Instant::now() >= ends {
                return reply;
            }
            tokio::time::sleep(LOOKS_AGAIN).await;
        }
    }

    fn carry_out(&self, method: &str, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Reply {
        let path = uri.path().trim_start_matches('/').to_owned();
        let query = query(uri.query().unwrap_or_default());
        self.with(|cloud| {
            let json = |status: u16, body: &Value| Reply {
                status,
                headers: vec![("content-type", "application/json; charset=UTF-8".into())],
                body: body.to_string().into_bytes(),
            };
            if ["v1/", "v2/", "v2alpha1/", "v3/"].iter().any(|version| path.starts_with(version)) {
                let body =
                    if body.is_empty() { Ok(None) } else { serde_json::from_slice(body).map(Some) };
                let Ok(body) = body else {
                    let (status, body) = super::shape::error(
                        400,
                        "Invalid JSON payload received. Unexpected token.",
                    );
                    return json(status, &body);
                };
                let path = decode(&path);
                let (status, body) =
                    api::handle(cloud, &Request { method, path: &path, query: &query, body });
                return json(status, &body);
            }
            if let Some(rest) = path.strip_prefix("metadata/") {
                let (status, text) =
                    metadata::handle(cloud, method, rest, &String::from_utf8_lossy(body));
                let etag = metadata::etag(&text);
                let mut reply = Reply::new(status, text);
                reply.headers.push(("etag", etag));
                return reply;
            }
            if path == metadata::TOKEN_PATH {
                return json(200, &metadata::token());
            }
            if path == metadata::EMAIL_PATH {
                return Reply::new(200, metadata::EMAIL.to_owned());
            }
            if let Some(bucket) = path.strip_prefix("storage/v1/b/") {
                let (status, body) = rights::bucket(cloud, bucket);
                return json(status, &body);
            }
            if method == "GET" && query.contains_key("list-type") {
                let body = storage::list(cloud, path.trim_end_matches('/'), &query).into_bytes();
                return Reply {
                    status: 200,
                    headers: vec![("content-type", "application/xml".into())],
                    body,
                };
            }
            if method == "POST" && query.contains_key("delete") {
                return storage::delete_all(
                    cloud,
                    path.trim_end_matches('/'),
                    &String::from_utf8_lossy(body),
                );
            }
            if path.contains('/') {
                let header =
                    |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
                return storage::object(cloud, method, &decode(&path), header, body);
            }
            Reply::new(404, "not found")
        })
    }
}

async fn answer(
    State(simulator): State<Simulator>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let authorized = headers
        .get("authorization")
        .is_some_and(|v| v.as_bytes() == format!("Bearer {}", metadata::TOKEN).as_bytes());
    // Clients write the names of objects in different ways.
    let path =
        if uri.path().starts_with("/v") { uri.to_string() } else { decode(&uri.to_string()) };
    let mut logged = Logged {
        at: Timestamp::now(),
        method: method.to_string(),
        path,
        door: simulator.door,
        authorized,
        status: None,
    };
    let fault = simulator
        .hook
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_mut()
        .and_then(|hook| hook(&logged));
    let log =
        |logged: Logged| simulator.log.lock().unwrap_or_else(PoisonError::into_inner).push(logged);
    let reply = match fault {
        None => simulator.answer(method.as_str(), &uri, &headers, &body).await,
        Some(Fault::AnswerBefore(reply)) => reply,
        Some(Fault::AnswerAfter(reply)) => {
            simulator.carry_out(method.as_str(), &uri, &headers, &body);
            reply
        }
        Some(Fault::Hang) => {
            log(logged);
            return std::future::pending().await;
        }
        Some(Fault::Before(then)) => {
            log(logged);
            then();
            return broken();
        }
        Some(Fault::After(then)) => {
            simulator.carry_out(method.as_str(), &uri, &headers, &body);
            log(logged);
            then();
            return broken();
        }
    };
    logged.status = Some(reply.status);
    if logged.is_mutation() {
        tracing::info!("{} {} -> {}", logged.method, logged.path, reply.status);
    }
    log(logged);
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in reply.headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// An answer that breaks off: the client can't tell what became of its call.
fn broken() -> Response<Body> {
    let error = std::io::Error::other("the connection breaks");
    Response::new(Body::from_stream(futures::stream::iter([Err::<Bytes, _>(error)])))
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text
        .split('&')
        .filter(|p| !p.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(key, value)| (decode(&key.replace('+', " ")), decode(&value.replace('+', " "))))
        .collect()
}

fn decode(text: &str) -> String {
    let (mut out, mut bytes) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let pair: String = bytes.clone().take(2).map(char::from).collect();
            if let Ok(value) = u8::from_str_radix(&pair, 16) {
                out.push(value);
                bytes.nth(1);
                continue;
            }
        }
        out.push(byte);
    }
    String::from_utf8_lossy(&out).into_owned()
}
