//! Carries out polls, queries and requests, each in a task of its own that answers with exactly one
//! message.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

use super::{World, clock};
use crate::checkpoint::lister::survey;
use crate::driver::message::Message;
use crate::driver::poll::Plan;
use crate::driver::term::Term;
use crate::google::http::CONNECT_MAX;
use crate::model::action::{Action, Input, Look, Reading};
use crate::model::failure::{Failure, FailureClass};
use crate::model::filling::Filling;
use crate::model::time::elapsed;
use crate::report::metrics::Metrics;

/// Between two reads of guest attributes: 5 a second.
const ATTRIBUTES_APART: Duration = Duration::from_millis(200);
const ATTRIBUTES_IN_A_POLL: u32 = 20;

/// Bounds on the calls that are under way at once. A slow bucket, many guests or a zone that hangs
/// must never hold up a delete.
#[derive(Clone)]
pub struct Permits {
    calls: Arc<Semaphore>,
    mutations: Arc<Semaphore>,
    surveys: Arc<Semaphore>,
    // When the next read of guest attributes may leave, and how far apart they are.
    attributes: Arc<Mutex<Instant>>,
    apart: Duration,
}

impl Permits {
    /// So many of each kind, of which reads of guest attributes leave one after the other.
    pub fn new(each: usize, poll: Duration) -> Self {
        Permits {
            calls: Arc::new(Semaphore::new(each)),
            mutations: Arc::new(Semaphore::new(each)),
            surveys: Arc::new(Semaphore::new(each)),
            attributes: Arc::new(Mutex::new(Instant::now())),
            // Polls of less than a second are a test's.
            apart: (poll / ATTRIBUTES_IN_A_POLL).min(ATTRIBUTES_APART),
        }
    }

    fn of(&self, query: &Look) -> &Semaphore {
        match query {
            // A region of Vertex AI that hangs must not hold up a TPU.
            Look::Node { filling: Filling::Training(_), .. } => &self.surveys,
            Look::Node { .. } | Look::Stray { .. } | Look::Operation { .. } => &self.calls,
            Look::Attributes { .. }
            | Look::Checkpoints { .. }
            | Look::CreateCheck { .. }
            | Look::Deletions { .. } => &self.surveys,
        }
    }

    /// Waits until a read of guest attributes may leave.
    async fn attributes(&self) {
        let turn = {
            let mut next = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*next).max(Instant::now());
            *next = turn + self.apart;
            turn
        };
        tokio::time::sleep_until(turn.into()).await;
    }
}

/// Lists zones; answers with one message.
pub fn poll(
    plan: Plan,
    term: u64,
    world: World,
    metrics: Arc<Metrics>,
    sender: UnboundedSender<Message>,
) {
    tokio::spawn(async move {
        let began = Instant::now();
        let poll = super::poll::list(&world.tpu, &world.failing, plan).await;
        metrics.poll(began.elapsed());
        answer(&sender, term, Input::Polled(Box::new(poll)));
    });
}

