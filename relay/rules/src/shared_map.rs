//! An ordered map whose copies share what they have in common. A copy of ten thousand entries costs
//! a hundred pointers, a change of one entry copies one chunk, and a comparison of two copies skips
//! the chunks that they share.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::iter::FlatMap;
use std::ops::Index;
use std::slice;
use std::sync::Arc;

/// The most entries of a chunk: a change copies at most these, a copy of the map one pointer for
/// each chunk.
const CHUNK: usize = 128;

type Chunk<K, V> = Vec<(K, V)>;

/// The map.
#[derive(Clone)]
pub struct SharedMap<K, V> {
    /// In the order of their keys; none is empty.
    chunks: Vec<Arc<Chunk<K, V>>>,
    len: usize,
}

/// The entries of a map in the order of their keys.
pub type Entries<'a, K, V> = FlatMap<
    slice::Iter<'a, Arc<Chunk<K, V>>>,
    slice::Iter<'a, (K, V)>,
    fn(&'a Arc<Chunk<K, V>>) -> slice::Iter<'a, (K, V)>,
>;

/// What differs between two maps, in the order of the keys; an entry whose value changed is in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference<'a, K, V> {
    /// Entries of the old map that are not in the new one.
    pub removed: Vec<(&'a K, &'a V)>,
    /// Entries of the new map that were not in the old one.
    pub added: Vec<(&'a K, &'a V)>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<K, V> SharedMap<K, V> {
    /// Counts the entries.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> Entries<'_, K, V> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// The value under a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (chunk, offset) = self.find(key).ok()?;
        Some(&self.chunks[chunk][offset].1)
    }

    /// The value under a key, mutable.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (chunk, offset) = self.find(key).ok()?;
        Some(&mut Arc::make_mut(&mut self.chunks[chunk])[offset].1)
    }

    /// Counts the entries whose keys are less than this one.
    pub fn rank<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let (chunk, offset) = self.find(key).unwrap_or_else(|vacant| vacant);
        let before = self.chunks.iter().take(chunk);
        before.map(|chunk| chunk.len()).sum::<usize>() + offset
    }

    /// The entries whose keys are not less than this one, in the order of their keys.
    pub fn iter_from<'a, Q: Ord + ?Sized>(
        &'a self,
        key: &Q,
    ) -> impl Iterator<Item = &'a (K, V)> + use<'a, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let (chunk, offset) = self.find(key).unwrap_or_else(|vacant| vacant);
        let chunks = self.chunks.iter().skip(chunk);
        chunks.flat_map(|chunk| chunk.iter()).skip(offset)
    }

    /// Inserts a value under a key; returns the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (at, offset) = match self.find(&key) {
            Ok((at, offset)) => {
                let entry = &mut Arc::make_mut(&mut self.chunks[at])[offset];
                return Some(std::mem::replace(&mut entry.1, value));
            }
            Err(vacant) => vacant,
        };
        self.len += 1;
        if self.chunks.is_empty() {
            self.chunks.push(Arc::default());
        }
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        if chunk.len() < CHUNK {
            chunk.insert(offset, (key, value));
            return None;
        }
        // Appending at the end of the map leaves full chunks behind.
        let is_last = at + 1 == self.chunks.len();
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        let middle = if is_last && offset == CHUNK {
            CHUNK
        } else {
            CHUNK / 2
        };
        let mut upper = chunk.split_off(middle);
        match offset.checked_sub(middle) {
            Some(offset) => upper.insert(offset, (key, value)),
            None => chunk.insert(offset, (key, value)),
        }
        self.chunks.insert(at + 1, Arc::new(upper));
        None
    }

    /// Removes the entry under a key; returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (at, offset) = self.find(key).ok()?;
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        let (_, value) = chunk.remove(offset);
        self.len -= 1;
        if chunk.is_empty() {
            self.chunks.remove(at);
        }
        // Many removals must not leave small chunks behind.
        self.join_if_small(at);
        self.join_if_small(at.saturating_sub(1));
        Some(value)
    }

    /// Joins this chunk and the next if both together are at most half a chunk.
    fn join_if_small(&mut self, at: usize) {
        if let [first, second, ..] = &self.chunks[at.min(self.chunks.len())..]
            && first.len() + second.len() <= CHUNK / 2
        {
            let second = self.chunks.remove(at + 1);
            Arc::make_mut(&mut self.chunks[at]).extend_from_slice(&second);
        }
    }

    /// Finds the chunk of a key and the key's offset in it, or where it would be inserted.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<(usize, usize), (usize, usize)>
    where
        K: Borrow<Q>,
    {
        let is_before = |chunk: &Arc<Chunk<K, V>>| chunk[0].0.borrow() <= key;
        let at = self.chunks.partition_point(is_before).saturating_sub(1);
        let Some(chunk) = self.chunks.get(at) else {
            return Err((0, 0));
        };
        let offset = chunk.binary_search_by(|(other, _)| other.borrow().cmp(key));
        offset
            .map(|offset| (at, offset))
            .map_err(|offset| (at, offset))
    }
}

