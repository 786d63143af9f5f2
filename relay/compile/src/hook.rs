//! Where the kernel path takes packets: at XDP, before the kernel makes an skb of each, or at tc. A pure
//! function of the rule and of what is known of its interfaces.

use std::collections::BTreeMap;

use rules::net::Ifindex;
use rules::rule::{LocalDelivery, Rule};

use crate::table::Path;
use crate::view::{InputView, RuleView};

/// What may be done at XDP, or why not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Whether packets of an interface are taken there, of each that it is asked for.
    pub inputs: BTreeMap<Ifindex, Result<(), String>>,
    /// Whether a device takes what is handed over there, of each of the host's.
    pub outputs: BTreeMap<Ifindex, Result<(), String>>,
}

/// Where packets are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// In the driver.
    Xdp,
    /// Once there is an skb.
    Tc,
}

impl Hook {
    /// The hook's name in JSON and texts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Tc => "tc",
        }
    }
}

impl Hooks {
    /// Where packets of one of a rule's inputs are taken, and why at tc; nothing on another path. What
    /// `only_output` in hook.bpf.c goes by, said of rules.
    #[must_use]
    pub fn of(&self, rule: &Rule, view: &RuleView, input: &InputView) -> Option<(Hook, String)> {
        if view.placement.path != Path::Kernel || !view.placement.serves || !view.enabled {
            return None;
        }
        let reason = self.obstacle(rule, view, input);
        let hook = if reason.is_some() {
            Hook::Tc
        } else {
            Hook::Xdp
        };
        Some((hook, reason.unwrap_or_default()))
    }

    fn obstacle(&self, rule: &Rule, view: &RuleView, input: &InputView) -> Option<String> {
        const NOT_ASKED: &str = "XDP is off";
        let here = { input.interfaces.iter() }.find_map(|index| match self.inputs.get(index) {
            Some(verdict) => verdict.clone().err(),
            None => Some(NOT_ASKED.to_owned()),
        });
        if here.is_some() || input.interfaces.is_empty() {
            return here.or_else(|| Some("it listens nowhere yet".to_owned()));
        }
        if rule.reflect.is_some() {
            return Some("answers to what is reflected are taken at tc".to_owned());
        }
        if !input.addresses.is_empty() {
            return Some("packets to addresses of this host are taken at tc".to_owned());
        }
        if rule.local == LocalDelivery::Yes || !input.shared.is_empty() {
            return Some("this host gets the packets too".to_owned());
        }
        let [output] = view.outputs.as_slice() else {
            let count = view.outputs.len();
            return Some(format!("{count} outputs: XDP sends one copy"));
        };
        if output.down.is_some() {
            return Some(format!("output {} is down", output.to));
        }
        match output.link.and_then(|link| self.outputs.get(&link)) {
            Some(verdict) => verdict.clone().err(),
            None => Some(format!("the device of output {} is not known", output.to)),
        }
    }
}
