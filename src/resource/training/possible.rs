//! Capacity and regions that a managed training job can't have, found before it is submitted.
//!
//! Sources: "Use Spot VMs with training" (A2 and A3 alone, no TPU), "Schedule training jobs" (flex-start), and the fields of
//! aiplatform v1 that name a resource of one region.

use serde_json::Value;

use super::super::node::text;
use crate::model::spec::{NodeSpec, TRAINING_KEY};
use crate::model::training::{JobKind, Strategy, Training};

/// Machine series of Spot capacity.
const SPOT: [&str; 2] = ["a2-", "a3-"];
/// GPUs of flex-start capacity.
const FLEXIBLE: [&str; 5] = ["L4", "A100", "H100", "H200", "B200"];
/// Flex-start capacity lasts so many seconds at most.
const FLEXIBLE_FOR: f64 = 7.0 * 86_400.0;
/// Fields of a job, of its specification and of a machine that name a resource of one region.
const REGIONAL: [&str; 5] = [
    "encryptionSpec/kmsKeyName",
    "tensorboard",
    "persistentResourceId",
    "pscInterfaceConfig/networkAttachment",
    "reservationAffinity/values",
];

/// Why a job of this specification can't be submitted as the config wants it, by the field that is in the way.
pub fn obstacle(spec: &NodeSpec, of: &Training) -> Option<String> {
    let whole = spec.body().get(TRAINING_KEY)?;
    let job = whole.get(JobKind::of(whole).spec())?;
    let pools = job.get("workerPoolSpecs").and_then(Value::as_array).into_iter().flatten();
    let machines: Vec<&Value> = pools.filter_map(|pool| pool.get("machineSpec")).collect();
    let set = |field: &&str| {
        let mut places = machines.iter().copied().chain([whole, job]);
        places.any(|of| of.pointer(&format!("/{field}")).is_some_and(is_set))
    };
    if let Some(field) = REGIONAL.into_iter().find(set).filter(|_| of.regions.len() > 1) {
        let field = field.replace('/', ".");
        return Some(format!("{field} is of one region: name no other one in `regions`"));
    }
    let all = |key: &'static str| {
        machines.iter().map(move |machine| machine[key].as_str().unwrap_or_default())
    };
    match of.strategy {
        Strategy::Keep | Strategy::Standard => None,
        Strategy::Spot => {
            let mut kinds = all("machineType").chain(of.next_machine.iter().map(String::as_str));
            let other = kinds.find(|kind| !SPOT.iter().any(|series| kind.starts_with(series)))?;
            Some(format!(
                "machineType {other:?} is not to be had as Spot capacity here (A2 and A3 are): set strategy = \"keep\""
            ))
        }
        Strategy::FlexStart(_) => {
            let fits = |kind: &&str| kind.split('_').any(|word| FLEXIBLE.contains(&word));
            if let Some(other) = all("acceleratorType").find(|kind| !fits(kind)) {
                return Some(format!(
                    "acceleratorType {other:?} is not to be had by flex-start (L4, A100, H100, H200 and B200 are)"
                ));
            }
            if machines.iter().any(|machine| *machine != machines[0]) {
                return Some("flex-start takes the same machineSpec in all worker pools".into());
            }
            let timeout = job.pointer("/scheduling/timeout").and_then(Value::as_str);
            let seconds = timeout.and_then(|text| text.strip_suffix('s')?.parse::<f64>().ok());
            seconds.filter(|seconds| *seconds > FLEXIBLE_FOR).map(|_| {
                "scheduling.timeout is longer than the 7 days of flex-start capacity".to_owned()
            })
        }
    }
}

/// A setting that a job of several workers should have. Source: aiplatform v1, `Scheduling.restartJobOnWorkerRestart`.
pub fn advice(spec: &NodeSpec) -> Option<String> {
    let job = spec.body().get(TRAINING_KEY)?;
    let job = job.get(JobKind::of(job).spec())?;
    let pools = job.get("workerPoolSpecs")?.as_array()?;
    // An int64 is text in an answer.
    let count = |pool: &Value| text(pool.get("replicaCount")?).parse::<u64>().ok();
    let replicas: u64 = pools.iter().map(|pool| count(pool).unwrap_or(1)).sum();
    let set = job.pointer("/scheduling/restartJobOnWorkerRestart") == Some(&Value::Bool(true));
    (replicas > 1 && !set).then(|| {
        format!(
            "its {replicas} replicas run without scheduling.restartJobOnWorkerRestart: where Google's service restarts one worker, the others go \
             on without it, and most programs hang; set it, unless the program takes workers back"
        )
    })
}

