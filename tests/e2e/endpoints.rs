//! The endpoints on and off loopback: who may read what, when the service is ready, and what a bad
//! client can't do. 0.0.0.0 counts as off loopback, and is reached by 127.0.0.1.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tpu_watchdog::simulator::http::Fault;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{Rig, job};

const TOKEN: &str = "0123456789abcdef-the-token";
/// ":0123456789abcdef-the-token" in base64: no user, and the token as password.
const BASIC: &str = "Basic OjAxMjM0NTY3ODlhYmNkZWYtdGhlLXRva2Vu";

fn off_loopback(rig: &Rig, more: &str) {
    let text = std::fs::read_to_string(rig.config()).unwrap();
    let listen = "listen = \"127.0.0.1:0\"";
    assert!(text.contains(listen));
    let other = format!("listen = \"0.0.0.0:0\"\n{more}");
    std::fs::write(rig.config(), text.replace(listen, &other)).unwrap();
}

fn write_token(path: &Path, content: &str, mode: u32) {
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Where the service of the rig can be reached.
fn address(rig: &Rig) -> String {
    rig.endpoint().trim_start_matches("http://").replace("0.0.0.0", "127.0.0.1")
}

/// The status, and everything that came back. A request that is too large is answered, and its
/// connection closed, before it was sent or read to its end: that is no error here.
fn ask(address: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let host = if headers.contains("Host: ") { "" } else { "Host: any.example\r\n" };
    let request = format!("GET {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n");
    let sent = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let text = String::from_utf8(answer).unwrap();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{text:?}, sent {sent:?}, read {read:?}")), text)
}

#[test]
fn off_loopback_the_page_and_the_api_need_the_token_and_a_browser_can_give_it() {
    let mut rig = Rig::with_one_node(&job("a"));
    off_loopback(&rig, "listen_token_file = \"token\"");
    write_token(&rig.folder.path().join("token"), &format!("{TOKEN}\n"), 0o600);
    rig.start();
    rig.wait_polls(2);
    let address = address(&rig);
    let mut seen = String::new();
    let mut asked = |path: &str, headers: &str| {
        let (status, text) = ask(&address, path, headers);
        seen.push_str(&text);
        (status, text)
    };
    for path in ["/metrics", "/-/healthy"] {
        assert_eq!(asked(path, "").0, 200, "{path}");
    }
    let bad = format!("Authorization: Bearer {TOKEN}x\r\n");
    for headers in ["", "Authorization: Bearer \r\n", "Authorization: Basic Og==\r\n", &bad] {
        for path in ["/", "/api/v1/status", "/nothing"] {
            let (status, text) = asked(path, headers);
            assert_eq!(status, 401, "{path} {headers:?}");
            let text = text.to_lowercase();
            assert!(text.contains("www-authenticate: basic realm=\"tpu-watchdog\""), "{text}");
        }
    }
    for credentials in [format!("Bearer {TOKEN}"), BASIC.to_owned()] {
        let headers = format!("Authorization: {credentials}\r\n");
        assert!(asked("/", &headers).1.contains("1 of 1 healthy"));
        assert!(asked("/api/v1/status", &headers).1.contains("\"breaker\":\"closed\""));
        assert_eq!(asked("/nothing", &headers).0, 404);
    }
    assert!(!seen.contains(TOKEN) && !rig.logs().contains(TOKEN), "the token is never shown");
}

#[test]
fn off_loopback_without_a_token_all_but_metrics_and_health_is_closed_and_says_how_to_open_it() {
    let mut rig = Rig::with_one_node("");
    off_loopback(&rig, "");
    rig.start();
    rig.wait_polls(2);
    rig.wait_for_log("listen_token_file is not set: all paths but /metrics and /-/ answer 403");
    let address = address(&rig);
    for path in ["/", "/api/v1/status", "/nothing"] {
        let (status, text) = ask(&address, path, "Authorization: Bearer \r\n");
        assert_eq!(status, 403, "{path}");
        assert!(text.contains("set listen_token_file = \"FILE\" in its config"), "{text}");
    }
    rig.wait_until("ready", || ask(&address, "/-/ready", "").0 == 200);
    assert!(ask(&address, "/metrics", "").1.contains("tpuwatchdog_slot_healthy"));
}

#[test]
fn a_bad_token_file_ends_the_service_with_its_path_and_remedy() {
    let rig = Rig::with_one_node("");
    off_loopback(&rig, "listen_token_file = \"token\"");
    let path = rig.folder.path().join("token");
    for (content, mode, words) in [
        (None, 0, "can't be read: No such file"),
        (Some("\n"), 0o600, "is empty; write a token into it: openssl rand -hex 32 > "),
        (Some(TOKEN), 0o644, "(mode 0644); run: chmod o= "),
    ] {
        if let Some(content) = content {
            write_token(&path, content, mode);
        }
        let output = rig.command(&["run"]).stdout(Stdio::null()).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "systemd does not start it again: {log}");
        assert!(log.contains(&path.display().to_string()) && log.contains(words), "{log}");
        assert!(!log.contains(TOKEN), "{log}");
        // Other commands may run as another user; `check` tells what it sees.
        let output = rig.command(&["check"]).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains(words), "{out}");
        assert!(rig.command(&["plan"]).output().unwrap().status.success());
    }
    assert!(rig.polls().iter().all(|poll| !poll.is_mutation()));
}

