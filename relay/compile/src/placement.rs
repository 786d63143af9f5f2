//! Which path a rule takes, as a whole, and why: a pure function of the rule and of what this host supports.
//!
//! What a path does not support is listed only in [`Feature::served_by`]; a path that gains an ability changes
//! one line there.

use std::borrow::Cow;

use rules::named::named;
use rules::rule::Rule;

pub use rules::path::{Path, PathChoice, PathChoices};

/// Which paths this host can execute, or the reason why it cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    /// The kernel path.
    pub kernel: Result<(), String>,
    /// The userspace path.
    pub userspace: Result<(), String>,
}

impl Support {
    const fn of(&self, path: Path) -> &Result<(), String> {
        match path {
            Path::Kernel => &self.kernel,
            Path::Userspace => &self.userspace,
        }
    }
}

/// Slots for outputs on the kernel path: a rule that reflects needs one for each pair of interfaces.
pub const KERNEL_OUTPUTS_MAX: usize = 65_536;

named! {
    /// Something a rule may need that not every path supports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Feature {
        /// IPv6.
        Ipv6 = "IPv6",
        /// A range of groups or ports.
        Range = "ranges",
        /// `limit=`.
        RateLimit = "rate limits",
        /// `fragment=yes`.
        Fragment = "fragment=yes",
    }
}

impl Feature {
    /// Returns whether `path` supports it.
    pub const fn served_by(self, path: Path) -> bool {
        match path {
            Path::Kernel => !matches!(self, Self::Fragment),
            Path::Userspace => true,
        }
    }
}

/// Where a rule runs, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The path; for a rule that no path serves, the intended one.
    pub path: Path,
    /// Whether the path serves the rule; if not, the rule is down.
    pub serves: bool,
    /// Why there, or why nowhere and what to do. Texts that thousands of rules share are not allocated
    /// for each.
    pub reason: Cow<'static, str>,
}

/// Where a rule listens and sends on this host, as far as it matters to a path.
#[derive(Clone, Debug, Default)]
pub struct Ends<'a> {
    /// Interfaces by name, input by input: as the rule writes it and, after a wildcard, those that it
    /// matches here.
    pub interfaces: Vec<&'a str>,
    /// One of them that has `rx-gro-list` on: the kernel path rewrites only the first datagram of such a
    /// chain, the userspace path gets its bytes in one piece and rebuilds the headers of every
    /// datagram.
    pub chaining: Option<&'a str>,
    /// One of them whose packets have something before IP that the kernel path does not parse.
    pub veiled: Option<&'a str>,
    /// One of the outputs that goes to sockets of this host: a tc program can only redirect packets to
    /// devices, and a packet from elsewhere that arrives by the loopback interface is a martian.
    pub delivered: Option<&'a str>,
    /// One of the outputs whose copies the host's own stack must send, and why.
    pub routed: Option<(&'a str, &'a str)>,
}

/// Decides where `rule` runs.
pub fn place(rule: &Rule, support: &Support, choices: &PathChoices, ends: &Ends<'_>) -> Placement {
    let obstacle = |path| obstacle(rule, support, path, ends);
    if let Some((path, chooser)) = forced(rule, choices, &ends.interfaces) {
        let obstacle = obstacle(path);
        let serves = obstacle.is_none();
        let reason = match obstacle {
            None => chooser.reason(path),
            Some(why) => format!(
                "{} forces the {} path, but {why}",
                chooser.setting(path),
                name(path)
            )
            .into(),
        };
        return Placement {
            path,
            serves,
            reason,
        };
    }
    let Some(kernel) = obstacle(Path::Kernel) else {
        return Placement {
            path: Path::Kernel,
            serves: true,
            reason: "the kernel path is available and serves all that the rule asks for".into(),
        };
    };
    match obstacle(Path::Userspace) {
        None => Placement {
            path: Path::Userspace,
            serves: true,
            reason: kernel.into(),
        },
        Some(userspace) => Placement {
            path: Path::Kernel,
            serves: false,
            reason: format!("no path serves it: {kernel}, and {userspace}").into(),
        },
    }
}

/// Where a path is forced.
enum Chooser<'a> {
    Rule,
    Interface(&'a str),
    Process,
}

impl Chooser<'_> {
    fn setting(&self, path: Path) -> String {
        let path = name(path);
        match self {
            Self::Rule => format!("the rule's path = {path:?}"),
            Self::Interface(interface) => format!("interface {interface}'s path = {path:?}"),
            Self::Process => format!("--path {path}"),
        }
    }

    fn reason(&self, path: Path) -> Cow<'static, str> {
        match (self, path) {
            // All rules may have these reasons.
            (Self::Process, Path::Kernel) => "forced by --path kernel".into(),
            (Self::Process, Path::Userspace) => "forced by --path userspace".into(),
            _ => format!("forced by {}", self.setting(path)).into(),
        }
    }
}

