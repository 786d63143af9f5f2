//! Rules whose inputs stand by for each other: what the control side does to the words that packets
//! decide with, alike on both paths. Lines and rules are named by the places that they count in.

use packet::failover::{Failover, active_of, choice};

/// Where the words lie.
pub(crate) trait Lines {
    /// When packets of a line came: `last_ns`, `since_ns`.
    fn line(&self, name: u32) -> [u64; 2];
    /// Overwrites them.
    fn set_line(&mut self, name: u32, line: [u64; 2]);
    /// Which line of a rule passes: `active`, `changes`.
    fn choice(&self, rule: u32) -> [u64; 2];
    /// Overwrites it.
    fn set_choice(&mut self, rule: u32, choice: [u64; 2]);
}

/// Gives a rule an active line where it has none, or one that is none any more: the first that
/// delivers, or else the first, which gets its time.
pub(crate) fn begin(words: &mut impl Lines, rule: u32, when: Failover<'_>, now_ns: u64) {
    let [active, changes] = words.choice(rule);
    if active_of(active).is_some_and(|active| when.lines.contains(&active)) {
        return;
    }
    let delivers = |line: &&u32| !when.is_silent(words.line(**line)[0], now_ns);
    let best = when.lines.iter().find(delivers).copied();
    let Some(line) = best.or(when.lines.first().copied()) else {
        return;
    };
    if best.is_none() {
        words.set_line(line, [now_ns, now_ns]);
    }
    words.set_choice(rule, [choice(line, now_ns), changes]);
}

/// Makes a line the active one; those before it come back as if they had begun to deliver now.
pub(crate) fn switch(
    words: &mut impl Lines,
    rule: u32,
    (when, line): (Failover<'_>, u32),
    now_ns: u64,
) {
    let earlier = when.lines.iter().take_while(|other| **other != line);
    for other in earlier {
        let [last_ns, _] = words.line(*other);
        words.set_line(*other, [last_ns, now_ns]);
    }
    let [active, changes] = words.choice(rule);
    let is_other = active_of(active) != Some(line);
    words.set_choice(
        rule,
        [choice(line, now_ns), changes.wrapping_add(is_other.into())],
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Memory([[u64; 2]; 4], [u64; 2]);

    impl Lines for Memory {
        fn line(&self, name: u32) -> [u64; 2] {
            self.0[name as usize]
        }
        fn set_line(&mut self, name: u32, line: [u64; 2]) {
            self.0[name as usize] = line;
        }
        fn choice(&self, _: u32) -> [u64; 2] {
            self.1
        }
        fn set_choice(&mut self, _: u32, choice: [u64; 2]) {
            self.1 = choice;
        }
    }

    const NOW: u64 = 1 << 40;

    fn when(lines: &[u32]) -> Failover<'_> {
        Failover {
            silence_ns: 1_000_000,
            revert_ns: 0,
            lines,
        }
    }

    #[test]
    fn the_first_line_gets_its_time() {
        let mut memory = Memory::default();
        begin(&mut memory, 0, when(&[2, 1]), NOW);
        assert_eq!(active_of(memory.1[0]), Some(2));
        assert_eq!(memory.line(2), [NOW, NOW]);
    }

    #[test]
    fn a_line_that_goes_leaves_the_stream_to_one_that_delivers() {
        let mut memory = Memory::default();
        begin(&mut memory, 0, when(&[0, 1, 2]), NOW);
        memory.set_line(2, [NOW, NOW]);
        begin(&mut memory, 0, when(&[0, 1, 2, 3]), NOW);
        assert_eq!(active_of(memory.1[0]), Some(0), "it is there still");
        begin(&mut memory, 0, when(&[1, 2]), NOW);
        assert_eq!(active_of(memory.1[0]), Some(2));
    }

    #[test]
    fn after_a_switch_by_hand_the_way_back_begins_anew() {
        let mut memory = Memory::default();
        begin(&mut memory, 0, when(&[0, 1]), NOW - 5);
        switch(&mut memory, 0, (when(&[0, 1]), 1), NOW);
        assert_eq!(active_of(memory.1[0]), Some(1));
        assert_eq!(memory.line(0), [NOW - 5, NOW]);
        switch(&mut memory, 0, (when(&[0, 1]), 1), NOW);
        assert_eq!(memory.1[1], 1, "the second changed nothing");
    }
}
