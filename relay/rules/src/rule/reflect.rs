//! Rules that reflect.

use super::{OutputSpec, Rule, SourceChoice};
use crate::merge::{By, Merge};

impl Rule {
    /// The merge by which each payload passes once, if the rule reflects. If copies keep their source, the
    /// same payload of another sender is another packet.
    pub fn passes_once(&self) -> Option<Merge> {
        let reflect = self.reflect.as_ref()?;
        let keeps_source = |output: &OutputSpec| output.source == SourceChoice::Keep;
        Some(Merge {
            by: if self.outputs.iter().all(keeps_source) {
                By::OnceFromEach
            } else {
                By::Once
            },
            window: reflect.window,
            ..Merge::default()
        })
    }

    /// Returns whether packets of that input leave by that output.
    pub fn leads(&self, input: usize, output: usize) -> bool {
        let reflect = self.reflect.as_ref();
        reflect.is_none_or(|reflect| reflect.leads(input, output))
    }
}
