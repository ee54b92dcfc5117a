//! Jobs in containers, with a real docker where its daemon can be started here.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::JobSettings;

use crate::host::{Host, job, order};

/// A daemon of its own, with one image that has bash and little else.
struct Docker {
    folder: tempfile::TempDir,
    daemon: Child,
}

impl Docker {
    /// None, which is said, where there is none or it can't be started.
    fn start() -> Option<Docker> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let daemon = Command::new("dockerd")
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .args(["--storage-driver=vfs", "--host"])
            .arg(format!("unix://{}", at("socket").display()))
            .arg("--data-root")
            .arg(at("data"))
            .arg("--exec-root")
            .arg(at("exec"))
            .arg("--pidfile")
            .arg(at("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(at("log")).unwrap())
            .spawn();
        let Ok(daemon) = daemon else {
            eprintln!("LEFT OUT: jobs in containers (dockerd is missing; the package docker.io)");
            return None;
        };
        let mut docker = Docker { folder, daemon };
        let began = Instant::now();
        while !docker.run(&["info"]).status.success() {
            let gone = docker.daemon.try_wait().unwrap().is_some();
            if gone || began.elapsed() > Duration::from_secs(60) {
                let log = std::fs::read_to_string(docker.folder.path().join("log")).unwrap();
                eprintln!("LEFT OUT: jobs in containers (dockerd can't be started here): {log}");
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let import = r#"
            set -e; cd "$0"; programs="$(command -v bash sleep cat env)"
            for file in $programs $(ldd $programs | grep -o '/[^ :]*' | sort -u); do
              mkdir -p "root$(dirname "$file")"; cp -L "$file" "root$file"
            done
            mkdir -p root/usr/bin root/bin root/tmp; cp -L "$(command -v bash)" root/bin/bash
            tar -C root -cf - . | docker -H "unix://$0/socket" import - train:1"#;
        let imported = Command::new("bash").args(["-c", import]).arg(docker.path()).output();
        let imported = imported.unwrap();
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
        let trial =
            ["run", "--rm", "--net", "host", "--init", "train:1", "/bin/bash", "-c", "true"];
        let trial = docker.run(&trial);
        if !trial.status.success() {
            let why = String::from_utf8_lossy(&trial.stderr);
            eprintln!("LEFT OUT: jobs in containers (none can be started here): {why}");
            return None;
        }
        Some(docker)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let socket = format!("unix://{}/socket", self.path().display());
        Command::new("docker").args(["-H", &socket]).args(arguments).output().unwrap()
    }

    /// The host's docker is this one. Nothing else of it may be given away here: no devices.
    fn host(&self, settings: &JobSettings) -> Option<Host> {
        let host = Host::new(settings, "", &order(Some(1200)))?;
        let path = std::env::var("PATH").unwrap();
        host.program(
            "docker",
            &format!(
                "#! /bin/bash\nPATH={path} exec docker -H unix://{}/socket \"$@\"\n",
                self.path().display()
            ),
        );
        host.boot_with(&[("TPU_WATCHDOG_CONTAINER_RIGHTS", "--cap-add=KILL")]);
        Some(host)
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _ = self.run(&["rm", "--force", "tpu-watchdog-job", "theirs"]);
        let _ = Command::new("kill").arg(self.daemon.id().to_string()).status();
        let _ = self.daemon.wait();
    }
}

fn in_container(command: &str, work: &Path) -> JobSettings {
    JobSettings { image: Some("train:1".into()), ..job(command, work) }
}

#[test]
fn a_container_is_ended_whole_before_the_next_run_begins() {
    let Some(docker) = Docker::start() else { return };
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    // A trainer that saves when it is asked to end.
    let trainer = "trap 'echo saved >>out; exit 0' TERM; while :; do sleep 0.1; done";
    let command = format!(
        "echo \"$TPU_WATCHDOG_GENERATION.$TPU_WATCHDOG_TRY $CHECKPOINT_PATH $QUOTED\" >>out; echo \"of $TPU_WATCHDOG_TRY\"; \
         if [[ -e fails ]]; then exit 7; fi; bash -c {trainer:?}; sleep 60",
    );
    let Some(host) = docker.host(&in_container(&command, work.path())) else { return };
    let runs = |text: &str| std::fs::read_to_string(&out).is_ok_and(|out| out == text);
    let first = "7.1 gs://b/ckpt/1200 it's $HOME\n";
    host.wait("the first run", || runs(first));
    host.orders(RunOrder { generation: 8, ..order(Some(2400)) });
    let second = format!("{first}saved\n8.1 gs://b/ckpt/2400 it's $HOME\n");
    host.wait("the next run", || runs(&second));
    // A supervisor that is killed finds the container of its former self.
    let unit = host.path("units/tpu-watchdog-supervisor");
    let main = std::fs::read_to_string(&unit).unwrap();
    assert!(Command::new("kill").args(["-KILL", main.trim()]).status().unwrap().success());
    let third = format!("{second}saved\n8.2 gs://b/ckpt/2400 it's $HOME\n");
    host.wait("the run after it", || runs(&third));
    let all = docker.run(&["ps", "--all", "--quiet"]).stdout;
    assert_eq!(String::from_utf8(all).unwrap().lines().count(), 1);
    // Its code and its lines are those of the command.
    std::fs::write(work.path().join("fails"), "").unwrap();
    host.orders(RunOrder { generation: 9, ..order(None) });
    host.wait("its code", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 9.1 7 restarting"))
    });
    let lines = host.attribute("log").unwrap();
    assert!(lines.contains(" 9.1 7 ") && lines.contains("\nof 1\n"), "{lines}");
    host.wait("its last try", || {
        host.attribute("exit").is_some_and(|e| e.contains(" 9.3 7 final"))
    });
    let all = docker.run(&["ps", "--all", "--quiet"]).stdout;
    assert_eq!(String::from_utf8(all).unwrap(), "", "nothing is left of it");
}

#[test]
fn a_notice_reaches_a_job_in_a_container_and_an_image_that_is_not_there_is_told() {
    let Some(docker) = Docker::start() else { return };
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let trainer = "trap 'echo saved >>out' USR1; echo ready >>out; while :; do sleep 0.1; done";
    // A shell cannot trap what was ignored when it began.
    let command = format!("sleep 100 & env --default-signal=USR1 bash -c {trainer:?}");
    let settings = JobSettings {
        on_notice: Some("SIGUSR1".into()),
        image: Some("train:2".into()),
        ..in_container(&command, work.path())
    };
    let Some(host) = docker.host(&settings) else { return };
    host.wait("it is told", || {
        host.phase().starts_with("setup_failed: the image train:2 can't be")
    });
    assert!(docker.run(&["tag", "train:1", "train:2"]).status.success());
    host.wait("it runs", || std::fs::read_to_string(&out).is_ok_and(|out| out == "ready\n"));
    host.simulator.with(|cloud| {
        cloud.nodes.values_mut().for_each(|node| node.run.announced = true);
    });
    host.wait("it saves", || {
        std::fs::read_to_string(&out).is_ok_and(|out| out == "ready\nsaved\n")
    });
    assert_eq!(host.attribute("exit"), None, "what does not handle the signal lives on");
}

#[test]
fn s23_a_trainer_that_is_left_in_the_background_of_a_container_is_no_success() {
    let Some(docker) = Docker::start() else { return };
    let work = tempfile::tempdir().unwrap();
    let command = "sleep 300 & echo 1300 >>\"$TPU_WATCHDOG_PROGRESS\"";
    let Some(host) = docker.host(&in_container(command, work.path())) else { return };
    host.wait("its end", || host.attribute("exit").is_some());
    let exit = host.attribute("exit").unwrap();
    assert!(exit.contains(" 0 done ran=") && exit.ends_with("left running: sleep"), "{exit}");
    assert!(!host.path("done.7").exists(), "it may be started once more");
    // One that waits for it has finished.
    let command = "sleep 1 & echo 1300 >>\"$TPU_WATCHDOG_PROGRESS\"; wait";
    let Some(host) = docker.host(&in_container(command, work.path())) else { return };
    host.wait("its end", || host.attribute("exit").is_some());
    assert!(!host.attribute("exit").unwrap().contains("left running"));
    assert!(host.path("done.7").exists());
}

/// A container of the command's own is nobody's child: it lives on, and its trainer's end is not seen.
#[test]
fn s23_a_command_that_starts_a_container_of_its_own_and_returns_is_no_success() {
    let Some(docker) = Docker::start() else { return };
    let work = tempfile::tempdir().unwrap();
    let command = format!(
        "docker -H unix://{}/socket run -d --name theirs --net host --init train:1 /bin/bash -c 'sleep 300'",
        docker.path().display()
    );
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("its end", || host.phase() == "ended_early");
    assert!(host.attribute("exit").unwrap().contains(" 0 done ran="));
    assert!(!host.path("done.7").exists(), "it may be started once more");
    let theirs = docker.run(&["ps", "--quiet", "--filter", "name=theirs"]);
    assert!(!theirs.stdout.is_empty(), "what is not ours is left alone");
}

/// A docker that notes what it removes: each pull brings another image. `names` is the number of names that the former one has left.
fn pulls_another(names: u32) -> Option<String> {
    let work = tempfile::tempdir().unwrap();
    let host = Host::new(&in_container("true", work.path()), "", &order(None))?;
    let noted = work.path().join("noted");
    let fake = format!(
        r#"#! /bin/bash
        case "$*" in
          "pull"*) echo new >{0}/id ;;
          "image inspect --format {{{{.Id}}}}"*) cat {0}/id 2>/dev/null || echo old ;;
          "image inspect --format {{{{len .RepoTags}}}} old") echo {names} ;;
          "image rm"*) echo "removed $3" >>{0}/noted ;;
          "run"*) echo began >>{0}/noted; exit 1 ;;
        esac"#,
        work.path().display()
    );
    host.program("docker", &fake);
    host.boot();
    host.wait("its run", || std::fs::read_to_string(&noted).is_ok_and(|n| n.contains("began")));
    Some(std::fs::read_to_string(&noted).unwrap().lines().next().unwrap().to_owned())
}

