//! A machine with a real systemd: a container over this machine's /usr, with a story that runs as its
//! only service beside the simulator.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{have, text};

/// The folder that becomes the machine's root.
pub struct Machine {
    root: PathBuf,
}

/// Whether one can be started here; what is left out is said.
pub fn can_start() -> bool {
    if !have("systemd-nspawn") {
        return false;
    }
    let arguments = ["--quiet", "--register=no", "--keep-unit", "--directory=/", "--volatile=yes"];
    let mut trial = Command::new("systemd-nspawn");
    trial.args(arguments).arg("/bin/true").stdin(Stdio::null());
    let (code, out) = text(&trial.output().unwrap());
    if code != Some(0) {
        eprintln!("LEFT OUT: no container can be started here, so no systemd either: {out}");
    }
    code == Some(0)
}

impl Machine {
    /// A machine that plays this story, a bash script, and is off again.
    pub fn new(root: &Path, story: &str) -> Machine {
        let machine = Machine { root: root.to_owned() };
        let folders =
            "usr/bin usr/sbin usr/lib usr/lib64 usr/share var/log/journal run tmp proc sys dev";
        for folder in folders.split(' ') {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        let users = "root:x:0:0::/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n";
        let unit = "[Unit]\nWants=systemd-journald.service\nAfter=systemd-journald.service\n[Service]\nType=oneshot\n\
                    ExecStart=/bin/bash /test/story.sh\nExecStopPost=/bin/systemctl --no-block exit\n";
        let target =
            "[Unit]\nRequires=basic.target story.service\nAfter=basic.target\nAllowIsolate=yes\n";
        let simulator = "[Service]\nExecStart=/usr/local/bin/tpu-watchdog simulator --scenario /test/scenario.toml\n";
        for (path, text) in [
            ("etc/os-release", "ID=story\n"),
            ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
            ("etc/passwd", users),
            ("etc/group", "root:x:0:\nnogroup:x:65534:\nsystemd-journal:x:101:\n"),
            ("etc/nsswitch.conf", "passwd: files systemd\ngroup: files systemd\nhosts: files\n"),
            ("etc/systemd/journald.conf.d/forward.conf", "[Journal]\nForwardToSyslog=yes\n"),
            ("etc/hosts", "127.0.0.1 localhost\n"),
            ("test/story.sh", story),
            ("etc/systemd/system/simulator.service", simulator),
            ("etc/systemd/system/story.service", unit),
            ("etc/systemd/system/story.target", target),
        ] {
            machine.put(path, text);
        }
        machine
    }

    /// Writes a file of the machine.
    pub fn put(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A file that the story has written into /test; empty where there is none.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.root.join("test").join(name)).unwrap_or_default()
    }

    /// From its start until it is off. Returns what it said on its console.
    pub fn boot(&self) -> String {
        let binds = ["/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/share", "/etc/ssl"]
            .map(|path| format!("--bind-ro={path}"));
        let seconds = std::env::var("STORY_SECONDS").unwrap_or("240".into());
        let mut nspawn = Command::new("timeout");
        nspawn
            .args(["--kill-after=10", &seconds, "systemd-nspawn", "--quiet", "--private-network"])
            .args(["--register=no", "--keep-unit", "--console=pipe", "--directory"])
            .arg(&self.root)
            .args(binds)
            .arg(concat!("--bind-ro=", env!("CARGO_MANIFEST_DIR"), ":/project"))
            .args(["--boot", "systemd.unit=story.target"]);
        text(&nspawn.stdin(Stdio::null()).output().unwrap()).1
    }
}
