//! The messages of hosts and multicast routers about groups: IGMPv1 to v3 (RFC 1112, 2236, 3376), MLDv1
//! and v2 (RFC 2710, 3810) and Multicast Router Discovery (RFC 4286), read from packets and written to
//! them.
//!
//! Both families become the same types: MLDv1 says what IGMPv2 says, MLDv2 what IGMPv3 says. A packet
//! that a router may have forwarded, or whose lengths or checksum are wrong, is ignored. Not hot path:
//! it allocates.

mod code;
pub mod craft;
mod igmp;
mod mld;

use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

/// A message and who sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Sender; of IPv4 unspecified where it has no address yet (RFC 3376 section 4.2.13).
    pub from: IpAddr,
    /// What it says.
    pub message: Message,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A router asks who listens.
    Query(Query),
    /// A host says what it listens to.
    Report(Report),
    /// A switch asks for multicast routers (RFC 4286 section 4).
    RouterSolicitation,
}

/// Which version of the protocol, by IGMP's numbers: of MLD the version before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// IGMPv1: no leaves.
    V1,
    /// IGMPv2, MLDv1: groups.
    V2,
    /// IGMPv3, MLDv2: groups and sources.
    V3,
}

/// A router's question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Version.
    pub version: Version,
    /// The group that is asked for; `None`: all.
    pub group: Option<IpAddr>,
    /// The group's sources that are asked for; empty: all.
    pub sources: Vec<IpAddr>,
    /// Within what time hosts answer.
    pub response: Duration,
    /// Whether other routers are to leave their timers alone.
    pub suppress: bool,
    /// The querier's robustness variable; 0: not said.
    pub robustness: u8,
    /// The querier's query interval; zero: not said.
    pub interval: Duration,
}

impl Query {
    /// One of the second version.
    const fn of(group: Option<IpAddr>, response: Duration) -> Self {
        Self {
            version: Version::V2,
            group,
            sources: Vec::new(),
            response,
            suppress: false,
            robustness: 0,
            interval: Duration::ZERO,
        }
    }
}

/// What a host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Version.
    pub version: Version,
    /// Of each group something; a report of an old version says `IsExclude` of no source, a leave
    /// `ToInclude` of none (RFC 3376 section 7.3.2).
    pub records: Vec<Record>,
}

/// What a host says of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What of it.
    pub kind: RecordKind,
    /// The group.
    pub group: IpAddr,
    /// Sources.
    pub sources: Vec<IpAddr>,
}

/// RFC 3376 section 4.2.12, RFC 3810 section 5.2.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// It listens to these sources.
    IsInclude,
    /// It listens to all but these.
    IsExclude,
    /// It listens to these from now on.
    ToInclude,
    /// It listens to all but these from now on.
    ToExclude,
    /// It listens to these as well.
    Allow,
    /// It listens to these no more.
    Block,
}

impl RecordKind {
    const fn of(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::IsInclude,
            2 => Self::IsExclude,
            3 => Self::ToInclude,
            4 => Self::ToExclude,
            5 => Self::Allow,
            6 => Self::Block,
            _ => return None,
        })
    }
}

/// What a router says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterMessage {
    /// A question, in the newest version.
    Query(Query),
    /// Here is a multicast router (RFC 4286 section 3).
    Advertisement {
        /// When it says so again, in seconds.
        interval_s: u8,
        /// Its query interval in seconds.
        query_interval_s: u16,
        /// Its robustness variable.
        robustness: u16,
    },
    /// Here is a multicast router no more (RFC 4286 section 5).
    Termination,
}

/// Why a packet says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Defect {
    /// Of another protocol, or of a type that is none of a host's or a querier's.
    #[error("is no message of IGMP or MLD that is heeded")]
    Other,
    /// Lengths that contradict each other, or a group that is none.
    #[error("is malformed")]
    Malformed,
    /// A wrong checksum.
    #[error("has a wrong checksum")]
    Checksum,
    /// A TTL or hop limit other than 1: it may come from elsewhere.
    #[error("has a TTL that is not 1")]
    Ttl,
    /// Of MLD: no Router Alert (RFC 3810 section 5).
    #[error("has no Router Alert option")]
    RouterAlert,
    /// A sender that may not say it.
    #[error("has a sender that may not say it")]
    Sender,
}

/// Reads an IP packet.
///
/// # Errors
/// Why it says nothing.
pub fn read(packet: &[u8]) -> Result<Received, Defect> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => igmp::read(packet),
        Some(6) => mld::read(packet),
        _ => Err(Defect::Other),
    }
}

/// Writes an IP packet with TTL 1 and Router Alert. Of IPv6 `from` has to be a link-local address.
/// Returns it with its destination; `None` where `from` and what a query asks for are not of one family.
#[must_use]
pub fn write(from: IpAddr, message: &RouterMessage) -> Option<(IpAddr, Vec<u8>)> {
    match from {
        IpAddr::V4(from) => igmp::write(from, message),
        IpAddr::V6(from) => mld::write(from, message),
    }
}

