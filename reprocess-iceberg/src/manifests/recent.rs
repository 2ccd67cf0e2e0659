//! What was asked for last.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// Values by their keys, as many as there is room for; what was asked for longest ago goes first.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    room: usize,
    taken: usize,
    values: BTreeMap<K, Value<V>>,
    /// Keys in the order in which they were last asked for.
    order: BTreeMap<u64, K>,
    turn: u64,
}

#[derive(Debug)]
struct Value<V> {
    value: V,
    weight: usize,
    turn: u64,
}

impl<K: Clone + Ord, V: Clone> Recent<K, V> {
    pub(super) fn new(room: usize) -> Self {
        Self { room, taken: 0, values: BTreeMap::new(), order: BTreeMap::new(), turn: 0 }
    }

    pub(super) fn get<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let known = self.values.get_mut(key)?;
        if let Some(key) = self.order.remove(&known.turn) {
            self.turn += 1;
            known.turn = self.turn;
            self.order.insert(self.turn, key);
        }
        Some(known.value.clone())
    }

    /// Keeps a value, unless it alone is more than there is room for.
    pub(super) fn put(&mut self, key: K, value: V, weight: usize) {
        self.take(&key);
        if weight > self.room {
            return;
        }
        while self.taken > self.room - weight {
            let Some(oldest) = self.order.first_key_value().map(|(_, key)| key.clone()) else { break };
            self.take(&oldest);
        }
        self.turn += 1;
        self.taken += weight;
        self.order.insert(self.turn, key.clone());
        self.values.insert(key, Value { value, weight, turn: self.turn });
    }

    fn take(&mut self, key: &K) {
        if let Some(gone) = self.values.remove(key) {
            self.taken -= gone.weight;
            self.order.remove(&gone.turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_longest_ago_makes_room() {
        let mut recent = Recent::new(10);
        recent.put("a", 1, 4);
        recent.put("b", 2, 4);
        assert_eq!(recent.get("a"), Some(1));
        recent.put("c", 3, 4);
        assert_eq!((recent.get("a"), recent.get("b"), recent.get("c")), (Some(1), None, Some(3)));
        recent.put("d", 4, 10);
        assert_eq!((recent.get("a"), recent.get("c"), recent.get("d")), (None, None, Some(4)));
    }

    #[test]
    fn a_value_takes_the_place_of_that_before_and_nothing_keeps_what_is_too_large() {
        let mut recent = Recent::new(10);
        recent.put("a", 1, 9);
        recent.put("a", 2, 9);
        assert_eq!((recent.get("a"), recent.taken), (Some(2), 9));
        recent.put("a", 3, 11);
        assert_eq!((recent.get("a"), recent.taken, recent.order.len()), (None, 0, 0));
    }
}
