//! Carries out reads and actions, each in a task of its own that answers with exactly one input.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

use super::World;
use super::tenure::Tenure;
use crate::checkpoint::lister::survey;
use crate::google::http::CONNECT_MAX;
use crate::model::action::{Action, CallOutcome, Input, Look, Reading};
use crate::model::failure::{Failure, FailureClass};
use crate::model::fleet::elapsed;

/// Bounds on what is under way at once. What a slow bucket or many guests hold up must never hold
/// up a delete.
#[derive(Clone)]
pub struct Permits {
    calls: Arc<Semaphore>,
    surveys: Arc<Semaphore>,
}

impl Permits {
    /// So many of each kind.
    pub fn new(each: usize) -> Self {
        Permits { calls: Arc::new(Semaphore::new(each)), surveys: Arc::new(Semaphore::new(each)) }
    }
}

/// Starts a read; it is given up after `limit`.
pub fn look(
    look: Look,
    world: &World,
    permits: &Permits,
    sender: &UnboundedSender<Input>,
    limit: Duration,
) {
    let (world, permits, sender) = (world.clone(), permits.clone(), sender.clone());
    tokio::spawn(async move {
        if let Look::Operation { at, .. } = &look {
            tokio::time::sleep(elapsed(Timestamp::now(), *at)).await;
        }
        let kind = match &look {
            Look::Node { .. } | Look::Operation { .. } => &permits.calls,
            Look::Attributes { .. } | Look::Checkpoints { .. } => &permits.surveys,
        };
        // A closed semaphore can't be: nobody closes it; without a permit the read goes ahead.
        let _permit = kind.acquire().await;
        let deadline = Instant::now() + limit.max(Duration::from_secs(1));
        let input = match look {
            Look::Node { slot, zone } => {
                let began = Timestamp::now();
                let reading = match world.tpu.get_node(&zone, &slot, deadline).await {
                    Ok(view) => Reading::Node(Arc::new(view)),
                    Err(failure) if failure.class == FailureClass::NotFound => Reading::Absent,
                    Err(failure) => {
                        tracing::warn!(
                            slot,
                            "GET of the node failed: {failure}; nothing is concluded from it"
                        );
                        Reading::Unread(format!("GET failed: {failure}"))
                    }
                };
                Input::Got { slot, began, reading }
            }
            Look::Operation { slot, operation, .. } => {
                let result = world.tpu.get_operation(&operation, deadline).await;
                Input::Operated { slot, operation, result }
            }
            Look::Attributes { slot, zone, of } => {
                let began = Timestamp::now();
                let result = world.tpu.guest_attributes(&zone, &slot, deadline).await;
                Input::Attributes { slot, of, began, result }
            }
            Look::Checkpoints { slot, location, set_aside } => {
                let began = Timestamp::now();
                let timeout = deadline.saturating_duration_since(Instant::now());
                let result = match tokio::time::timeout(
                    timeout,
                    survey(&location, &world.storage, set_aside),
                )
                .await
                {
                    Ok(result) => result,
                    Err(_) => Err(Failure::new(
                        FailureClass::Transient,
                        format!("listing {} took too long", location.uri),
                    )),
                };
                Input::Surveyed { slot, began, location: location.uri, result }
            }
        };
        // The receiver lives as long as the loop; without it nobody wants the answer.
        let _ = sender.send(input);
    });
}

/// Carries out an action whose intent is durable.
pub fn act(
    action: Action,
    world: &World,
    permits: &Permits,
    tenure: &Tenure,
    sender: &UnboundedSender<Input>,
) {
    let (world, permits, tenure, sender) =
        (world.clone(), permits.clone(), tenure.clone(), sender.clone());
    tokio::spawn(async move {
        let _permit = permits.calls.acquire().await;
        // A token that must be fetched is fetched before anything that ages is looked at.
        let prepared = world.tpu.prepare().await;
        let slot = action.slot().to_owned();
        let not_sent =
            |message: &str| CallOutcome::NotSent(Failure::new(FailureClass::Transient, message));
        let outcome = match (prepared, action) {
            (Err(failure), _) => CallOutcome::NotSent(failure),
            _ if !tenure.may_send() => {
                not_sent("the lock was not renewed in time, and another watchdog may be at work")
            }
            (Ok(_), action) if !action.may_leave(Timestamp::now(), CONNECT_MAX) => {
                not_sent("the GET that verified it would be older than 5 s; it is verified again")
            }
            (Ok(prepared), Action::Delete { slot, zone, request_id, .. }) => {
                world.tpu.delete_node(&zone, &slot, request_id.as_deref(), prepared).await
            }
            (Ok(prepared), Action::Create { slot, zone, body, request_id }) => {
                world.tpu.create_node(&zone, &slot, &body, request_id.as_deref(), prepared).await
            }
        };
        let _ = sender.send(Input::Called { slot, outcome });
    });
}