/// The path that is forced, and where.
fn forced<'a>(
    rule: &Rule,
    choices: &PathChoices,
    listens: &[&'a str],
) -> Option<(Path, Chooser<'a>)> {
    if let Some(path) = rule.path {
        return Some((path, Chooser::Rule));
    }
    let of_interface = listens.iter().find_map(|interface| {
        let path = choices.interfaces.get(*interface)?.forced()?;
        Some((path, Chooser::Interface(interface)))
    });
    of_interface.or_else(|| Some((choices.process.forced()?, Chooser::Process)))
}

/// Why no socket can send the copies of `rule`: only the userspace path has sockets.
pub(crate) fn sockets_barred(
    rule: &Rule,
    support: &Support,
    choices: &PathChoices,
    listens: &[&str],
) -> Option<String> {
    if let Some((path @ Path::Kernel, chooser)) = forced(rule, choices, listens) {
        let setting = chooser.setting(path);
        return Some(format!("{setting} forces the kernel path"));
    }
    let reason = support.userspace.as_ref().err()?;
    Some(format!("the userspace path is not available: {reason}"))
}

/// What prevents `path` from serving the rule.
fn obstacle(rule: &Rule, support: &Support, path: Path, ends: &Ends<'_>) -> Option<String> {
    if let Err(reason) = support.of(path) {
        return Some(format!(
            "the {} path is not available: {reason}",
            name(path)
        ));
    }
    let lacking: Vec<&str> = features(rule)
        .into_iter()
        .filter(|feature| !feature.served_by(path))
        .map(Feature::as_str)
        .collect();
    if !lacking.is_empty() {
        let lacking = lacking.join(", ");
        return Some(format!("the {} path cannot do {lacking}", name(path)));
    }
    if path == Path::Userspace {
        return None;
    }
    if let Some(output) = ends.delivered {
        return Some(format!(
            "the kernel path cannot deliver to sockets of this host, as output {output} asks"
        ));
    }
    if let Some((output, why)) = ends.routed {
        return Some(format!(
            "the kernel path cannot send by a socket, as output {output} asks: {why}"
        ));
    }
    if let Some(interface) = ends.veiled {
        return Some(format!(
            "the kernel path does not look behind what stands in front of IP in packets of {interface}"
        ));
    }
    let pairs = rule.inputs.len() * rule.outputs.len().saturating_sub(1);
    if rule.reflect.is_some() && pairs > KERNEL_OUTPUTS_MAX {
        return Some(format!(
            "the kernel path has room for {KERNEL_OUTPUTS_MAX} outputs, and reflecting among {} \
             interfaces takes {pairs}",
            rule.inputs.len()
        ));
    }
    ends.chaining.map(|interface| {
        format!(
            "the kernel path would corrupt what {interface} chains, as rx-gro-list is on there; \
             `ethtool -K {interface} rx-gro-list off`"
        )
    })
}

/// The features that the rule needs.
fn features(rule: &Rule) -> Vec<Feature> {
    let outputs = &rule.outputs;
    let needs = [
        (
            Feature::Ipv6,
            rule.inputs.iter().any(|input| !input.is_ipv4()),
        ),
        (
            Feature::Range,
            rule.inputs.iter().any(|input| !input.is_single()),
        ),
        (
            Feature::RateLimit,
            rule.limit.is_some() || outputs.iter().any(|output| output.limit.is_some()),
        ),
        (
            Feature::Fragment,
            outputs.iter().any(|output| output.fragment),
        ),
    ];
    let needed = needs.into_iter().filter(|(_, is_needed)| *is_needed);
    needed.map(|(feature, _)| feature).collect()
}

