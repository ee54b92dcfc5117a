//! The nodes of the simulated cloud, with a number that tells whether they may have changed: who lists them again and again
//! need not look at each.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use super::cloud::Node;

/// Nodes by zone and id.
#[derive(Debug, Default)]
pub struct Nodes {
    by_place: BTreeMap<(String, String), Node>,
    changes: u64,
}

impl Nodes {
    /// Grows with everything that may change a node. While it is the same they all are.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

impl Deref for Nodes {
    type Target = BTreeMap<(String, String), Node>;

    fn deref(&self) -> &Self::Target {
        &self.by_place
    }
}

impl DerefMut for Nodes {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.changes += 1;
        &mut self.by_place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
