//! From which capacity a create is served, in the words of both: a node's `schedulingConfig`, and the tier, model and
//! reservation of a queued resource. They must agree: the API refuses a Spot request with the model of another one.
//!
//! Sources: discovery documents of v2 and v2alpha1; "STANDARD provisioning model is incompatible with spot requests".

use serde_json::{Map, Value};

use crate::model::spec::{REQUEST_KEY, RESERVATION, reservation};

const MODEL: &str = "provisioningModel";
const FLEX_START: &str = "FLEX_START";

/// Whether a request's capacity can be taken back at any time, where its `spot` does not say so: v2alpha1 has two more words for
/// that (`bestEffort`, one of the tiers, and `provisioningModel`).
pub fn is_taken_back(around: &Value) -> bool {
    around.get("bestEffort").is_some() || around.get(MODEL).is_some_and(|model| model == "SPOT")
}

/// A capacity that the config chooses does not take along the tier, the model and the reservation of the one that was
/// learned. `says_spot`: it says whether that is Spot.
pub fn agree(body: &mut Map<String, Value>, says_spot: bool) {
    let scheduling = body.get_mut("schedulingConfig").and_then(Value::as_object_mut);
    let flag = |of: &Map<String, Value>, key: &str| of.get(key) == Some(&Value::Bool(true));
    let (mut spot, mut reserved) = (false, false);
    if let Some(scheduling) = scheduling {
        spot = flag(scheduling, "spot") || flag(scheduling, "preemptible");
        reserved = flag(scheduling, "reserved");
        if scheduling.get(MODEL).is_some_and(|model| (model == "SPOT") != spot) {
            scheduling.remove(MODEL);
        }
        if spot {
            scheduling.remove(RESERVATION);
        }
    }
    let Some(around) = body.get_mut(REQUEST_KEY).and_then(Value::as_object_mut) else { return };
    let model = around.get(MODEL).and_then(Value::as_str).unwrap_or_default();
    let flexible = model == FLEX_START && !(spot || reserved);
    let gone: &[&str] = match (spot, reserved, model) {
        (true, _, "SPOT") => &["bestEffort", "guaranteed", "reservationName"],
        (true, _, FLEX_START) => {
            &["bestEffort", "guaranteed", "reservationName", MODEL, "runDuration"]
        }
        (true, ..) => &["bestEffort", "guaranteed", "reservationName", MODEL],
        (_, true, FLEX_START) => &["bestEffort", MODEL, "runDuration"],
        (_, true, "SPOT") => &["bestEffort", MODEL],
        (_, true, _) => &["bestEffort"],
        (_, _, "SPOT") if says_spot => &["bestEffort", MODEL],
        _ if says_spot && !flexible => &["bestEffort"],
        _ if flexible => &["bestEffort", "reservationName"],
        _ => &[],
    };
    gone.iter().for_each(|key| _ = around.remove(*key));
}

/// Takes what v2 hides of a request from its specification as it was known: the request was made of that. Another
/// capacity has other fields.
pub fn with_hidden_of(body: &mut Map<String, Value>, former: &Map<String, Value>, hidden: &[&str]) {
    let spot = |of: &Map<String, Value>| {
        let scheduling = of.get("schedulingConfig");
        scheduling.and_then(|scheduling| scheduling.get("spot")).cloned()
    };
    let same = spot(body) == spot(former);
    let mine = body.get_mut(REQUEST_KEY).and_then(Value::as_object_mut);
    let known = former.get(REQUEST_KEY).and_then(Value::as_object);
    let (Some(mine), Some(known)) = (mine.filter(|_| same), known) else { return };
    for key in hidden {
        if let Some(value) = known.get(*key) {
            mine.entry(*key).or_insert_with(|| value.clone());
        }
    }
    // A former version learned it by either name.
    let kind = SEVERAL.iter().find_map(|key| known.get("nodeSpec")?.get(*key)?.get(WORKLOAD));
    let many = mine.get_mut("nodeSpec").and_then(|of| of.get_mut(SEVERAL[0])?.as_object_mut());
    if let (Some(kind), Some(many)) = (kind, many) {
        many.entry(WORKLOAD).or_insert_with(|| kind.clone());
    }
}

/// The reservation of a specification in full, where the config says its last part alone; `parent` is
/// `projects/P/locations/ZONE`. Of a node's `schedulingConfig`, or of what a queued resource says around it.
pub fn name_reservation(of: Option<&mut Value>, parent: &str) {
    let name = of.and_then(|of| of.get_mut(RESERVATION));
    if let Some(Value::String(name)) = name
        && !name.contains('/')
    {
        *name = format!("{parent}/reservations/{name}");
    }
}

