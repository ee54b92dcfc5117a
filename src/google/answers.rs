//! What the Cloud TPU API answers, read apart from how it came: a page of nodes, an operation.

use std::sync::Arc;

use serde_json::Value;

use super::classify::operation_failure;
use super::origin::Origin;
use crate::model::event::Verb;
use crate::model::node::NodeView;
use crate::model::operation::OperationState;

/// One page of `nodes.list`.
#[derive(Debug)]
pub struct NodePage {
    /// The nodes on it.
    pub nodes: Vec<Arc<NodeView>>,
    /// Zones that did not answer.
    pub unreachable: Vec<String>,
    /// The token of the next page.
    pub next: Option<String>,
}

/// Reads one page of `nodes.list`.
///
/// # Errors
/// When it holds anything but nodes: a list that is understood in part would show the rest as
/// absent.
pub fn node_page(mut page: Value) -> Result<NodePage, String> {
    let nodes = match page.get_mut("nodes").map(Value::take) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(all)) => all
            .into_iter()
            .map(|raw| NodeView::parse(raw).map(Arc::new))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err("\"nodes\" is not a list".into()),
    };
    let unreachable = match page.get("unreachable") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(all)) => all
            .iter()
            .filter_map(Value::as_str)
            .map(|z| z.rsplit('/').next().unwrap_or(z).to_owned())
            .collect(),
        Some(_) => return Err("\"unreachable\" is not a list".into()),
    };
    let next = match page.get("nextPageToken") {
        None | Some(Value::Null) => None,
        Some(Value::String(next)) => Some(next.clone()).filter(|next| !next.is_empty()),
        Some(_) => return Err("\"nextPageToken\" is not text".into()),
    };
    Ok(NodePage { nodes, unreachable, next })
}

/// Reads what `operations.get` answers of a create or delete. What its error means depends on the
/// call, and on whether that asked for Spot capacity.
pub fn operation(answer: &Value, verb: Verb, spot: bool) -> OperationState {
    match (answer.get("done").and_then(Value::as_bool), answer.get("error")) {
        (Some(true), Some(error)) if error.is_object() => {
            OperationState::Failed(operation_failure(Origin::operation(verb, spot), error))
        }
        (Some(true), _) => OperationState::Succeeded,
        _ => OperationState::Running,
    }
}

/// The name of the operation by which a call was accepted.
pub fn accepted(answer: &Value) -> Option<&str> {
    answer.get("name").and_then(Value::as_str).filter(|name| name.contains("/operations/"))
}
