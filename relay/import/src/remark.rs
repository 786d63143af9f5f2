//! Remarks on a file, each with its line: what was not taken over and why, and notes on the rest.

use std::fmt;

use config::MAX_RULES;
use rules::endpoint::EndpointProblem;
use rules::printable::is_misleading;
use rules::problem::Problem;
use thiserror::Error;

/// The most senders of a stream that are taken. By default a host joins ten for a group
/// (`igmp_max_msf`).
pub(crate) const SOURCES_MAX: usize = 64;
/// The most characters of a file that a remark repeats.
const EXCERPT_MAX: usize = 80;

/// A position in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The part of a JSON document, as in `transport_params[1]`; otherwise empty.
    part: String,
    /// The line, from 1; 0 where there is none.
    line: usize,
}

impl Position {
    /// A line of the file, or of the text in `part` of it.
    pub(crate) fn line(part: &str, line: usize) -> Self {
        let part = part.to_owned();
        Self { part, line }
    }

    /// All of the file.
    pub(crate) fn whole() -> Self {
        Self::default()
    }

    /// The key that remarks are sorted by: those on the whole file come last.
    pub(crate) fn sort_key(&self) -> (bool, &Self) {
        (*self == Self::whole(), self)
    }

    /// A part of a JSON document.
    pub(crate) fn part(part: &str) -> Self {
        Self::line(part, 0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.part)?;
        match (self.part.is_empty(), self.line) {
            (_, 0) => Ok(()),
            (true, line) => write!(f, "{line}"),
            (false, line) => write!(f, ":{line}"),
        }
    }
}

/// A remark on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// What it refers to.
    pub position: Position,
    /// The beginning of the text there.
    pub excerpt: String,
    /// The reason or note.
    pub why: Why,
    /// Whether something was not taken over.
    pub is_loss: bool,
}

impl Remark {
    pub(crate) fn rejected(position: Position, text: &str, why: Why) -> Self {
        Self {
            position,
            excerpt: excerpt(text),
            why,
            is_loss: true,
        }
    }

    pub(crate) fn note(position: Position, text: &str, why: Why) -> Self {
        Self {
            is_loss: false,
            ..Self::rejected(position, text, why)
        }
    }
}

impl fmt::Display for Remark {
    /// The form that compilers use after a file name and a colon: `12: not taken over: …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            position, excerpt, ..
        } = self;
        if *position != Position::whole() {
            write!(f, "{position}:")?;
        }
        let kind = if self.is_loss {
            "not taken over"
        } else {
            "note"
        };
        let colon = if excerpt.is_empty() { "" } else { ": " };
        write!(f, " {kind}: {excerpt}{colon}{}", self.why)
    }
}

