//! A server that answers with anything but the API: a clear line, a counted failure, no action, the
//! next poll on time.

use tpu_watchdog::simulator::http::{Fault, Logged};
use tpu_watchdog::simulator::trouble::Trouble;
use tpu_watchdog::simulator::wire::Reply;

use crate::harness::{Rig, get, job};

/// Listings are answered by `reply`; the node is preempted meanwhile, and nothing may be done about
/// it until it can be read.
#[track_caller]
fn survives(words: &str, mut fault: impl FnMut() -> Fault + Send + 'static) {
    let mut rig = Rig::with_one_node("");
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        (logged.method == "GET" && logged.path.contains("/nodes?")).then(&mut fault)
    })));
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_for_log(words);
    let before = rig.polls().len();
    rig.wait("the next polls come", |_| rig.polls().len() >= before + 3);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    let (_, metrics) = get(&format!("{}/metrics", rig.endpoint()));
    let failures = metrics.lines().filter(|l| {
        l.starts_with("tpuwatchdog_api_request_failures_total{") && l.contains("nodes.list")
    });
    assert!(failures.count() > 0, "{metrics}");
    // When the API is itself again, the owed work is done.
    rig.simulator.set_hook(None);
    rig.wait_recovered("a", old);
    assert_eq!(rig.creations("a"), 2);
}

#[test]
fn garbage() {
    survives("not a JSON object", || {
        Fault::AnswerBefore(Reply::new(200, vec![0u8, 159, 146, 150]))
    });
}

#[test]
fn truncated_json() {
    survives("not a JSON object", || {
        Fault::AnswerBefore(Reply::new(200, r#"{"nodes":[{"name":"projects/p/loca"#))
    });
}

#[test]
fn an_empty_body() {
    survives("not a JSON object", || Fault::AnswerBefore(Reply::new(200, "")));
}

#[test]
fn a_login_page_with_200() {
    survives("<html>", || {
        Fault::AnswerBefore(Reply::new(200, "<html><body>Sign in</body></html>"))
    });
}

#[test]
fn a_redirect_is_not_followed() {
    survives("HTTP 302", || {
        Fault::AnswerBefore(Reply {
            status: 302,
            headers: vec![("location", "http://127.0.0.1:1/".into())],
            body: Vec::new(),
        })
    });
}

#[test]
fn an_answer_of_a_hundred_megabytes() {
    survives("larger than", || Fault::AnswerBefore(Reply::new(200, vec![b' '; 100 << 20])));
}

#[test]
fn a_server_that_accepts_and_never_answers() {
    survives("listing the nodes", || Fault::Hang);
}

#[test]
fn a_connection_that_breaks_off() {
    survives("connection closed", || Fault::Before(Box::new(|| ())));
}

#[test]
fn a_node_without_a_name() {
    survives("without \"name\"", || {
        Fault::AnswerBefore(Reply::new(200, r#"{"nodes":[{"state":"PREEMPTED"}]}"#))
    });
}

#[test]
fn a_permission_that_was_taken_away() {
    let body = r#"{"error":{"code":403,"status":"PERMISSION_DENIED","message":"Permission 'tpu.nodes.list' denied"}}"#;
    survives("tpu.nodes.list", move || Fault::AnswerBefore(Reply::new(403, body)));
}

/// The first three requests of one kind are answered by something that is not the API: the recovery
/// takes longer, no more.
#[track_caller]
fn recovers_in_spite_of(reply: Reply, is_it: fn(&Logged) -> bool) {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    let mut left = 3;
    let (seen, flag) = (
        std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0)),
        std::sync::atomic::Ordering::SeqCst,
    );
    let count = std::sync::Arc::clone(&seen);
    rig.simulator.set_hook(Some(Box::new(move |logged| {
        if left == 0 || !is_it(logged) {
            return None;
        }
        left -= 1;
        count.fetch_add(1, flag);
        Some(Fault::AnswerBefore(reply.clone()))
    })));
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    assert!(seen.load(flag) > 0, "the fault never struck");
    assert_eq!(rig.creations("a"), 2, "{}", rig.mutations_text());
    assert_eq!(rig.simulator.with(|cloud| cloud.harmed), 0);
}

#[test]
fn garbage_for_the_confirming_get() {
    recovers_in_spite_of(Reply::new(200, "<html>"), |l| {
        l.method == "GET" && l.path.ends_with("/nodes/a")
    });
}

#[test]
fn garbage_for_a_404_of_a_proxy_is_no_proof_of_absence() {
    recovers_in_spite_of(Reply::new(404, "<html>no such page</html>"), |l| {
        l.method == "GET" && l.path.ends_with("/nodes/a")
    });
}

#[test]
fn garbage_for_operations() {
    recovers_in_spite_of(Reply::new(200, "[]"), |l| l.path.contains("/operations/"));
}

#[test]
fn server_errors_for_operations() {
    recovers_in_spite_of(Reply::new(500, ""), |l| l.path.contains("/operations/"));
}

#[test]
fn garbage_for_the_delete() {
    recovers_in_spite_of(Reply::new(404, "<html>"), |l| l.method == "DELETE");
}

#[test]
fn garbage_for_the_create() {
    recovers_in_spite_of(Reply::new(200, "{\"name\":7}"), |l| {
        l.method == "POST" && l.path.contains("nodeId=")
    });
}

#[test]
fn garbage_for_guest_attributes() {
    recovers_in_spite_of(Reply::new(200, "{\"guestAttributes\":7}"), |l| {
        l.path.contains(":getGuestAttributes")
    });
}

#[test]
fn garbage_for_the_bucket() {
    recovers_in_spite_of(Reply::new(200, "<html>"), |l| l.path.contains("list-type"));
}
