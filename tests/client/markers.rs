//! Empty objects that mark folders, which the console and gcsfuse make: they are no content of a checkpoint location.

use std::time::Duration;

use jiff::Timestamp;
use tpu_watchdog::checkpoint::lister::{StorageAccess, survey};
use tpu_watchdog::model::checkpoint::CheckpointSurvey;
use tpu_watchdog::model::settings::{CheckpointSettings, OrbaxMode};
use tpu_watchdog::simulator::things::Object;

use tpu_watchdog::simulator::cloud::Cloud;
use tpu_watchdog::simulator::http::Simulator;

async fn surveyed(objects: &[(&str, u64)], orbax_mode: OrbaxMode) -> CheckpointSurvey {
    let simulator = Simulator::new(Cloud::new(Default::default()));
    let listener = Simulator::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(simulator.clone().serve(listener));
    simulator.with(|cloud| {
        for (name, size) in objects {
            let object = Object::sized(*size, Timestamp::UNIX_EPOCH);
            cloud.objects.insert(format!("b/{name}"), object);
        }
    });
    let access = StorageAccess::new(Some(base), None, Duration::from_secs(5));
    let settings = CheckpointSettings { uri: "gs://b/run".into(), format: None, orbax_mode };
    survey(&settings, &access, None).await.unwrap()
}

#[tokio::test]
async fn folders_that_were_made_beforehand_are_no_content() {
    let made = [("run/", 0), ("run/tensorboard/", 0)];
    let seen = surveyed(&made, OrbaxMode::Auto).await;
    assert_eq!((seen.newest, seen.other), (None, None));
    let strange = surveyed(&[("run/", 0), ("run/epoch1.ckpt", 7)], OrbaxMode::Auto).await;
    assert_eq!(strange.other.unwrap().names, ["epoch1.ckpt"]);
    // A step's own folder alone is no step.
    let begun = [("run/10/", 0), ("run/5/", 0), ("run/5/default/d/0", 7), ("run/5/_METADATA", 7)];
    let newest = surveyed(&begun, OrbaxMode::Rename).await.newest;
    assert_eq!(newest.map(|of| of.step), Some(5));
}
