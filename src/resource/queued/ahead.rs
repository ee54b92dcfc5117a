//! The specification of a request that is asked for ahead: as the present one, not to be granted before that one ends, and
//! with ids of its own, since the API keeps two things of one name apart.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::body::{VALID_FOR, lasts};
use crate::model::ahead::next_id;
use crate::model::spec::{NodeSpec, REQUEST_KEY, SLICES_KEY};
use crate::model::time::after;
use crate::resource::capacity::SEVERAL;
use crate::resource::node::time;

/// Longest id of a node and of a queued resource. Source: RFC 1035 names of the API.
const ID_MAX: usize = 63;

impl NodeSpec {
    /// The request after this one, which ends at `end`; `node` is the node's id where this names none. None where its people
    /// gave their request an end that is over by then, or where its ids get too long.
    pub fn after_end(&self, end: Timestamp, node: &str) -> Option<NodeSpec> {
        let mut next = self.clone();
        let around = next.body_mut().entry(REQUEST_KEY).or_insert_with(|| json!({}));
        let around = around.as_object_mut()?;
        let run = around.get("runDuration").and_then(|run| time(run, "terminationTime"));
        if run.is_some_and(|until| until <= end) {
            return None;
        }
        let until = ends(around.get("queueingPolicy").unwrap_or(&Value::Null), end)?;
        let interval = json!({"startTime": end, "endTime": until});
        around.insert("queueingPolicy".into(), json!({ "validInterval": interval }));
        let several = around.get(SLICES_KEY).and_then(Value::as_u64) > Some(1);
        let spec = around.entry("nodeSpec").or_insert_with(|| json!({})).as_object_mut()?;
        name(spec, several, node).then_some(next)
    }

    /// The queueing policy that this has.
    pub fn policy(&self) -> Option<&Value> {
        self.body().get(REQUEST_KEY)?.get("queueingPolicy")
    }

    /// This with another queueing policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Option<&Value>) -> NodeSpec {
        let around = self.body_mut().get_mut(REQUEST_KEY).and_then(Value::as_object_mut);
        match (around, policy) {
            (Some(around), Some(policy)) => {
                _ = around.insert("queueingPolicy".into(), policy.clone());
            }
            (Some(around), None) => _ = around.remove("queueingPolicy"),
            (None, _) => {}
        }
        self
    }
}

/// Until when it waits at most, as the present one's policy says; none where that is over before it begins.
fn ends(policy: &Value, from: Timestamp) -> Option<Timestamp> {
    let given = time(policy, "validUntilTime");
    let given = given.or_else(|| time(policy.get("validInterval")?, "endTime"));
    match given {
        Some(until) => Some(until).filter(|until| *until > from),
        None => Some(after(from, lasts(policy).unwrap_or(VALID_FOR))),
    }
}

/// Gives its nodes other ids. Returns whether they are short enough.
fn name(spec: &mut Map<String, Value>, several: bool, node: &str) -> bool {
    let many = SEVERAL.iter().find(|key| spec.contains_key(**key)).filter(|_| several);
    let (of, key) = match many.and_then(|key| spec.get_mut(*key)?.as_object_mut()) {
        // Without a prefix they are called after the request, whose id is another one.
        Some(many) if !many.contains_key("nodeIdPrefix") => return true,
        Some(many) => (many, "nodeIdPrefix"),
        None => (spec, "nodeId"),
    };
    let next = next_id(of.get(key).and_then(Value::as_str).unwrap_or(node));
    // A slice's number follows the prefix.
    let number = if several { "-4095".len() } else { 0 };
    let fits = next.len() + number <= ID_MAX;
    of.insert(key.into(), json!(next));
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: &str = "2026-06-08T12:00:00Z";

    fn of(around: Value) -> NodeSpec {
        let body = json!({"acceleratorType": "v6e-8", "runtimeVersion": "v", REQUEST_KEY: around});
        NodeSpec::new(body.as_object().unwrap().clone())
    }

    fn next(around: Value) -> Option<Value> {
        let next = of(around).after_end(END.parse().unwrap(), "slot")?;
        Some(next.body()[REQUEST_KEY].clone())
    }

    #[test]
    fn s12_the_next_request_is_as_the_present_one_but_for_its_beginning_and_its_ids() {
        let run = json!({"maxRunDuration": "604800s"});
        for (policy, until) in [
            (json!({}), "2026-06-15T12:00:00Z"),
            (json!({"validUntilDuration": "3600s"}), "2026-06-08T13:00:00Z"),
            (json!({"validUntilTime": "2026-06-09T00:00:00Z"}), "2026-06-09T00:00:00Z"),
            (
                json!({"validInterval": {"startTime": "2026-06-01T00:00:00Z", "endTime": "2026-06-09T00:00:00Z"}}),
                "2026-06-09T00:00:00Z",
            ),
        ] {
            let around = json!({
                "provisioningModel": "FLEX_START", "runDuration": run, "later": 1, "queueingPolicy": policy,
                "nodeSpec": {"nodeId": "n"},
            });
            let mut expected = around.clone();
            expected["queueingPolicy"] =
                json!({"validInterval": {"startTime": END, "endTime": until}});
            expected["nodeSpec"]["nodeId"] = json!("n-next");
            assert_eq!(next(around.clone()), Some(expected), "{policy}");
            let back = of(next(around.clone()).unwrap()).with_policy(Some(&policy));
            let ids = back.after_end(END.parse().unwrap(), "slot").unwrap();
            assert_eq!(ids.body()[REQUEST_KEY]["nodeSpec"], json!({"nodeId": "n"}), "in turns");
        }
        assert_eq!(next(json!({})).unwrap()["nodeSpec"], json!({"nodeId": "slot-next"}));
        let many = json!({"nodes": 2, "nodeSpec": {SEVERAL[0]: {"nodeIdPrefix": "s"}}});
        let named = json!({SEVERAL[0]: {"nodeIdPrefix": "s-next"}});
        assert_eq!(next(many).unwrap()["nodeSpec"], named);
        let unnamed = json!({"nodes": 2, "nodeSpec": {SEVERAL[0]: {}}});
        assert_eq!(next(unnamed.clone()).unwrap()["nodeSpec"], unnamed["nodeSpec"]);
        assert_eq!(of(json!({"queueingPolicy": 1})).with_policy(None).policy(), None);
    }

    #[test]
    fn nothing_is_asked_for_past_an_end_that_its_people_gave_or_under_an_id_that_is_too_long() {
        let over = "2026-06-08T12:00:00Z";
        for around in [
            json!({"queueingPolicy": {"validUntilTime": over}}),
            json!({"queueingPolicy": {"validInterval": {"endTime": over}}}),
            json!({"runDuration": {"terminationTime": over}}),
            json!({"nodeSpec": {"nodeId": "n".repeat(59)}}),
        ] {
            assert_eq!(next(around.clone()), None, "{around}");
        }
        let longest = json!({"nodeSpec": {"nodeId": "n".repeat(58)}});
        assert!(next(longest).is_some());
    }
}