#[test]
fn the_former_image_of_a_tag_is_removed_unless_it_has_another_name() {
    let Some(first) = pulls_another(0) else { return };
    assert_eq!(first, "removed old");
    assert_eq!(pulls_another(1).unwrap(), "began", "an image of the user's");
}

/// A registry at an address of this machine, which docker asks without TLS: it has no such image.
fn refuses(listener: &std::net::TcpListener) {
    use std::io::{Read, Write};
    let Ok((mut stream, _)) = listener.accept() else { return };
    let mut head = [0; 4096];
    let read = stream.read(&mut head).unwrap_or(0);
    let is_base = String::from_utf8_lossy(&head[..read]).starts_with("GET /v2/ ");
    let body = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
    let status = if is_base { "200 OK" } else { "404 Not Found" };
    let answer = format!(
        "HTTP/1.1 {status}\r\nDocker-Distribution-Api-Version: registry/2.0\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(answer.as_bytes());
}

/// An image that the registry has no more may be wrong; an outage of it stops nothing.
#[test]
fn an_image_that_its_registry_refuses_is_not_run_from_this_host_and_one_without_an_answer_is() {
    let Some(docker) = Docker::start() else { return };
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let image = format!("{}/train:1", listener.local_addr().unwrap());
    assert!(docker.run(&["tag", "train:1", &image]).status.success());
    let settings = JobSettings {
        image: Some(image.clone()),
        ..in_container("echo ran >>out; sleep 100", work.path())
    };
    let Some(host) = docker.host(&settings) else { return };
    host.wait("the refusal", || {
        refuses(&listener);
        host.phase().starts_with(&format!("setup_failed: the image {image} can't be pulled: "))
    });
    assert!(host.phase().contains("manifest unknown") && !out.exists(), "{}", host.phase());
    drop(listener);
    host.wait("the run", || std::fs::read_to_string(&out).is_ok_and(|out| out == "ran\n"));
}
