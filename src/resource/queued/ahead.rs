//! The specification of a request that is asked for ahead: as the present one, not to be granted before that one ends, and
//! with ids of its own, since the API keeps two things of one name apart.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::body::VALID_FOR;
use super::lasts;
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
    let fits = next.len() < ID_MAX - if several { 4 } else { 0 };
    of.insert(key.into(), json!(next));
    fits
}