/// The beginning of a text on one line, with what would mislead escaped.
pub(crate) fn excerpt(text: &str) -> String {
    let text = text.trim();
    let mut shown = String::new();
    for c in text.chars().take(EXCERPT_MAX) {
        if is_misleading(c) {
            shown.extend(c.escape_unicode())
        } else {
            shown.push(c)
        }
    }
    if text.chars().nth(EXCERPT_MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// Why something was not taken over, or a note on it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Why {
    /// Bytes that are not UTF-8.
    #[error("is not UTF-8; it is read as Latin-1")]
    NotUtf8,
    /// A line that cannot be read.
    #[error("is not {0}")]
    Form(&'static str),
    /// More streams than a daemon takes.
    #[error("more follows, and a daemon takes {MAX_RULES} rules at most; divide the file")]
    TooMany,

    /// A URL of another kind.
    #[error("{0} is not multicast over UDP")]
    Scheme(String),
    /// Not a URL.
    #[error("names a file, not a stream")]
    File,
    /// A name instead of an address.
    #[error("{0} is not an address, and names are not looked up; write its address")]
    Name(String),
    /// A unicast address.
    #[error("{0} is not a multicast group, and rules take groups")]
    Unicast(String),
    /// No group.
    #[error("names no group")]
    NoGroup,
    /// An invalid port.
    #[error("{0} is not a port; it has to be 1 to 65535")]
    Port(String),
    /// An invalid interface name.
    #[error("interface: {0}")]
    Interface(EndpointProblem),
    /// An address that cannot be a sender.
    #[error("{0} cannot be its sender")]
    Source(String),
    /// More senders than are taken.
    #[error("has more than {SOURCES_MAX} senders; leave some out")]
    TooManySources,
    /// Senders that are excluded.
    #[error("rules name the senders that they take, and exclude none")]
    Excludes,

    /// A media section with port 0.
    #[error("is switched off: its port is 0")]
    Off,
    /// A media section without UDP.
    #[error("{0} is not UDP")]
    Transport(String),
    /// A media section without address.
    #[error("has no address: neither it nor the session has a c= line that can be used")]
    NoConnection,
    /// Several ports for several groups.
    #[error("{ports} ports for {groups} groups do not say which belong together")]
    PortsAndGroups {
        /// How many ports.
        ports: usize,
        /// How many groups.
        groups: usize,
    },
    /// More groups than are taken.
    #[error("{0} groups are more than is taken of one section; write them as a range in a rule")]
    TooManyGroups(u32),
    /// Senders of a group that the section does not have.
    #[error("is for another group than the section's, whose senders stay open")]
    StrayFilter,
    /// Copies of which a section is missing.
    #[error(
        "the section {0:?} is not there or is a leg already; its legs become rules of their own"
    )]
    LegUnknown(String),
    /// Copies of different number.
    #[error("its sections differ in how many groups they have; they become rules of their own")]
    LegsUneven,
    /// Copies that arrive later than the widest window.
    #[error(
        "its copies come later than a merge can wait for; what the later line alone has is lost"
    )]
    Delay,
    /// Copies that arrive later, within a wider window.
    #[error("its copies come later by that many ms; the rule's window is as much wider")]
    Window,
    /// Copies that arrive later and are not merged.
    #[error("no sections are copies of each other here, so nothing waits for a later one")]
    DelayAlone,
    /// A section that is switched off.
    #[error("is switched off: a=inactive")]
    Inactive,
    /// Copies within one stream.
    #[error("copies that have an SSRC of their own are not merged; all of them are relayed")]
    SsrcCopies,
    /// RTCP.
    #[error("RTCP is not relayed with the stream; give it a rule of its own if it is needed")]
    Rtcp,
    /// Forward error correction.
    #[error("error correction (FEC) is not relayed with the stream; give it rules of its own")]
    Fec,

    /// A directive of smcroute that is unknown.
    #[error("is no directive of smcroute.conf")]
    Directive,
    /// A file that is included.
    #[error("included files are not read; import them too")]
    Include,
    /// A threshold.
    #[error(
        "an output has no threshold; what smcroute would have kept back is relayed until its TTL \
         runs out"
    )]
    Threshold,
    /// Router discovery.
    #[error("MCR announces no multicast router")]
    RouterDiscovery,
    /// An interface that is switched off.
    #[error("is not routed to or from by smcroute; rules that name the interface do use it")]
    Disabled,
    /// A group that is joined only.
    #[error("no mroute takes it from there; rules join what they relay: `mcr join` joins the rest")]
    JoinOnly,
    /// A range of senders.
    #[error("a range of senders cannot be taken; leave the senders out, or name each")]
    SourceRange,
    /// A route to nowhere.
    #[error("leads nowhere: no interface stands behind its \"to\"")]
    NoWay,

    /// A route to more interfaces than there are.
    #[error("has more than the 32 interfaces that the kernel routes between")]
    TooManyWays,

    /// A leg that is switched off.
    #[error("is switched off: rtp_enabled is false")]
    LegOff,
    /// Nothing is set yet.
    #[error("{0} is not set, so it is not known what to relay")]
    Unset(&'static str),
    /// Another transport.
    #[error("is not RTP over multicast")]
    OtherTransport,
    /// JSON of another kind.
    #[error("has neither transport_params nor an SDP in transport_file")]
    NoTransport,

    /// Legs that are the same.
    #[error(
        "its legs are one and the same input; --input-interface, given again, says where the other \
         one arrives"
    )]
    SameLegs,
    /// No output is of its family.
    #[error("no --to is of its family; give one that is")]
    NoOutput,
    /// An invalid rule.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// Several streams to one destination.
    #[error("{streams} rules send to it, where their packets mix{remedy}")]
    Mixed {
        /// How many.
        streams: usize,
        /// What would keep them apart, if an option does.
        remedy: &'static str,
    },
    /// A group that stays on its link.
    #[error(
        "{0} stays on its link, so what relays it between interfaces is a rule that reflects: \
         `mcr add {0}:PORT --reflect IFACE,IFACE`"
    )]
    LinkLocal(String),
    /// Rules that carry a group both ways.
    #[error(
        "is carried both ways between {0}; one rule with both as inputs and mode = \"reflect\" brings \
         answers by unicast back as well"
    )]
    BothWays(String),
    /// An option of a URL that rules have no equivalent for.
    #[error("rules have nothing for its option {0}")]
    Option(String),
    /// An address of the host that the file was written for.
    #[error("{0} is no interface's name; --input-interface says where it arrives")]
    HostAddress(String),
    /// An output option that no stream needed.
    #[error("--to is not used: the file says itself where its streams go")]
    ToUnused,
    /// A leg for which no interface of its own was given.
    #[error(
        "leg {0} listens on {1} again, for --input-interface was not given so often; give it once for each leg"
    )]
    InterfaceAgain(usize, String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_a_file_without_being_misled_by_it() {
        assert_eq!(
            excerpt(" a\x1b[2J\nb\u{202e} "),
            "a\\u{1b}[2J\\u{a}b\\u{202e}"
        );
        assert_eq!(excerpt(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(excerpt(&"é".repeat(81)), "é".repeat(80) + "…");
    }

    #[test]
    fn a_remark_begins_with_its_position() {
        let remark = Remark::rejected(
            Position::line("", 7),
            "rtsp://x",
            Why::Scheme("rtsp".into()),
        );
        assert_eq!(
            remark.to_string(),
            "7: not taken over: rtsp://x: rtsp is not multicast over UDP"
        );
        let remark = Remark::note(Position::part("transport_params[1]"), "", Why::LegOff);
        assert_eq!(
            remark.to_string(),
            "transport_params[1]: note: is switched off: rtp_enabled is false"
        );
        let position = Position::line("transport_file.data", 3);
        assert_eq!(position.to_string(), "transport_file.data:3");
    }
}