/// Starts a read; it is given up after `limit`.
pub fn query(
    query: Look,
    term: u64,
    world: &World,
    permits: &Permits,
    sender: &UnboundedSender<Message>,
    limit: Duration,
) {
    let (world, permits, sender) = (world.clone(), permits.clone(), sender.clone());
    tokio::spawn(async move {
        if let Some(at) = query.at() {
            tokio::time::sleep(elapsed(Timestamp::now(), at)).await;
        }
        if matches!(query, Look::Attributes { .. }) {
            permits.attributes().await;
        }
        // A closed semaphore can't be: it is never closed; without a permit the read goes ahead.
        let _permit = permits.of(&query).acquire().await;
        let deadline = Instant::now() + limit.max(Duration::from_secs(1));
        let input = match query {
            Look::Node { slot, zone, filling, nodes } => {
                let began = Timestamp::now();
                let reading = filled(&world, (&slot, &nodes), &zone, &filling, deadline).await;
                Input::Got { slot, began, reading }
            }
            Look::Stray { zone, name, filling } => {
                let began = Timestamp::now();
                let nodes = std::slice::from_ref(&name);
                let reading = filled(&world, (&name, nodes), &zone, &filling, deadline).await;
                Input::StrayGot { zone, name, began, reading }
            }
            Look::CreateCheck { slot, next } => {
                let began = Timestamp::now();
                let found = world.tpu.create_check(&next, deadline).await;
                Input::CreateChecked { slot, began, found }
            }
            Look::Deletions { slot, zone, targets, since } => {
                let began = Timestamp::now();
                let result = world.tpu.deletions(&zone, &targets, since, deadline).await;
                Input::Deletions { slot, began, result }
            }
            Look::Operation { slot, operation, verb, spot, .. } => {
                let result = world.tpu.get_operation(&operation, verb, spot, deadline).await;
                Input::Operated { slot, operation, result }
            }
            Look::Attributes { slot, zone, nodes, of, workers, .. } => {
                let began = Timestamp::now();
                let result = world.tpu.reports_of(&zone, &nodes, workers, deadline).await;
                Input::Attributes { slot, of, began, result }
            }
            Look::Checkpoints { slot, location, set_aside } => {
                let began = Timestamp::now();
                let timeout = deadline.saturating_duration_since(Instant::now());
                let listing = survey(&location, &world.storage, set_aside);
                let listed = tokio::time::timeout(timeout, listing).await;
                let result = listed.unwrap_or_else(|_| {
                    let text = format!("listing {} took too long", location.uri);
                    Err(Failure::new(FailureClass::Transient, text))
                });
                Input::Surveyed { slot, began, location: location.uri, result }
            }
        };
        answer(&sender, term, input);
    });
}

/// Reads what fills a slot.
async fn filled(
    world: &World,
    (slot, nodes): (&str, &[String]),
    zone: &str,
    filling: &Filling,
    deadline: Instant,
) -> Reading {
    match filling {
        Filling::Node => get(world, slot, zone, deadline).await,
        Filling::QueuedResource(id) => {
            let read = world.tpu.get_filled(zone, id, nodes, deadline).await;
            read.unwrap_or_else(|failure| unread(slot, &failure))
        }
        Filling::Training(of) => {
            let read = world.tpu.get_job(of, (slot, nodes), zone, deadline).await;
            read.unwrap_or_else(|failure| unread(slot, &failure))
        }
    }
}

async fn get(world: &World, slot: &str, zone: &str, deadline: Instant) -> Reading {
    match world.tpu.get_node(zone, slot, deadline).await {
        Ok(view) => Reading::Node(Arc::new(view)),
        Err(failure) if failure.class == FailureClass::NotFound => Reading::Absent,
        Err(failure) => unread(slot, &failure),
    }
}

fn unread(slot: &str, failure: &Failure) -> Reading {
    tracing::warn!(slot, "GET failed: {failure}; nothing is concluded from it");
    Reading::Unread(format!("GET failed: {failure}"))
}

/// Sends a request whose intent is durable, if its term permits it at the moment it leaves.
pub fn send(
    action: Action,
    term: Term,
    world: &World,
    permits: &Permits,
    sender: &UnboundedSender<Message>,
) {
    let (world, permits, sender) = (world.clone(), permits.clone(), sender.clone());
    tokio::spawn(async move {
        let _permit = permits.mutations.acquire().await;
        let permitted = || term.permits(&action, clock::now(), CONNECT_MAX);
        let outcome = world.tpu.carry_out(&action, permitted).await;
        answer(&sender, term.number(), action.answer(outcome));
    });
}

fn answer(sender: &UnboundedSender<Message>, term: u64, input: Input) {
    // The receiver lives as long as the loop; without it the answer is not wanted.
    let _ = sender.send(Message::Answer { term, input: Box::new(input) });
}
