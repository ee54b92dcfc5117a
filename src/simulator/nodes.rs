//! The nodes of the simulated cloud, and the true story of each: what it was, from when to when.
//! Whoever checks a watchdog asks the story, never what the watchdog read or believed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use jiff::Timestamp;

use super::things::Node;
use crate::model::job_phase::JobPhase;

/// Zone and id.
pub type Place = (String, String);

/// The state of a node at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// `state`.
    pub state: &'static str,
    /// `health`.
    pub health: Option<String>,
    /// An `upcomingMaintenance` is ONGOING.
    pub maintenance: bool,
    /// Its hosts have booted, and what runs on them makes progress.
    pub at_work: bool,
    /// The label `tpu-watchdog=off`.
    pub opted_out: bool,
}

impl Facts {
    fn of(node: &Node) -> Facts {
        let run = &node.run;
        let label = node.body.get("labels").and_then(|labels| labels.get("tpu-watchdog"));
        Facts {
            state: node.state,
            health: node.health.clone(),
            maintenance: node
                .upcoming
                .as_ref()
                .is_some_and(|upcoming| upcoming["maintenanceStatus"] == "ONGOING"),
            at_work: run.boots > 0
                && !run.stopped
                && matches!(run.phase(), JobPhase::Compile | JobPhase::Running | JobPhase::Saving),
            opted_out: label.is_some_and(|label| label == "off"),
        }
    }
}

/// One stretch of a node's story. It ends where the next one begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// When it begins.
    pub since: Timestamp,
    /// Its state then; none once it is gone.
    pub facts: Option<Facts>,
}

/// Nodes by zone and id.
#[derive(Debug, Default)]
pub struct Nodes {
    by_place: BTreeMap<Place, Node>,
    changes: u64,
    touched: BTreeSet<Place>,
    /// Who stood there when the story was last told.
    known: BTreeMap<Place, u64>,
    stories: BTreeMap<u64, Vec<Moment>>,
}

impl Nodes {
    /// Grows with everything that may change a node. While it is the same they all are.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// A node that may be changed.
    pub fn get_mut(&mut self, place: &Place) -> Option<&mut Node> {
        self.touch(place);
        self.by_place.get_mut(place)
    }

    /// Adds a node, in the place of the one that was there.
    pub fn insert(&mut self, place: Place, node: Node) -> Option<Node> {
        self.touch(&place);
        self.by_place.insert(place, node)
    }

    /// Takes a node away.
    pub fn remove(&mut self, place: &Place) -> Option<Node> {
        self.touch(place);
        self.by_place.remove(place)
    }

    fn touch(&mut self, place: &Place) {
        self.changes += 1;
        if !self.touched.contains(place) {
            self.touched.insert(place.clone());
        }
    }

    /// Writes down what has become of all nodes that were touched since the last time: it is so
    /// since `now`.
    pub fn chronicle(&mut self, now: Timestamp) {
        for place in std::mem::take(&mut self.touched) {
            let present = self.by_place.get(&place);
            let before = self.known.get(&place).copied();
            if let Some(before) =
                before.filter(|before| present.is_none_or(|node| node.uid != *before))
            {
                self.stories.entry(before).or_default().push(Moment { since: now, facts: None });
                self.known.remove(&place);
            }
            let Some(node) = present else { continue };
            let facts = Some(Facts::of(node));
            let story = self.stories.entry(node.uid).or_default();
            if story.last().is_none_or(|last| last.facts != facts) {
                story.push(Moment { since: now, facts });
            }
            self.known.insert(place, node.uid);
        }
    }

    /// The story of a node by its unique id, from its first moment on.
    pub fn story(&self, uid: u64) -> &[Moment] {
        self.stories.get(&uid).map_or(&[], Vec::as_slice)
    }
}

impl Deref for Nodes {
    type Target = BTreeMap<Place, Node>;

    fn deref(&self) -> &Self::Target {
        &self.by_place
    }
}

/// For all other changes: each node may be another one afterwards.
impl DerefMut for Nodes {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.changes += 1;
        self.touched.extend(self.by_place.keys().cloned());
        &mut self.by_place
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Map;

    use super::*;
    use crate::model::time::after;
    use crate::simulator::cloud::Cloud;
    use crate::simulator::things::Timing;
    use crate::simulator::trouble::{Event, Trouble};

    #[test]
    fn looking_changes_nothing_and_whoever_may_change_a_node_is_counted() {
        let mut nodes = Nodes::default();
        assert!(nodes.is_empty() && nodes.iter().next().is_none());
        assert_eq!(nodes.changes(), 0);
        nodes.retain(|_, _| true);
        assert_eq!(nodes.changes(), 1);
        assert!(nodes.get_mut(&(String::new(), String::new())).is_none());
        assert_eq!(nodes.changes(), 2);
    }

    #[test]
    fn the_story_of_a_node_goes_on_under_its_own_id_until_it_is_gone() {
        let mut cloud = Cloud::new(Timing::default());
        let start = Timestamp::UNIX_EPOCH;
        let at = |seconds: u64| after(start, Duration::from_secs(seconds));
        cloud.advance(start);
        let uid = cloud.add_node("z", "a", Map::new(), true);
        cloud.advance(at(10));
        let trouble = |what| Event {
            at: Duration::ZERO,
            node: "a".into(),
            zone: "z".into(),
            what,
            lasts: None,
        };
        cloud.trouble(trouble(Trouble::Unresponsive));
        cloud.advance(at(20));
        cloud.trouble(trouble(Trouble::Replace));
        let states = |uid: u64| -> Vec<Option<(String, bool)>> {
            let facts = |moment: &Moment| {
                moment.facts.as_ref().map(|f| (f.health.clone().unwrap_or_default(), f.at_work))
            };
            cloud.nodes.story(uid).iter().map(facts).collect()
        };
        let is = |health: &str, at_work| Some((health.to_owned(), at_work));
        assert_eq!(
            states(uid),
            [is("HEALTHY", false), is("HEALTHY", true), is("TIMEOUT", false), None]
        );
        assert_eq!(cloud.nodes.story(uid)[3].since, at(20));
        let next = cloud.nodes[&("z".to_owned(), "a".to_owned())].uid;
        assert_eq!(states(next), [is("HEALTHY", false)]);
        assert!(cloud.nodes.story(7).is_empty());
    }
}
