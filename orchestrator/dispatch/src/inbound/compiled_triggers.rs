//! Compiled triggers, the least recently used of which are dropped. In memory only.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use domain::routine::matching::Matcher;
use protocol::RoutineId;

/// Compiled triggers by routine, each with the revision that it is of.
pub(super) struct CompiledTriggers {
    max_bytes: usize,
    bytes: usize,
    by_routine: HashMap<RoutineId, CompiledTrigger>,
    /// Routines by the last use of their triggers, the oldest first.
    by_use: BTreeMap<u64, RoutineId>,
    uses: u64,
}

struct CompiledTrigger {
    rev: u64,
    matcher: Arc<Matcher>,
    bytes: usize,
    last_use: u64,
}

impl CompiledTriggers {
    /// At most about this many bytes, and always the one that was added last.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: 0, by_routine: HashMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    pub(super) fn get(&mut self, routine: RoutineId, rev: u64) -> Option<Arc<Matcher>> {
        let known = self.by_routine.get_mut(&routine).filter(|known| known.rev == rev)?;
        self.uses += 1;
        self.by_use.remove(&known.last_use);
        self.by_use.insert(self.uses, routine);
        known.last_use = self.uses;
        Some(Arc::clone(&known.matcher))
    }

    pub(super) fn insert(&mut self, routine: RoutineId, rev: u64, matcher: Arc<Matcher>) {
        self.remove(routine);
        let bytes = matcher.memory_bytes();
        while self.bytes + bytes > self.max_bytes
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            self.remove(*oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        self.by_use.insert(self.uses, routine);
        self.by_routine.insert(routine, CompiledTrigger { rev, matcher, bytes, last_use: self.uses });
    }

    fn remove(&mut self, routine: RoutineId) {
        if let Some(removed) = self.by_routine.remove(&routine) {
            self.by_use.remove(&removed.last_use);
            self.bytes -= removed.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::RoutineTrigger;

    use super::*;

    fn matcher(pattern: &str) -> Arc<Matcher> {
        let trigger = RoutineTrigger::Event { channel: None, pattern: pattern.to_owned() };
        Arc::new(Matcher::compile(&trigger).unwrap().unwrap())
    }

    #[test]
    fn the_least_recently_used_are_dropped() {
        let small = matcher("a");
        let mut compiled = CompiledTriggers::new(3 * small.memory_bytes());
        let ids: Vec<_> = (0..4).map(|_| RoutineId::generate()).collect();
        let kept = |compiled: &CompiledTriggers| -> Vec<bool> {
            ids.iter().map(|id| compiled.by_routine.contains_key(id)).collect()
        };
        for id in &ids[..3] {
            compiled.insert(*id, 1, Arc::clone(&small));
        }
        assert!(compiled.get(ids[0], 1).is_some());
        assert!(compiled.get(ids[1], 2).is_none(), "another revision");
        compiled.insert(ids[3], 1, Arc::clone(&small));
        assert_eq!(kept(&compiled), [true, false, true, true]);
        compiled.insert(ids[2], 2, Arc::clone(&small));
        assert_eq!((kept(&compiled), compiled.bytes), (vec![true, false, true, true], 3 * small.memory_bytes()));
        let large = matcher(r"\w{3}");
        compiled.insert(ids[1], 1, Arc::clone(&large));
        assert_eq!((kept(&compiled), compiled.bytes), (vec![false, true, false, false], large.memory_bytes()));
        assert_eq!((compiled.by_use.len(), compiled.by_routine.len()), (1, 1));
    }
}
