//! Walks along a map while another one with the same keys is gone through in order: a step instead
//! of a search for each.

use std::cmp::Ordering;
use std::iter::Peekable;

/// A map that is walked along.
pub struct Beside<I: Iterator>(Peekable<I>);

impl<'k, V, I: Iterator<Item = (&'k String, V)>> Beside<I> {
    pub fn new(map: impl IntoIterator<IntoIter = I>) -> Self {
        Beside(map.into_iter().peekable())
    }

    /// What the map holds for `key`, which must not come before the last one that was asked for.
    pub fn at(&mut self, key: &str) -> Option<V> {
        loop {
            match self.0.peek()?.0.as_str().cmp(key) {
                Ordering::Less => drop(self.0.next()),
                Ordering::Equal => return self.0.next().map(|(_, value)| value),
                Ordering::Greater => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn keys_that_only_one_of_the_maps_has_are_stepped_over() {
        let map: BTreeMap<String, u32> =
            [("b", 2), ("c", 3), ("e", 5)].map(|(key, value)| (key.to_owned(), value)).into();
        let mut beside = Beside::new(&map);
        let found: Vec<Option<&u32>> =
            ["a", "b", "d", "e", "f"].iter().map(|key| beside.at(key)).collect();
        assert_eq!(found, [None, Some(&2), None, Some(&5), None]);
    }
}
