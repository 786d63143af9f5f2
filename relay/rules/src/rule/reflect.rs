//! Rules that reflect.

use super::{OutputSpec, Rule, SourceChoice};
use crate::merge::{By, Merge};

impl Rule {
    /// What of its packets passes once: of a rule that reflects, each payload. Where copies keep their
    /// sender, another sender's is another packet.
    pub fn passes_once(&self) -> Option<Merge> {
        let reflect = self.reflect.as_ref()?;
        let keeps = |output: &OutputSpec| output.source == SourceChoice::Keep;
        Some(Merge {
            by: if self.outputs.iter().all(keeps) {
                By::OnceFromEach
            } else {
                By::Once
            },
            window: reflect.window,
            ..Merge::default()
        })
    }

    /// Says whether packets of that input leave by that output.
    pub fn leads(&self, input: usize, output: usize) -> bool {
        let reflect = self.reflect.as_ref();
        reflect.is_none_or(|reflect| reflect.leads(input, output))
    }
}