const fn name(path: Path) -> &'static str {
    match path {
        Path::Kernel => "kernel",
        Path::Userspace => "userspace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "10.9.9.9:7000";

    fn rule(output: &str, path: Option<Path>) -> Rule {
        Rule {
            name: "a".to_owned(),
            inputs: vec!["239.1.1.1%eth0:5001".parse().unwrap()],
            outputs: vec![output.parse().unwrap()],
            path,
            local: Default::default(),
            limit: None,
            failover: None,
            merge: None,
            reflect: None,
            share: None,
            health: None,
            enabled: true,
            comment: None,
            labels: Default::default(),
        }
    }

    fn both() -> Support {
        Support {
            kernel: Ok(()),
            userspace: Ok(()),
        }
    }

    fn without_kernel() -> Support {
        Support {
            kernel: Err("no BPF in this kernel".to_owned()),
            userspace: Ok(()),
        }
    }

    const ETH0: [&str; 1] = ["eth0"];

    /// Places a rule that listens on eth0.
    fn placed(
        rule: &Rule,
        support: &Support,
        choices: &PathChoices,
        chaining: Option<&str>,
    ) -> Placement {
        let ends = Ends {
            interfaces: ETH0.to_vec(),
            chaining,
            veiled: None,
            delivered: None,
            routed: None,
        };
        place(rule, support, choices, &ends)
    }

    fn shown(rule: &Rule, support: &Support, choices: &PathChoices) -> (Path, bool, String) {
        let placement = placed(rule, support, choices, None);
        (
            placement.path,
            placement.serves,
            placement.reason.into_owned(),
        )
    }

    #[test]
    fn takes_the_kernel_path_wherever_it_can() {
        let placement = placed(&rule(PLAIN, None), &both(), &PathChoices::default(), None);
        assert_eq!((placement.path, placement.serves), (Path::Kernel, true));
    }

    #[test]
    fn says_why_it_takes_the_userspace_path() {
        let auto = PathChoices::default();
        let fragment = rule("10.9.9.9:7000,fragment=yes", None);
        assert_eq!(
            shown(&fragment, &both(), &auto),
            (
                Path::Userspace,
                true,
                "the kernel path cannot do fragment=yes".to_owned()
            )
        );
        assert_eq!(
            shown(&rule(PLAIN, None), &without_kernel(), &auto),
            (
                Path::Userspace,
                true,
                "the kernel path is not available: no BPF in this kernel".to_owned()
            )
        );
    }

    #[test]
    fn lets_the_rule_overrule_the_interface_and_the_interface_the_process() {
        let mut choices = PathChoices {
            process: PathChoice::Userspace,
            ..Default::default()
        };
        let auto = rule(PLAIN, None);
        let reason = |choices: &PathChoices, rule: &Rule| shown(rule, &both(), choices).2;
        assert_eq!(reason(&choices, &auto), "forced by --path userspace");
        let eth0 = ("eth0".to_owned(), PathChoice::Kernel);
        choices.interfaces.extend([eth0]);
        assert_eq!(
            reason(&choices, &auto),
            "forced by interface eth0's path = \"kernel\""
        );
        assert_eq!(
            reason(&choices, &rule(PLAIN, Some(Path::Userspace))),
            "forced by the rule's path = \"userspace\""
        );
    }

    #[test]
    fn refuses_a_forced_path_that_cannot_serve_the_rule() {
        let auto = PathChoices::default();
        let fragment = rule("10.9.9.9:7000,fragment=yes", Some(Path::Kernel));
        assert_eq!(
            shown(&fragment, &both(), &auto),
            (
                Path::Kernel,
                false,
                "the rule's path = \"kernel\" forces the kernel path, but the kernel path \
                 cannot do fragment=yes"
                    .to_owned()
            )
        );
        let forced = rule(PLAIN, Some(Path::Kernel));
        assert!(!placed(&forced, &without_kernel(), &auto, None).serves);
    }

    #[test]
    fn reports_both_obstacles_when_no_path_serves() {
        let nothing = Support {
            kernel: Err("no BPF".to_owned()),
            userspace: Err("no CAP_NET_RAW".to_owned()),
        };
        assert_eq!(
            placed(&rule(PLAIN, None), &nothing, &PathChoices::default(), None).reason,
            "no path serves it: the kernel path is not available: no BPF, and the userspace \
             path is not available: no CAP_NET_RAW"
        );
    }

    #[test]
    fn leaves_sockets_of_this_host_to_the_userspace_path() {
        let ends = Ends {
            interfaces: ETH0.to_vec(),
            chaining: None,
            veiled: None,
            delivered: Some("127.0.0.1:7000"),
            routed: None,
        };
        let auto = PathChoices::default();
        let placed = |rule: &Rule| place(rule, &both(), &auto, &ends);
        let free = placed(&rule("127.0.0.1:7000", None));
        assert_eq!((free.path, free.serves), (Path::Userspace, true));
        assert_eq!(
            free.reason,
            "the kernel path cannot deliver to sockets of this host, as output 127.0.0.1:7000 asks"
        );
        let forced = placed(&rule("127.0.0.1:7000", Some(Path::Kernel)));
        assert_eq!((forced.path, forced.serves), (Path::Kernel, false));
    }

    #[test]
    fn keeps_chained_packets_from_the_kernel_path() {
        let auto = PathChoices::default();
        let placement = placed(&rule(PLAIN, None), &both(), &auto, Some("eth0"));
        assert_eq!((placement.path, placement.serves), (Path::Userspace, true));
        let forced = rule(PLAIN, Some(Path::Kernel));
        let placement = placed(&forced, &both(), &auto, Some("eth0"));
        assert_eq!((placement.path, placement.serves), (Path::Kernel, false));
        assert_eq!(
            placement.reason,
            "the rule's path = \"kernel\" forces the kernel path, but the kernel path would \
             corrupt what eth0 chains, as rx-gro-list is on there; `ethtool -K eth0 rx-gro-list off`"
        );
    }
}
