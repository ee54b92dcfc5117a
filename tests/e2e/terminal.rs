//! On a real terminal: no line is wider than it, `--watch` has a screen of its own and leaves it whatever ends it.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tpu_watchdog::simulator::trouble::Trouble;

use crate::harness::{Rig, job};

/// A program on a terminal of its own, and what it has written there.
struct Terminal {
    child: Child,
    written: Arc<Mutex<String>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Terminal {
    fn run(mut command: Command, columns: u16, rows: u16) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let open = || OwnedFd::from(File::options().read(true).write(true).open(&name).unwrap());
        command.stdin(Stdio::from(open())).stdout(Stdio::from(open())).stderr(Stdio::from(open()));
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let child = command.spawn().unwrap();
        // It keeps the terminal open otherwise.
        drop(command);
        let written = Arc::new(Mutex::new(String::new()));
        let (heard, mut master) = (Arc::clone(&written), File::from(master));
        let reader = std::thread::spawn(move || {
            let mut part = [0; 4096];
            // An error is how Linux tells that the other side has closed.
            while let Ok(count @ 1..) = master.read(&mut part) {
                heard.lock().unwrap().push_str(&String::from_utf8_lossy(&part[..count]));
            }
        });
        Terminal { child, written, reader: Some(reader) }
    }

    fn written(&self) -> String {
        self.written.lock().unwrap().clone()
    }

    /// Exit code and all that was written.
    fn end(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().expect("it ends by itself");
        self.reader.take().unwrap().join().unwrap();
        (code, self.written())
    }
}

/// The widest line as it is shown.
fn widest(text: &str) -> usize {
    let plain = tpu_watchdog::cli::screen::strip(text).replace('\r', "");
    plain.lines().map(|line| line.chars().count()).max().unwrap_or_default()
}

#[test]
fn every_command_fits_terminals_of_80_120_and_200_columns() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    rig.trouble("a", Trouble::Preempt, None);
    rig.wait_recovered("a", old);
    for columns in [80, 120, 200] {
        for arguments in [
            &["status"][..],
            &["status", "a"],
            &["plan"],
            &["history"],
            &["doctor"],
            &["explain", "a"],
            &["explain", "cannot_create"],
            &["sweep"],
            &["check"],
            &["breaker"],
        ] {
            let (_, text) = Terminal::run(rig.command(arguments), columns, 50).end();
            assert!(text.trim().len() > 5, "{arguments:?}: {text}");
            // A URI or a command to copy stays whole; nothing else is wider.
            let whole = text.split_whitespace().map(|word| word.chars().count()).max().unwrap();
            let most = usize::from(columns).max(whole + 12);
            assert!(widest(&text) <= most, "{arguments:?} at {columns}: {}\n{text}", widest(&text));
        }
    }
}

#[test]
fn watch_has_a_screen_of_its_own_and_leaves_it_on_ctrl_c_and_on_sigterm() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    for signal in [Signal::INT, Signal::TERM] {
        let terminal = Terminal::run(rig.command(&["status", "--watch"]), 80, 12);
        rig.wait_until("two frames are shown", || {
            terminal.written().matches("\u{1b}[H\u{1b}[2J").count() >= 2
                && terminal.written().contains("healthy")
        });
        kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        let (code, text) = terminal.end();
        assert_eq!(code, 0, "{text:?}");
        assert!(text.starts_with("\u{1b}[?1049h\u{1b}[?25l"), "{text:?}");
        assert!(text.ends_with("\u{1b}[?25h\u{1b}[?1049l"), "{text:?}");
        for frame in text.split("\u{1b}[2J").skip(1) {
            assert!(frame.lines().count() <= 12 && widest(frame) <= 80, "{frame:?}");
        }
    }
    // A pipe has no screen: the frames follow each other.
    let mut command = rig.command(&["status", "--watch"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut text = String::new();
    while text.matches("healthy").count() < 2 {
        let mut part = [0; 4096];
        let count = out.read(&mut part).unwrap();
        assert!(count > 0, "it ended: {text}");
        text.push_str(&String::from_utf8_lossy(&part[..count]));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn a_healthy_tpu_is_recreated_with_yes_only_where_a_person_can_have_typed_it() {
    let mut rig = Rig::with_one_node(&job("a"));
    rig.start();
    rig.wait_polls(2);
    let old = rig.node("a").unwrap().uid;
    let recreate = ["recreate", "a", "--yes"];
    let script = rig.command(&recreate).output().unwrap();
    let told = String::from_utf8_lossy(&script.stderr).into_owned();
    assert!(!script.status.success() && told.contains("--incarnation"), "{told}");
    rig.wait_polls(2);
    assert!(rig.mutations().is_empty(), "{}", rig.mutations_text());
    let (code, text) = Terminal::run(rig.command(&recreate), 80, 24).end();
    assert_eq!(code, 0, "{text}");
    rig.wait_recovered("a", old);
}
