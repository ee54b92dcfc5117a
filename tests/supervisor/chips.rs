//! The chips of a host: counted, held by other processes; and a reboot that the run order tells.

use std::fs::File;
use std::process::{Child, Command};

use tpu_watchdog::model::ids::RunOrder;
use tpu_watchdog::model::settings::JobSettings;

use crate::host::{Host, job, order};

/// A process that has a chip open until it is dropped.
struct Stranger(Child);

impl Stranger {
    fn new(chip: &std::path::Path) -> Stranger {
        Stranger(Command::new("sleep").arg("300").stdin(File::open(chip).unwrap()).spawn().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Four chips in a folder, and the variable that says so.
fn chips(folder: &std::path::Path) -> String {
    for chip in 0..4 {
        File::create(folder.join(format!("accel{chip}"))).unwrap();
    }
    format!("{}/accel[0-9]*", folder.display())
}

#[test]
fn a_stranger_with_the_chips_is_named_and_waited_for_once_a_run_has_failed_for_it() {
    let work = tempfile::tempdir().unwrap();
    let chips = chips(work.path());
    let stranger = Stranger::new(&work.path().join("accel2"));
    let (pid, tries) = (stranger.0.id(), work.path().join("tries"));
    let command = format!(
        "echo x >> {}; [[ ! -e /proc/{pid} ]] || {{ echo 'TPU initialization failed: open(/dev/vfio/0): Device or resource busy'; exit 1; }}; sleep 60",
        tries.display()
    );
    let Some(host) = Host::new(&job(&command, work.path()), "", &order(None)) else { return };
    host.boot_with(&[("TPU_WATCHDOG_CHIPS", &chips)]);
    assert!(host.attribute("boot").unwrap().ends_with(" v4 i- c4"));
    let says = format!("chips_busy: process {pid} of user ");
    host.wait("it is named", || host.phase().starts_with(&says));
    assert!(host.phase().ends_with(" has a chip open: sleep 300"), "{}", host.phase());
    let beat = host.attribute("heartbeat");
    host.wait("it beats on", || host.attribute("heartbeat") != beat);
    assert_eq!(
        std::fs::read_to_string(&tries).unwrap(),
        "x\n",
        "it waits, and has used one restart"
    );
    drop(stranger);
    host.wait("it runs", || host.phase() == "running");
    assert_eq!(std::fs::read_to_string(&tries).unwrap(), "x\nx\n");
}

#[test]
fn a_process_with_open_chips_that_harms_nothing_is_not_waited_for() {
    let work = tempfile::tempdir().unwrap();
    let chips = chips(work.path());
    let _agent = Stranger::new(&work.path().join("accel0"));
    let Some(host) = Host::new(&job("sleep 60", work.path()), "", &order(None)) else { return };
    host.boot_with(&[("TPU_WATCHDOG_CHIPS", &chips)]);
    host.wait("it runs", || host.phase() == "running");
}

#[test]
fn a_host_reboots_when_its_order_names_the_present_boot_and_nothing_runs_on_it() {
    let work = tempfile::tempdir().unwrap();
    let (boots, others) = (vec!["boot-0".to_owned()], vec!["boot-01".to_owned()]);
    let told = |host: &Host, reboot: &[String]| {
        let _ = std::fs::remove_file(host.path("tpu-watchdog.wait"));
        // The flag shows that the order was read.
        host.orders(RunOrder { wait: true, reboot: reboot.to_vec(), ..order(None) });
        host.wait("the order is read", || host.path("tpu-watchdog.wait").exists());
    };
    let Some(host) = Host::new(&job("sleep 60", work.path()), "", &order(None)) else { return };
    host.boot();
    host.wait("it runs", || host.phase() == "running");
    told(&host, &boots);
    assert!(!host.path("rebooted").exists(), "its job runs");
    let fails = JobSettings { restarts_per_run: 0, ..job("exit 139", work.path()) };
    let Some(host) = Host::new(&fails, "", &order(None)) else { return };
    host.boot();
    host.wait("it has failed", || host.phase() == "failed");
    told(&host, &others);
    assert!(!host.path("rebooted").exists(), "another host, or an earlier boot");
    host.orders(RunOrder { reboot: boots, ..order(None) });
    host.wait("it reboots", || host.path("rebooted").exists());
}

/// The supervisor as the first version wrote it.
const VERSION_1: &str = include_str!("version_1.sh");

#[test]
fn s23_the_job_of_supervisor_1_is_waited_for_when_a_later_one_is_started_on_its_host() {
    let work = tempfile::tempdir().unwrap();
    let runs = work.path().join("runs");
    let later = format!("echo later >> {}; sleep 60", runs.display());
    let Some(host) = Host::new(&job(&later, work.path()), "", &order(None)) else { return };
    let settings = format!(
        "SLOT=a COMMAND='echo first >> {}; while :; do sleep 0.2; done' RUN_AS='' RUN_IN='{}' RESTARTS=2 JOB_ENV=''\n",
        runs.display(),
        host.path("").display()
    );
    let told = || std::fs::read_to_string(&runs).unwrap_or_default();
    host.boot_script(&VERSION_1.replace("#@SETTINGS@\n", &settings));
    host.wait("the first one runs", || told() == "first\n");
    host.boot();
    let says = || host.phase().starts_with("chips_busy: process ");
    host.wait("the later one names it", says);
    assert!(host.phase().ends_with(" is supervisor 1, whose job runs on: a reboot ends both"));
    host.wait("both report", || host.phase() == "running");
    host.wait("the later one still waits", says);
    assert_eq!(told(), "first\n");
    host.power_cycle(&[]);
    host.wait("it runs", || host.phase() == "running" && told() == "first\nlater\n");
}
