//! The slices of a multislice in the body of its request: how many they are, what their nodes are called, and what their hosts
//! are told of it.

use serde_json::{Map, Value, json};

use crate::model::ids::RUN_KEY;
use crate::resource::capacity::SEVERAL;

/// The first run order of a multislice says how many slices it has (S22): hosts whose own metadata does not say so yet must not
/// take a roll-call of one slice.
pub fn tell_slices(node: &mut Map<String, Value>, count: Option<&Value>) {
    let Some(count) = count.and_then(Value::as_u64).filter(|count| *count > 1) else { return };
    let Some(run) = node.get_mut("metadata").and_then(|metadata| metadata.get_mut(RUN_KEY)) else {
        return;
    };
    let order: Option<Value> = run.as_str().and_then(|text| serde_json::from_str(text).ok());
    if let Some(mut order) = order.filter(Value::is_object) {
        order["slices"] = count.into();
        *run = Value::String(order.to_string());
    }
}

/// The ids of the nodes: one, or the prefix of `count`, in the field of the version that is asked.
pub fn name_nodes(spec: &mut Map<String, Value>, count: Option<Value>, node: &str, alpha: bool) {
    let known = SEVERAL.iter().find_map(|key| spec.remove(*key));
    let Some(count) = count.filter(|count| count.as_i64().is_some_and(|count| count > 1)) else {
        spec.entry("nodeId").or_insert_with(|| json!(node));
        return;
    };
    spec.remove("nodeId");
    let mut many = known.unwrap_or_else(|| json!({"nodeIdPrefix": node}));
    if let Some(many) = many.as_object_mut() {
        many.insert("nodeCount".into(), count);
    }
    spec.insert(SEVERAL[usize::from(alpha)].into(), many);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::RunOrder;

    #[test]
    fn s22_the_first_order_of_a_multislice_says_how_many_slices_it_has() {
        let order = RunOrder { generation: 3, ..RunOrder::default() };
        let told = |count: Option<Value>| {
            let mut node = Map::new();
            node.insert("metadata".into(), json!({RUN_KEY: order.text()}));
            tell_slices(&mut node, count.as_ref());
            serde_json::from_str::<Value>(node["metadata"][RUN_KEY].as_str().unwrap()).unwrap()
        };
        assert_eq!(told(Some(json!(2)))["slices"], 2);
        assert_eq!(told(Some(json!(1))).get("slices"), None);
        assert_eq!(told(None).get("slices"), None);
        let read: RunOrder = serde_json::from_value(told(Some(json!(2)))).unwrap();
        assert_eq!(read, order, "it is the same order");
    }
}
