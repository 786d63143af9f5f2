//! What can be wrong with an endpoint's text. Each message contains what to write instead.

use thiserror::Error;

use super::INTERFACE_NAME_MAX;

/// A text that is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {problem}", shown(.text))]
pub struct EndpointError {
    /// The whole text.
    pub text: String,
    /// What is wrong with it and what to write instead.
    pub problem: EndpointProblem,
}

/// Shows a text as it is, or quoted if its ends would not be visible otherwise.
pub(crate) fn shown(text: &str) -> String {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    if plain {
        text.to_owned()
    } else {
        format!("{text:?}")
    }
}

/// What is wrong with an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndpointProblem {
    /// Nothing there.
    #[error("nothing there; write GROUP%IFACE:PORT, as in 239.1.1.1%eth0:5001")]
    Empty,
    /// A space, tab or newline.
    #[error("holds white space; write it without")]
    WhiteSpace,
    /// A URL.
    #[error("is a URL; write GROUP%IFACE:PORT, as in 239.1.1.1%eth0:5001")]
    Url,
    /// No `:PORT`.
    #[error("has no port; write {0}:PORT, as in {0}:5001")]
    PortMissing(String),
    /// Port 0.
    #[error("port 0 cannot be used; give 1 to 65535")]
    PortZero,
    /// An invalid interval for reporting groups again.
    #[error("rejoin={0}: give a time from \"1s\" to \"1h\", as in rejoin=60s")]
    Rejoin(String),
    /// A destination that is not joined.
    #[error("rejoin is for groups: addresses of this host are not joined; leave it out")]
    RejoinUnicast,
    /// Something that is not a port.
    #[error("{0:?} is not a port; give a number from 1 to 65535, or a range as in 5001-5150")]
    PortInvalid(String),
    /// The range's end lies before its start.
    #[error("the port range {first}-{last} runs backwards; write {last}-{first}")]
    PortsReversed {
        /// Port before the dash.
        first: u16,
        /// Port after the dash.
        last: u16,
    },
    /// An IPv6 address outside brackets.
    #[error("IPv6 needs brackets around address and interface, as in [ff3e::1%eth0]:5001")]
    BracketsMissing,
    /// `[` without `]`.
    #[error("the bracket is not closed; write it as in [ff3e::1%eth0]:5001")]
    BracketOpen,
    /// A bracket in a wrong place.
    #[error(
        "brackets go around sources, group and interface, as in [2001:db8::5@ff3e::1%eth0]:5001"
    )]
    BracketMisplaced,
    /// The interface behind the bracket.
    #[error("the interface stands inside the brackets; write {0}")]
    InterfaceOutside(String),
    /// An IPv4 address in brackets.
    #[error("brackets are for IPv6; write {0} without")]
    BracketsForIpv4(String),
    /// Something that is not an address of the expected family.
    #[error("{text:?} is not an {family} address (only an output may give a name)")]
    AddressInvalid {
        /// The text in place of the address.
        text: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// Something that is neither a destination of an output nor its name.
    #[error("{text:?} is not an {family} address and not the name of a host")]
    DestinationInvalid {
        /// The text in place of the address.
        text: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// A prefix length that is no number or too long.
    #[error("/{text} is not a prefix length; give 0 to {longest}, as in {example}")]
    LengthInvalid {
        /// What follows the slash.
        text: String,
        /// 32 or 128.
        longest: u8,
        /// A range of that family.
        example: &'static str,
    },
    /// Bits beyond the prefix length are set.
    #[error("host bits are set; the range that holds it is {range}, or write {single} alone")]
    HostBits {
        /// The range with the host bits cleared.
        range: String,
        /// The address as written.
        single: String,
    },
    /// A source that is not an address.
    #[error("source {text:?} is not an {family} address")]
    SourceInvalid {
        /// What was written.
        text: String,
        /// `IPv4` or `IPv6`, as the group is.
        family: &'static str,
    },
    /// A source that no host can have.
    #[error("source {0} cannot send; give a host's unicast address")]
    SourceNotUnicast(String),
    /// The same source twice.
    #[error("source {0} is named twice; leave one out")]
    SourceTwice(String),
    /// A range of sources before a group.
    #[error("{0} is a range, and the sources of a group are joined one by one; name each")]
    SourcesOfGroup(String),
    /// A range of sources that holds all.
    #[error("{0} is every sender; leave it out, with its @")]
    SourceAny(String),
    /// The unspecified address as a destination.
    #[error(
        "{0} is the address of none; at an input unicast stands for every address of the interface, \
         as in unicast%eth0:5001"
    )]
    Unspecified(String),
    /// `%` without a name.
    #[error("no interface follows the %; write its name, as in %eth0")]
    InterfaceEmpty,
    /// The interface after the port.
    #[error("the interface stands before the port; write {0}")]
    InterfaceAfterPort(String),
    /// A name longer than the kernel allows.
    #[error(
        "interface name {0:?} has {len} bytes; Linux allows {INTERFACE_NAME_MAX}",
        len = .0.len()
    )]
    InterfaceTooLong(String),
    /// A name as `ip link` prints it.
    #[error(
        "interface {0:?} holds an @; `ip link` prints NAME@PEER: write only NAME \
         (sources stand before the group: SOURCE@GROUP%IFACE:PORT)"
    )]
    InterfaceWithPeer(String),
    /// A name the kernel or this notation does not allow.
    #[error("interface name {name:?} holds {character:?}, which is not allowed there")]
    InterfaceCharacter {
        /// The name.
        name: String,
        /// The first character that is wrong.
        character: char,
    },
}
