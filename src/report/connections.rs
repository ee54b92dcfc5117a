//! Connections to the endpoints, within limits: a client that is slow, silent or greedy takes
//! neither memory nor file descriptors from the watchdog.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// The limits of one listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once; more of them wait in the kernel's queue.
    pub connections: usize,
    /// From the accept, or from the former answer, to the end of a request's head: it ends slow
    /// requests, and connections that are idle.
    pub head: Duration,
    /// From one request to the next: it also ends a client that does not read its answer.
    pub exchange: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 128,
            head: Duration::from_secs(10),
            exchange: Duration::from_secs(60),
            head_bytes: 16 * 1024,
        }
    }
}

/// Serves until the future is dropped.
pub async fn serve(mut listener: TcpListener, router: Router, limits: Limits) {
    let seats = Arc::new(Semaphore::new(limits.connections));
    // The semaphore is never closed: the loop goes on for ever.
    while let Ok(seat) = Arc::clone(&seats).acquire_owned().await {
        // Axum's accept waits and goes on where file descriptors run out.
        let (stream, _) = Listener::accept(&mut listener).await;
        let router = router.clone();
        tokio::spawn(async move {
            connection(stream, router, limits).await;
            drop(seat);
        });
    }
}

async fn connection(stream: TcpStream, router: Router, limits: Limits) {
    let (began, mut begins) = watch::channel(());
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        began.send_replace(());
        router.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_header_size(limits.head_bytes)
        .max_buf_size(limits.head_bytes.max(8192));
    let served = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    loop {
        tokio::select! {
            // How it ended is the client's own matter.
            _ = &mut served => return,
            () = tokio::time::sleep(limits.exchange) => return,
            Ok(()) = begins.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const LIMITS: Limits = Limits {
        connections: 2,
        head: Duration::from_millis(300),
        exchange: Duration::from_secs(30),
        head_bytes: 8192,
    };

    async fn server(limits: Limits, body: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async move || "x".repeat(body)));
        tokio::spawn(serve(listener, router, limits));
        address
    }

    async fn connect(address: SocketAddr) -> TcpStream {
        TcpStream::connect(address).await.unwrap()
    }

    /// One read's worth of an answer; empty when the connection was closed.
    async fn answer(stream: &mut TcpStream) -> String {
        let mut bytes = vec![0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut bytes));
        let count = read.await.expect("an answer or an end").unwrap_or(0);
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_or_too_little_is_closed_in_time() {
        let address = server(LIMITS, 1).await;
        let began = Instant::now();
        let (mut silent, mut slow) = (connect(address).await, connect(address).await);
        let drip = async {
            // Byte after byte does not put the end off.
            for byte in REQUEST.iter().cycle() {
                if slow.write_all(&[*byte]).await.is_err() || began.elapsed() > 4 * LIMITS.head {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
        };
        let (said, ()) = tokio::join!(answer(&mut silent), drip);
        assert_eq!((said.as_str(), answer(&mut slow).await.as_str()), ("", ""));
        assert!(began.elapsed() >= LIMITS.head && began.elapsed() < Duration::from_secs(15));
        // An idle connection that was of use is closed as well.
        let mut idle = connect(address).await;
        idle.write_all(REQUEST).await.unwrap();
        assert!(answer(&mut idle).await.starts_with("HTTP/1.1 200"));
        assert_eq!(answer(&mut idle).await, "");
    }

    #[tokio::test]
    async fn more_connections_than_allowed_wait_for_a_free_one() {
        let limits = Limits { head: Duration::from_secs(30), ..LIMITS };
        let address = server(limits, 1).await;
        let (first, _second) = (connect(address).await, connect(address).await);
        let mut third = connect(address).await;
        third.write_all(REQUEST).await.unwrap();
        let mut byte = [0];
        let early = tokio::time::timeout(Duration::from_millis(500), third.read(&mut byte)).await;
        assert!(early.is_err(), "both seats are taken");
        drop(first);
        assert!(answer(&mut third).await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_its_answer_is_left() {
        let limits = Limits { connections: 1, exchange: Duration::from_millis(500), ..LIMITS };
        let address = server(limits, 64 << 20).await;
        let mut greedy = connect(address).await;
        greedy.write_all(REQUEST).await.unwrap();
        let mut next = connect(address).await;
        next.write_all(REQUEST).await.unwrap();
        assert!(answer(&mut next).await.starts_with("HTTP/1.1 200"), "its seat is free again");
    }

    #[tokio::test]
    async fn a_head_that_is_too_large_is_refused() {
        let address = server(LIMITS, 1).await;
        let mut stream = connect(address).await;
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(20_000));
        stream.write_all(head.as_bytes()).await.unwrap();
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 431"));
    }
}
