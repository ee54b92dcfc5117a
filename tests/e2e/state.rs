//! A state that is removed, replaced or lost: the service that had it stands down, the next one
//! asks a person.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::harness::{POLICY, Rig, ZONE, slot};
use crate::lock::{Watchdog, waits};

fn one_node() -> Rig {
    Rig::new(&format!("[[nodes]]\nnames = [\"a\"]\nzone = \"{ZONE}\"\n"), POLICY, &slot("a", ""))
}

/// The metric `lock_held` of a watchdog; false where none answers.
fn says_lock_held(watchdog: &Watchdog) -> bool {
    let log = watchdog.log();
    let Some((_, address)) = log.rsplit_once("serving http://") else { return false };
    let address = address.split('/').next().unwrap();
    let scrape = || -> std::io::Result<String> {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    scrape().unwrap_or_default().contains("\ntpuwatchdog_lock_held 1\n")
}

/// Starts one service, does `harm` to its file, starts another one, and looks at both until the
/// first has left and `ended` is so of the second. Never do both say that they hold the lock.
fn never_two(harm: impl Fn(&Path), said: &str, ended: impl Fn(&mut Watchdog) -> bool) {
    let rig = one_node();
    let mut both = [
        Watchdog::new(&rig, "one", "sqlite:state.db"),
        Watchdog::new(&rig, "two", "sqlite:state.db"),
    ];
    both[0].start();
    waits("the first says that it holds the lock", || says_lock_held(&both[0]).then_some(()));
    harm(&rig.folder.path().join("state.db"));
    both[1].start();
    let mut left = None;
    waits("the first stands down, and the second knows what to do", || {
        let first = says_lock_held(&both[0]);
        if first && says_lock_held(&both[1]) {
            // One may have handed over to the other between the two looks.
            assert!(!says_lock_held(&both[0]), "{}\n{}", both[0].log(), both[1].log());
        }
        left = left.or_else(|| both[0].child.as_mut().unwrap().try_wait().unwrap());
        (left.is_some() && ended(&mut both[1])).then_some(())
    });
    assert_eq!(left.unwrap().code(), Some(1), "{}", both[0].log());
    assert!(both[0].log().contains(said), "{}", both[0].log());
    assert!(!says_lock_held(&both[0]));
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
}

fn leaves_with(watchdog: &mut Watchdog, words: &str) -> bool {
    match watchdog.child.as_mut().unwrap().try_wait().unwrap() {
        Some(status) => {
            assert_eq!(status.code(), Some(1), "{}", watchdog.log());
            assert!(watchdog.log().contains(words), "{}", watchdog.log());
            true
        }
        None => false,
    }
}

#[test]
fn s9_never_two_hold_the_lock_after_the_file_was_removed() {
    never_two(
        |file| std::fs::remove_file(file).unwrap(),
        "was removed or moved away while it was in use",
        |second| leaves_with(second, "state init --accept-loss"),
    );
}

#[test]
fn s9_never_two_hold_the_lock_after_the_file_was_moved_away() {
    never_two(
        |file| std::fs::rename(file, file.with_extension("away")).unwrap(),
        "was removed or moved away while it was in use",
        |second| leaves_with(second, "If it was moved, move it back"),
    );
}

#[test]
fn s9_never_two_hold_the_lock_after_the_file_was_replaced_by_its_copy() {
    never_two(
        |file| {
            let away = file.with_extension("away");
            std::fs::rename(file, &away).unwrap();
            std::fs::copy(&away, file).unwrap();
        },
        "was replaced by another file while it was in use",
        // It waits for one whole lease of the first, which can't be renewed any more.
        |second| says_lock_held(second),
    );
}

fn run(rig: &Rig, arguments: &[&str]) -> (i32, String) {
    let output = rig.command(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
}

fn a_lost_state_waits_for_a_person(rig: &Rig, lose: impl Fn(), is_there: impl Fn() -> bool) {
    for command in ["status", "plan"] {
        run(rig, &[command]);
    }
    let (code, text) = run(rig, &["state", "init", "--accept-loss"]);
    assert!(code == 0 && text.contains("no state was lost"), "{text}");
    assert!(!is_there());
    assert_eq!(run(rig, &["once", "--deadline", "60s"]).0, 0);
    let (code, text) = run(rig, &["state", "init", "--accept-loss"]);
    assert!(code == 1 && text.contains("there is a state here"), "{text}");
    lose();
    for command in ["once", "plan", "status", "history"] {
        let (code, text) = run(rig, &[command]);
        assert_eq!(code, 1, "{command}: {text}");
        assert!(
            text.contains("it is gone") && text.contains("state init --accept-loss"),
            "{command}: {text}"
        );
        assert!(!is_there(), "{command} began a new one");
    }
    let (code, text) = run(rig, &["state", "init"]);
    assert!(code == 2 && text.contains("--accept-loss"), "{text}");
    assert!(!is_there());
    let (code, text) = run(rig, &["state", "init", "--accept-loss"]);
    assert!(code == 0 && text.contains("a new state was begun"), "{text}");
    assert!(is_there());
    assert_eq!(run(rig, &["once", "--deadline", "60s"]).0, 0);
    lose();
    let (code, text) = run(rig, &["once"]);
    assert!(code == 1 && text.contains("it is gone"), "the new one has a marker, too: {text}");
}

#[test]
fn a_lost_file_waits_for_a_person() {
    let rig = one_node();
    let file = rig.folder.path().join("state.db");
    a_lost_state_waits_for_a_person(
        &rig,
        || std::fs::remove_file(&file).unwrap(),
        || file.exists(),
    );
}

#[test]
fn a_lost_object_waits_for_a_person() {
    const OBJECT: &str = "state/watchdog/state.json";
    let rig = one_node();
    let text = std::fs::read_to_string(rig.config()).unwrap();
    std::fs::write(rig.config(), text.replace("sqlite:state.db", "gs://state/watchdog")).unwrap();
    a_lost_state_waits_for_a_person(
        &rig,
        || _ = rig.simulator.with(|cloud| cloud.objects.remove(OBJECT)).unwrap(),
        || rig.simulator.with(|cloud| cloud.objects.contains_key(OBJECT)),
    );
}
