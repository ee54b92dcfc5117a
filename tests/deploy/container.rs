//! The image: small, static, and at work with nothing around it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tpu_watchdog::simulator::trouble::Trouble;

use crate::cloud_run::{Server, free_port, wait_until};
use crate::harness::Rig;
use crate::{deploy, have, text};

/// The image's root folder: built by buildah where the sandbox lets it, else put together as the
/// Containerfile says.
fn image(context: &Path, scratch: &Path) -> PathBuf {
    if have("buildah") {
        let buildah = |arguments: &[&str]| {
            let mut command = Command::new("buildah");
            command.args(["--storage-driver=vfs", "--root"]).arg(scratch.join("root"));
            command
                .arg("--runroot")
                .arg(scratch.join("run"))
                .args(arguments)
                .env("BUILDAH_ISOLATION", "chroot");
            text(&command.output().unwrap())
        };
        let file = deploy("cloud-run/Containerfile");
        let (code, out) =
            buildah(&["build", "-t", "w", "-f", file.to_str().unwrap(), context.to_str().unwrap()]);
        if code == Some(0) {
            let (_, inspected) = buildah(&["inspect", "--type=image", "w"]);
            assert!(inspected.contains("65532:65532"), "not as root: {inspected}");
            let (_, container) = buildah(&["from", "w"]);
            let (code, mounted) = buildah(&["mount", container.trim()]);
            assert_eq!(code, Some(0), "{mounted}");
            println!("built by buildah");
            return PathBuf::from(mounted.trim());
        }
        eprintln!("LEFT OUT: buildah can't build here: {}", out.lines().last().unwrap_or_default());
    }
    let root = scratch.join("assembled");
    std::fs::create_dir_all(root.join("etc/ssl/certs")).unwrap();
    for (from, to) in [
        ("tpu-watchdog", "tpu-watchdog"),
        ("ca-certificates.crt", "etc/ssl/certs/ca-certificates.crt"),
    ] {
        std::fs::copy(context.join(from), root.join(to)).unwrap();
    }
    root
}

#[test]
#[ignore = "builds everything once more; tests/long plays it"]
fn the_container_is_small_static_and_works_with_nothing_around_it() {
    let folder = tempfile::tempdir().unwrap();
    let context = folder.path().join("context");
    let mut build = Command::new(deploy("cloud-run/build.sh"));
    // Optimised less than an image that is shipped: half of the time, and static all the same.
    build.arg(&context).env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    let (code, out) = text(&build.output().unwrap());
    assert_eq!(code, Some(0), "{out}");
    let size: u64 =
        std::fs::read_dir(&context).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    println!("the image has {:.1} MB", size as f64 / 1e6);
    assert!(size < 40_000_000, "{size} bytes");
    let (_, linked) =
        text(&Command::new("ldd").arg(context.join("tpu-watchdog")).output().unwrap());
    assert!(
        linked.contains("statically linked") || linked.contains("not a dynamic executable"),
        "{linked}"
    );
    let root = image(&context, folder.path());
    let put = |path: &str, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let inside = |environment: &[(&str, &str)], arguments: &[&str]| {
        let mut command = Command::new("/usr/sbin/chroot");
        command
            .args(["--userspec=65532:65532"])
            .arg(&root)
            .arg("/tpu-watchdog")
            .args(arguments)
            .env_clear();
        let output = command.envs(environment.iter().copied()).output().unwrap();
        text(&output)
    };
    let (code, out) = inside(&[], &["--version"]);
    if code != Some(0) && out.contains("Operation not permitted") {
        eprintln!("LEFT OUT: chroot is not allowed here: {out}");
        return;
    }
    assert_eq!(code, Some(0), "{out}");
    // What Cloud Run puts into every container.
    put("etc/hosts", "127.0.0.1 localhost\n");
    put("etc/resolv.conf", "");
    std::fs::create_dir_all(root.join("dev")).unwrap();
    for (name, minor) in [("random", "8"), ("urandom", "9")] {
        Command::new("mknod")
            .args(["-m", "666"])
            .arg(root.join("dev").join(name))
            .args(["c", "1", minor])
            .status()
            .unwrap();
    }

    // A whole run against the simulator, with its state in a bucket.
    let rig = Rig::with_one_node("");
    rig.trouble("a", Trouble::Preempt, None);
    let config = std::fs::read_to_string(rig.config())
        .unwrap()
        .replace("sqlite:state.db", "gs://state/tpu-watchdog");
    put("etc/tpu-watchdog/watchdog.toml", &config);
    let task = [("CLOUD_RUN_JOB", "tpu-watchdog"), ("CLOUD_RUN_EXECUTION", "tpu-watchdog-x7")];
    let run = [
        "--log",
        "json",
        "once",
        "--config",
        "/etc/tpu-watchdog/watchdog.toml",
        "--deadline",
        "50s",
    ];
    let (code, out) = inside(&task, &run);
    assert!(code == Some(0) && rig.creations("a") == 2, "{out}");
    assert!(out.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{out}");
    let state = rig.simulator.with(|c| c.objects["state/tpu-watchdog/state.json"].body.clone());
    assert!(
        String::from_utf8_lossy(&state).contains("tpu-watchdog-x7:"),
        "the execution names the holder"
    );

    // One handshake with a server whose certificate is trusted for this test alone, by the image's
    // own list.
    let plan = || inside(&[], &["plan", "--config", "/etc/tpu-watchdog/watchdog.toml"]).1;
    handshake(&root, folder.path(), &plan, &put);
}

fn handshake(root: &Path, scratch: &Path, plan: &dyn Fn() -> String, put: &dyn Fn(&str, &str)) {
    let openssl = |arguments: &str| {
        let output = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(scratch)
            .output()
            .unwrap();
        assert!(output.status.success(), "openssl {arguments}: {}", text(&output).1);
    };
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=test-ca",
    );
    openssl("req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost");
    std::fs::write(scratch.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 -extfile names",
    );
    let port = free_port();
    let server = Command::new("openssl")
        .args([
            "s_server",
            "-quiet",
            "-www",
            "-cert",
            "server.crt",
            "-key",
            "server.key",
            "-accept",
            &port.to_string(),
        ])
        .current_dir(scratch)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Server(server);
    wait_until("the TLS server listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let config = format!(
        "project = \"p\"\nstate = \"memory:\"\n[api]\ntpu = \"https://localhost:{port}\"\ncredentials = \"anonymous\"\n\
         [[tpu]]\nname = \"a\"\nzone = \"us-central2-b\"\n"
    );
    put("etc/tpu-watchdog/watchdog.toml", &config);
    let out = plan();
    assert!(
        out.contains("certificate") && !out.contains("HTTP 200"),
        "a stranger is not trusted: {out}"
    );
    let list = root.join("etc/ssl/certs/ca-certificates.crt");
    let known = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, known + &std::fs::read_to_string(scratch.join("ca.crt")).unwrap())
        .unwrap();
    let out = plan();
    // The server's own page is no API's answer; that it came through is what counts.
    assert!(out.contains("HTTP 200 OK, but the answer is not a JSON object"), "{out}");
}
