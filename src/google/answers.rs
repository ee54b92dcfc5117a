//! What the Cloud TPU API answers, read apart from how it came: a page of nodes, an operation.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::classify::operation_failure;
use super::origin::Origin;
use crate::model::event::Verb;
use crate::model::failure::{Failure, FailureClass};
use crate::model::lookup::Deletion;
use crate::model::node::NodeView;
use crate::model::operation::OperationState;
use crate::model::queued::RequestView;
use crate::model::training::JobKind;
use crate::resource::capacity::is_taken_back;
use crate::resource::mask::Mask;

/// An entry of a listing that is no node.
#[derive(Debug)]
pub struct Unreadable {
    /// The node's id, where its name shows one.
    pub node: Option<String>,
    /// Why it can't be read.
    pub why: String,
}

/// One page of `nodes.list`.
#[derive(Debug)]
pub struct NodePage {
    /// The nodes on it.
    pub nodes: Vec<Arc<NodeView>>,
    /// Entries that can't be read: one alien node does not hide a zone.
    pub unreadable: Vec<Unreadable>,
    /// Zones that did not answer.
    pub unreachable: Vec<String>,
    /// The token of the next page.
    pub next: Option<String>,
}

/// Reads one page of `nodes.list`, which came through v2alpha1 or not.
///
/// # Errors
/// When it is no page: a list that is understood in part would show the rest as absent.
pub fn node_page(mut page: Value, alpha: bool) -> Result<NodePage, String> {
    let all = list(&mut page, "nodes")?;
    let (mut nodes, mut unreadable) = (Vec::with_capacity(all.len()), Vec::new());
    for raw in all {
        let name =
            raw.get("name").and_then(Value::as_str).and_then(|name| name.split('/').next_back());
        let node = name.filter(|name| !name.is_empty()).map(str::to_owned);
        match NodeView::parse(raw) {
            Ok(view) => nodes.push(Arc::new(if alpha { view.through_alpha() } else { view })),
            Err(why) => unreadable.push(Unreadable { node, why }),
        }
    }
    let unreachable = unreachable(&page)?;
    let next = next_page(&page)?;
    Ok(NodePage { nodes, unreadable, unreachable, next })
}

/// One page of `queuedResources.list`.
#[derive(Debug)]
pub struct RequestPage {
    /// The requests on it.
    pub requests: Vec<RequestView>,
    /// Zones that did not answer.
    pub unreachable: Vec<String>,
    /// The token of the next page.
    pub next: Option<String>,
}

/// Reads one page of `queuedResources.list`, which came through v2alpha1 or not.
///
/// # Errors
/// When it is no page, or one of its entries can't be read: what it lacks would look gone.
pub fn request_page(mut page: Value, alpha: bool) -> Result<RequestPage, String> {
    let all = list(&mut page, "queuedResources")?.into_iter();
    let requests = all.map(|raw| request(raw, alpha)).collect::<Result<_, _>>()?;
    Ok(RequestPage { requests, unreachable: unreachable(&page)?, next: next_page(&page)? })
}

/// Reads a queued resource, which came through v2alpha1 or not, and what its error means.
///
/// # Errors
/// When its name can't be read.
pub fn request(raw: Value, alpha: bool) -> Result<RequestView, String> {
    let error = raw.pointer("/state/failedData/error").filter(|error| error.is_object());
    let origin = Origin::operation(Verb::Create, raw.get("spot").is_some() || is_taken_back(&raw));
    // It may quote what was asked for, as a refusal does.
    let mask = Mask::of(error.is_some().then_some(&raw));
    let failure = error.map(|error| operation_failure(origin, error));
    let failure =
        failure.map(|failure| Failure { message: mask.apply(&failure.message), ..failure });
    Ok(RequestView { failure, alpha, ..RequestView::parse(raw)? })
}

/// The zones that did not answer a listing.
fn unreachable(page: &Value) -> Result<Vec<String>, String> {
    match page.get("unreachable") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all)) => {
            let zone = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
            Ok(all.iter().filter_map(Value::as_str).map(zone).collect())
        }
        Some(_) => Err("\"unreachable\" is not a list".into()),
    }
}

/// The entries of a page; none where it lacks them.
///
/// # Errors
/// When they are no list.
pub fn list(page: &mut Value, field: &str) -> Result<Vec<Value>, String> {
    match page.get_mut(field).map(Value::take) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all)) => Ok(all),
        Some(_) => Err(format!("{field:?} is not a list")),
    }
}

/// The finding of a read; none where the API says that it is not there.
///
/// # Errors
/// Any other failure.
pub fn found<T>(read: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.class == FailureClass::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The token of the next page.
///
/// # Errors
/// When it is there, and is not text: what the list lacks then would look gone.
pub fn next_page(page: &Value) -> Result<Option<String>, String> {
    match page.get("nextPageToken") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(next)) => Ok(Some(next.clone()).filter(|next| !next.is_empty())),
        Some(_) => Err("\"nextPageToken\" is not text".into()),
    }
}

/// Reads one page of `operations.list`: its operations, and the token of the next page.
///
/// # Errors
/// When it is no page, or a zone did not answer: a list that lacks something proves nothing.
pub fn operation_page(page: &Value) -> Result<(&[Value], Option<String>), String> {
    let operations = match page.get("operations") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(all)) => all.as_slice(),
        Some(_) => return Err("\"operations\" is not a list".into()),
    };
    let silent = unreachable(page)?;
    if !silent.is_empty() {
        return Err(format!("{} did not answer", silent.join(", ")));
    }
    Ok((operations, next_page(page)?))
}

/// An operation that deleted, or is deleting, what `target` ends, unless it began before `since`
/// or failed.
pub fn deletion(operation: &Value, targets: &[String], since: Timestamp) -> Option<Deletion> {
    let text = |pointer: &str| operation.pointer(pointer).and_then(Value::as_str);
    let at: Timestamp = text("/metadata/createTime")?.parse().ok()?;
    let deletes = text("/metadata/verb")?.eq_ignore_ascii_case("delete");
    let failed = operation.get("error").is_some_and(Value::is_object);
    let target = text("/metadata/target")?;
    let meant = targets.iter().any(|known| target.ends_with(known));
    (deletes && !failed && at >= since && meant)
        .then_some(Deletion { operation: text("/name")?.to_owned(), at })
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

/// The name of the operation by which a call was accepted, or of the job that it made.
pub fn accepted(answer: &Value) -> Option<&str> {
    answer
        .get("name")
        .and_then(Value::as_str)
        .filter(|name| name.contains("/operations/") || JobKind::has_named(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_is_accepted_by_its_operation_or_by_the_job_of_any_kind() {
        for (name, is) in [
            ("projects/p/locations/z/operations/o", true),
            ("projects/-/locations/r/customJobs/1", true),
            ("projects/-/locations/r/hyperparameterTuningJobs/1", true),
            ("projects/-/locations/global/jobs/a", true),
            ("projects/p/locations/z/nodes/n", false),
        ] {
            assert_eq!(accepted(&json!({"name": name})).is_some(), is, "{name}");
        }
    }
}