#[test]
fn on_loopback_a_foreign_name_is_refused_and_no_token_is_asked_for() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let address = address(&rig);
    let port = address.split(':').nth(1).unwrap();
    for host in [&address, "127.0.0.1", "localhost", &format!("localhost:{port}")] {
        assert_eq!(ask(&address, "/", &format!("Host: {host}\r\n")).0, 200, "{host}");
    }
    for host in ["evil.example", &format!("evil.example:{port}"), "localhost:1", "10.0.0.1"] {
        for path in ["/", "/api/v1/status"] {
            let (status, text) = ask(&address, path, &format!("Host: {host}\r\n"));
            assert_eq!(status, 403, "{host}");
            assert!(text.contains(&format!("open http://{address}/")), "{text}");
        }
        for path in ["/metrics", "/-/healthy"] {
            assert_eq!(ask(&address, path, &format!("Host: {host}\r\n")).0, 200, "{host}");
        }
    }
}

#[test]
fn the_service_is_ready_when_a_zone_was_read_and_says_what_keeps_it_until_then() {
    let mut rig = Rig::with_one_node("");
    let down = || -> Fault { Fault::AnswerBefore(Reply::new(503, "down")) };
    let listings_fail = || -> tpu_watchdog::simulator::http::Hook {
        Box::new(move |logged| logged.path.contains("/nodes").then(down))
    };
    rig.simulator.set_hook(Some(listings_fail()));
    rig.start();
    let address = address(&rig);
    rig.wait_until("the reason", || {
        let (status, text) = ask(&address, "/-/ready", "");
        assert_eq!(status, 503, "{text}");
        text.contains("no zone could be read since the start: us-central2-b: ")
    });
    assert_eq!(ask(&address, "/-/healthy", "").0, 200, "it lives all the same");
    rig.simulator.set_hook(None);
    rig.wait_until("ready", || ask(&address, "/-/ready", "").0 == 200);
    rig.simulator.set_hook(Some(listings_fail()));
    rig.wait_for_log("listing the nodes of us-central2-b failed");
    rig.wait_polls(4);
    assert_eq!(ask(&address, "/-/ready", "").0, 200, "it was read once: the slots are held");
    // An outage is said once, however long it lasts, and so is its end.
    rig.simulator.set_hook(None);
    rig.wait_for_log("listing the nodes of us-central2-b works again");
    let failures = rig.logs().matches("listing the nodes of us-central2-b failed").count();
    assert_eq!(failures, 2, "{}", rig.logs());
}

#[test]
fn a_client_that_is_silent_or_greedy_keeps_no_scrape_out() {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let address = address(&rig);
    let local = format!("Host: {address}\r\n");
    let long = format!("{local}X: {}\r\n", "x".repeat(40_000));
    assert_eq!(ask(&address, "/", &long).0, 431);
    let (status, text) = ask(&address, "/", &format!("{local}Content-Length: 100000000\r\n"));
    assert_eq!(status, 413, "{text}");
    // More connections than are served at once, none of which says a word.
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let pid = rig.child.lock().unwrap().as_ref().unwrap().id();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    assert!(files < 180, "{files} file descriptors");
    let began = Instant::now();
    assert_eq!(ask(&address, "/metrics", "").0, 200);
    assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
    drop(silent);
}