impl<K: Ord, T> SharedMap<K, Arc<T>> {
    /// Compares two maps, in a time that depends on what differs more than on their size. Values
    /// are the same if they share their allocation.
    pub fn difference<'a>(old: &'a Self, new: &'a Self) -> Difference<'a, K, Arc<T>> {
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let (mut a, mut b) = (Cursor::new(&old.chunks), Cursor::new(&new.chunks));
        loop {
            if a.is_at_same_chunk(&b) {
                (a, b) = (a.next_chunk(), b.next_chunk());
                continue;
            }
            let order = match (a.entry(), b.entry()) {
                (None, None) => return Difference { removed, added },
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) if old.0 == new.0 && Arc::ptr_eq(&old.1, &new.1) => {
                    (a, b) = (a.next(), b.next());
                    continue;
                }
                (Some(old), Some(new)) => old.0.cmp(&new.0),
            };
            if let (Some((key, value)), Ordering::Less | Ordering::Equal) = (a.entry(), order) {
                removed.push((key, value));
                a = a.next();
            }
            if let (Some((key, value)), Ordering::Equal | Ordering::Greater) = (b.entry(), order) {
                added.push((key, value));
                b = b.next();
            }
        }
    }
}

/// A position in the chunks of a map.
#[derive(Clone, Copy)]
struct Cursor<'a, K, V> {
    chunks: &'a [Arc<Chunk<K, V>>],
    offset: usize,
}

impl<'a, K, V> Cursor<'a, K, V> {
    const fn new(chunks: &'a [Arc<Chunk<K, V>>]) -> Self {
        Self { chunks, offset: 0 }
    }

    fn entry(&self) -> Option<&'a (K, V)> {
        self.chunks.first()?.get(self.offset)
    }

    /// Returns whether both are at the start of a chunk that the maps share.
    fn is_at_same_chunk(&self, other: &Self) -> bool {
        let is_same = match (self.chunks.first(), other.chunks.first()) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            _ => false,
        };
        is_same && self.offset == 0 && other.offset == 0
    }

    fn next_chunk(self) -> Self {
        Self::new(&self.chunks[1..])
    }

    fn next(self) -> Self {
        let offset = self.offset + 1;
        match self.chunks.first() {
            Some(chunk) if offset < chunk.len() => Self { offset, ..self },
            _ => self.next_chunk(),
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries: Vec<(K, V)> = entries.into_iter().collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        let len = entries.len();
        let mut entries = entries.into_iter();
        let chunks = (0..len.div_ceil(CHUNK))
            .map(|_| Arc::new(entries.by_ref().take(CHUNK).collect()))
            .collect();
        Self { chunks, len }
    }
}

impl<K: Ord + Clone, V: Clone> Index<&K> for SharedMap<K, V> {
    type Output = V;

    /// The value under a key that must be there; panics if it is not.
    fn index(&self, key: &K) -> &V {
        self.get(key).expect("the key is there")
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for SharedMap<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.iter().map(|(key, value)| (key, value));
        f.debug_map().entries(entries).finish()
    }
}

#[cfg(test)]
mod tests;