fn is_set(value: &Value) -> bool {
    !value.is_null() && value != "" && !value.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    const FLEXIBLY: Strategy = Strategy::FlexStart(Duration::from_secs(3600));

    #[test]
    fn what_a_job_cannot_have_is_named_by_its_field() {
        let why = |strategy: Strategy, regions: usize, job: Value| {
            let regions = vec![String::new(); regions];
            let of = Training { strategy, regions, ..Training::default() };
            let spec = json!({ TRAINING_KEY: job });
            let spec = NodeSpec::new(spec.as_object().unwrap().clone());
            obstacle(&spec, &of).unwrap_or_default()
        };
        let pools = |kinds: &[(&str, &str)]| {
            let pool = |(kind, gpu): &(&str, &str)| json!({"machineSpec": {"machineType": kind, "acceleratorType": gpu}});
            kinds.iter().map(pool).collect::<Vec<_>>()
        };
        let job = |kinds: &[(&str, &str)]| json!({"jobSpec": {"workerPoolSpecs": pools(kinds)}});
        let (a2, v100) =
            (("a2-highgpu-1g", "NVIDIA_TESLA_A100"), ("n1-standard-8", "NVIDIA_TESLA_V100"));
        assert_eq!(why(Strategy::Keep, 2, job(&[v100])), "");
        assert_eq!(why(Strategy::Spot, 1, job(&[a2])), "");
        assert!(why(Strategy::Spot, 1, job(&[a2, v100])).contains("n1-standard-8"));
        assert!(why(Strategy::Spot, 1, job(&[("cloud-tpu", "TPU_V3")])).contains("cloud-tpu"));
        assert_eq!(why(FLEXIBLY, 1, job(&[a2, a2])), "");
        assert!(why(FLEXIBLY, 1, job(&[v100])).contains("NVIDIA_TESLA_V100"));
        assert!(
            why(FLEXIBLY, 1, job(&[a2, ("a3-highgpu-8g", "NVIDIA_H100_80GB")]))
                .contains("same machineSpec")
        );
        let mut long = job(&[a2]);
        long["jobSpec"]["scheduling"] = json!({"timeout": "604801s"});
        assert!(why(FLEXIBLY, 1, long).contains("7 days"));
        assert!(why(FLEXIBLY, 1, job(&[("a4x-highgpu-4g", "NVIDIA_GB200")])).contains("GB200"));
        let next = Training {
            strategy: Strategy::Spot,
            next_machine: vec!["n1-standard-8".into()],
            ..Training::default()
        };
        let spec = json!({ TRAINING_KEY: job(&[a2]) });
        let spec = NodeSpec::new(spec.as_object().unwrap().clone());
        assert!(obstacle(&spec, &next).unwrap().contains("n1-standard-8"));
        // Each field that names a resource of one region.
        let of = "projects/p/locations/us-central1/x";
        for (place, field, value) in [
            ("", "encryptionSpec", json!({"kmsKeyName": of})),
            ("/jobSpec", "tensorboard", json!(of)),
            ("/jobSpec", "persistentResourceId", json!("x")),
            ("/jobSpec", "pscInterfaceConfig", json!({"networkAttachment": of})),
            (
                "/jobSpec/workerPoolSpecs/0/machineSpec",
                "reservationAffinity",
                json!({"values": [of]}),
            ),
        ] {
            let mut bound = job(&[a2]);
            bound.pointer_mut(place).unwrap()[field] = value;
            assert_eq!(why(Strategy::Keep, 1, bound.clone()), "", "{field}");
            let said = why(Strategy::Keep, 2, bound);
            assert!(said.starts_with(field) && said.contains("is of one region"), "{said}");
        }
    }

    #[test]
    fn several_replicas_are_to_restart_together() {
        let advice = |job: Value| {
            let spec = json!({ TRAINING_KEY: { "jobSpec": job } });
            advice(&NodeSpec::new(spec.as_object().unwrap().clone()))
        };
        let pools = json!([{"replicaCount": "1"}, {"replicaCount": 3}, {}]);
        let several = json!({ "workerPoolSpecs": pools });
        assert!(advice(several.clone()).unwrap().starts_with("its 5 replicas run without"));
        let mut together = several;
        together["scheduling"] = json!({"restartJobOnWorkerRestart": true});
        assert_eq!(advice(together), None);
        assert_eq!(advice(json!({"workerPoolSpecs": [{"replicaCount": "1"}]})), None);
    }
}