/// Where a specification may name a reservation.
pub const RESERVED_BY: [&str; 2] = ["schedulingConfig", REQUEST_KEY];

/// Whether two values of a field mean the same: a reservation may be named by its last part.
pub fn means_the_same(key: &str, (one, other): (&Value, &Value)) -> bool {
    if key != RESERVATION {
        return one == other;
    }
    let (Some(one), Some(other)) = (one.as_str(), other.as_str()) else { return one == other };
    let in_full = one.contains('/') && other.contains('/');
    one == other || !in_full && reservation(one) == reservation(other)
}

/// The field that names several nodes, in place of `nodeId`: of v2, by which it is learned, and of v2alpha1.
pub const SEVERAL: [&str; 2] = ["multisliceParams", "multiNodeParams"];
/// A field of it that v2alpha1 alone has.
pub const WORKLOAD: &str = "workloadType";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_chosen_capacity_takes_nothing_of_another_one_along() {
        let flex =
            json!({"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "60s"}});
        let bound = json!({"provisioningModel": "RESERVATION_BOUND", "reservationName": "r"});
        let policy = json!({"queueingPolicy": {"validUntilDuration": "60s"}});
        for (scheduling, around, left) in [
            (json!({"spot": true}), flex.clone(), json!({})),
            (json!({"reserved": true}), flex.clone(), json!({})),
            (json!({"spot": true}), bound.clone(), json!({})),
            (json!({"reserved": true}), bound.clone(), bound),
            (json!({"spot": true}), json!({"bestEffort": {}, "guaranteed": {}}), json!({})),
            (json!({"reserved": true}), json!({"bestEffort": {}}), json!({})),
            (
                json!({"spot": true}),
                json!({"provisioningModel": "SPOT"}),
                json!({"provisioningModel": "SPOT"}),
            ),
            (json!({"reserved": true}), json!({"provisioningModel": "SPOT"}), json!({})),
            (json!({"spot": true}), json!({"provisioningModel": "STANDARD"}), json!({})),
            (json!({}), json!({"bestEffort": {}}), json!({"bestEffort": {}})),
            (json!({"spot": true}), policy.clone(), policy),
            (json!({}), flex.clone(), flex.clone()),
        ] {
            let mut body = json!({"schedulingConfig": scheduling, REQUEST_KEY: around});
            agree(body.as_object_mut().unwrap(), false);
            assert_eq!(body[REQUEST_KEY], left, "{scheduling} {around}");
        }
        for around in [json!({"provisioningModel": "SPOT"}), json!({"bestEffort": {}})] {
            let mut body = json!({"schedulingConfig": {}, REQUEST_KEY: around});
            agree(body.as_object_mut().unwrap(), true);
            assert_eq!(body[REQUEST_KEY], json!({}), "spot = false");
        }
        let mut body = json!({REQUEST_KEY: {"bestEffort": {}, "reservationName": "r", "provisioningModel": "FLEX_START"}});
        agree(body.as_object_mut().unwrap(), false);
        assert_eq!(body[REQUEST_KEY], json!({"provisioningModel": "FLEX_START"}));
    }

    #[test]
    fn what_v2_hides_of_a_request_is_kept_whatever_else_was_added_to_it() {
        let hidden = ["provisioningModel", "runDuration"];
        let known = json!({"queuedResource": {
            "provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "60s"},
            "nodeSpec": {"multisliceParams": {"nodeIdPrefix": "s", "workloadType": "AVAILABILITY_OPTIMIZED"}},
        }});
        let mut shown = json!({"queuedResource": {
            "queueingPolicy": {"validUntilDuration": "604800s"},
            "nodeSpec": {"multisliceParams": {"nodeIdPrefix": "s"}},
        }});
        let mut expected = known.clone();
        expected["queuedResource"]["queueingPolicy"] = json!({"validUntilDuration": "604800s"});
        let other = json!({"schedulingConfig": {"spot": true}, "queuedResource": {}});
        let mut changed = other.clone();
        with_hidden_of(shown.as_object_mut().unwrap(), known.as_object().unwrap(), &hidden);
        assert_eq!(shown, expected);
        with_hidden_of(changed.as_object_mut().unwrap(), known.as_object().unwrap(), &hidden);
        assert_eq!(changed, other, "another capacity has other fields");
    }
}
