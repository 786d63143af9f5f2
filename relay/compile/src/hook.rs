//! Where the kernel path takes packets: at XDP, before the kernel makes an skb of each, or at tc. A pure
//! function of the rule and of the state of its interfaces.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use rules::named::named;
use rules::net::Ifindex;
use rules::rule::{LocalDelivery, Rule};

use crate::table::Path;
use crate::view::{InputView, RuleView};

/// What is possible at XDP, or why not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Whether packets are taken there, for each interface with a choice.
    pub inputs: BTreeMap<Ifindex, Result<(), AtTc>>,
    /// Whether a device accepts packets that are redirected there, for each of the host's.
    pub outputs: BTreeMap<Ifindex, Result<(), String>>,
    /// Those that accept them once they have a program themselves, and may get one.
    pub ends: BTreeSet<Ifindex>,
}

/// Why packets are taken at tc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtTc {
    /// Whether XDP was requested.
    pub is_asked: bool,
    /// The reason, in words.
    pub why: Box<str>,
}

impl AtTc {
    /// Without XDP having been requested.
    pub fn unasked(why: impl Into<Box<str>>) -> Self {
        let (is_asked, why) = (false, why.into());
        Self { is_asked, why }
    }
}

impl<T: Into<Box<str>>> From<T> for AtTc {
    fn from(why: T) -> Self {
        let (is_asked, why) = (true, why.into());
        Self { is_asked, why }
    }
}

named! {
    /// Where packets are taken.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Hook {
        /// In the driver.
        Xdp = "xdp",
        /// After an skb was allocated.
        Tc = "tc",
    }
}

impl Hooks {
    /// Returns whether packets of an interface may be taken at XDP.
    pub fn may_take(&self, ifindex: u32) -> bool {
        matches!(self.inputs.get(&Ifindex(ifindex)), Some(Ok(())))
    }

    /// Where packets of one of a rule's inputs are taken, and why at tc; `None` on another path. Follows
    /// `only_output` and `takes` in hook.bpf.c, for rules.
    pub fn of(&self, rule: &RuleView, input: &InputView) -> Option<(Hook, Option<AtTc>)> {
        if rule.placement.path != Path::Kernel || !rule.placement.serves || !rule.enabled {
            return None;
        }
        let reason = self.obstacle(rule, input);
        let hook = if reason.is_some() {
            Hook::Tc
        } else {
            Hook::Xdp
        };
        Some((hook, reason))
    }

    fn obstacle(&self, rule: &RuleView, input: &InputView) -> Option<AtTc> {
        let own = input
            .interfaces
            .iter()
            .find_map(|index| match self.inputs.get(index) {
                None => Some(AtTc::unasked("xdp is off")),
                Some(verdict) => verdict.clone().err(),
            });
        let of_rule = || rule.only_at_tc.as_deref().map(AtTc::from);
        if let Some(reason) = own.or_else(of_rule) {
            return Some(reason);
        }
        if !input.addresses.is_empty() {
            return Some("packets to addresses of this host are taken at tc".into());
        }
        let output = rule.outputs.first()?;
        if output.down.is_some() {
            return Some(format!("output {} is down", output.to).into());
        }
        match output.link.and_then(|link| self.outputs.get(&link)) {
            Some(verdict) => verdict.clone().err().map(AtTc::from),
            None => Some(format!("the device of output {} is not known", output.to).into()),
        }
    }
}

/// Why packets of a rule cannot be taken at XDP, whatever its interfaces are.
pub(crate) fn only_at_tc(rule: &Rule) -> Option<Cow<'static, str>> {
    if rule.reflect.is_some() {
        return Some("a rule that reflects is relayed at tc".into());
    }
    if rule.local == LocalDelivery::Yes {
        return Some("local=yes: this host gets the packets too".into());
    }
    if rule.has_all() {
        return Some("it has an output with all, and XDP sends one copy".into());
    }
    match rule.outputs.len() {
        1 => None,
        0 => Some("it has no outputs".into()),
        count => Some(format!("it has {count} outputs, and XDP sends one copy").into()),
    }
}