/// An advertisement or termination of these types without its checksum; `None` of a query.
fn discovery(message: &RouterMessage, types: (u8, u8)) -> Option<Vec<u8>> {
    match message {
        RouterMessage::Query(_) => None,
        RouterMessage::Advertisement {
            interval_s,
            query_interval_s,
            robustness,
        } => {
            let mut body = vec![types.0, *interval_s, 0, 0];
            body.extend(query_interval_s.to_be_bytes());
            body.extend(robustness.to_be_bytes());
            Some(body)
        }
        RouterMessage::Termination => Some(vec![types.1, 0, 0, 0]),
    }
}

/// Takes bytes from the front.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Defect> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or(Defect::Malformed)?;
    *bytes = rest;
    Ok(taken)
}

fn word(bytes: &mut &[u8]) -> Result<u16, Defect> {
    let taken = take(bytes, 2)?;
    Ok(u16::from_be_bytes([taken[0], taken[1]]))
}

/// Reads an address of a family.
type ReadAddress = fn(&mut &[u8]) -> Result<IpAddr, Defect>;

/// A report of an old version, which says one thing of one group.
fn old_report(
    version: Version,
    kind: RecordKind,
    group: Result<IpAddr, Defect>,
) -> Result<Message, Defect> {
    let group = group?;
    if !group.is_multicast() {
        return Err(Defect::Malformed);
    }
    let records = vec![Record {
        kind,
        group,
        sources: Vec::new(),
    }];
    Ok(Message::Report(Report { version, records }))
}

/// Reads a report of the newest version (RFC 3376 section 4.2, RFC 3810 section 5.2).
fn report(message: &[u8], address: ReadAddress) -> Result<Message, Defect> {
    let records = records(message.get(6..).unwrap_or_default(), address)?;
    let version = Version::V3;
    Ok(Message::Report(Report { version, records }))
}

/// Reads the records of a report (RFC 3376 section 4.2.4).
fn records(mut bytes: &[u8], address: ReadAddress) -> Result<Vec<Record>, Defect> {
    let count = word(&mut bytes)?;
    let mut records = Vec::new();
    for _ in 0..count {
        let head = take(&mut bytes, 2)?;
        let (kind, auxiliary) = (head[0], head[1]);
        let sources = word(&mut bytes)?;
        let group = address(&mut bytes)?;
        let sources: Result<Vec<IpAddr>, Defect> =
            (0..sources).map(|_| address(&mut bytes)).collect();
        let sources = sources?;
        take(&mut bytes, usize::from(auxiliary) * 4)?;
        // Those of unknown types are passed over (RFC 3376 section 4.2.12), and so is what is no group.
        if let Some(kind) = RecordKind::of(kind)
            && group.is_multicast()
        {
            records.push(Record {
                kind,
                group,
                sources,
            });
        }
    }
    Ok(records)
}

/// Finishes a query that begins with `head`: its group and its sources as `octets` writes them; `None`
/// where they are not of one family.
fn query_body<const N: usize>(
    mut head: Vec<u8>,
    query: &Query,
    octets: fn(IpAddr) -> Option<[u8; N]>,
) -> Option<Vec<u8>> {
    head.extend(query.group.map_or(Some([0; N]), octets)?);
    head.extend(query_tail(query));
    for source in &query.sources {
        head.extend(octets(*source)?);
    }
    Some(head)
}

/// The tail of a query of the newest version: flags, robustness, interval and sources.
fn query_tail(query: &Query) -> [u8; 4] {
    let count = u16::try_from(query.sources.len()).unwrap_or(u16::MAX);
    let [high, low] = count.to_be_bytes();
    let robustness = if query.robustness > 7 {
        0
    } else {
        query.robustness
    };
    let interval = u32::try_from(query.interval.as_secs()).unwrap_or(u32::MAX);
    let flags = u8::from(query.suppress) << 3 | robustness;
    [flags, code::byte(interval), high, low]
}

/// Reads that tail into `query`.
fn read_query_tail(
    mut bytes: &[u8],
    query: &mut Query,
    address: ReadAddress,
) -> Result<(), Defect> {
    let head = take(&mut bytes, 2)?;
    query.suppress = head[0] & 8 != 0;
    query.robustness = head[0] & 7;
    query.interval = Duration::from_secs(code::of_byte(head[1]).into());
    let sources = word(&mut bytes)?;
    let sources: Result<Vec<IpAddr>, Defect> = (0..sources).map(|_| address(&mut bytes)).collect();
    query.sources = sources?;
    Ok(())
}

/// A group that a query asks for, if it is one.
const fn asked(group: IpAddr) -> Result<Option<IpAddr>, Defect> {
    match group {
        group if group.is_unspecified() => Ok(None),
        group if group.is_multicast() => Ok(Some(group)),
        _ => Err(Defect::Malformed),
    }
}

#[cfg(test)]
mod tests;
