//! The messages of hosts and multicast routers about groups: IGMPv1 to v3 (RFC 1112, 2236, 3376), MLDv1
//! and v2 (RFC 2710, 3810) and Multicast Router Discovery (RFC 4286), read from packets and written to
//! them.
//!
//! Both families share the types: MLDv1 corresponds to IGMPv2, MLDv2 to IGMPv3. A packet that a router
//! may have forwarded, or whose lengths or checksum are wrong, is rejected. Not on the hot path: it
//! allocates.

mod code;
pub mod craft;
mod igmp;
mod mld;

use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

/// A message and its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender; unspecified for an IPv4 host that has no address yet (RFC 3376 section 4.2.13).
    pub from: IpAddr,
    /// The message.
    pub message: Message,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A router asks which groups hosts listen to.
    Query(Query),
    /// A host reports what it listens to.
    Report(Report),
    /// A switch asks for multicast routers (RFC 4286 section 4).
    RouterSolicitation,
}

/// The version of the protocol, in IGMP's numbering: MLD's is one lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// IGMPv1: no leaves.
    V1,
    /// IGMPv2, MLDv1: groups.
    V2,
    /// IGMPv3, MLDv2: groups and sources.
    V3,
}

/// A router's query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Version.
    pub version: Version,
    /// The queried group; `None`: all.
    pub group: Option<IpAddr>,
    /// The queried sources of the group; empty: all.
    pub sources: Vec<IpAddr>,
    /// The time within which hosts answer.
    pub response: Duration,
    /// Whether other routers must not lower their timers.
    pub suppress: bool,
    /// The querier's robustness variable; 0: not given.
    pub robustness: u8,
    /// The querier's query interval; zero: not given.
    pub interval: Duration,
}

impl Query {
    /// A query of the second version.
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

/// A host's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Version.
    pub version: Version,
    /// One record for each group; a report of an old version becomes `IsExclude` without sources, a leave
    /// `ToInclude` without sources (RFC 3376 section 7.3.2).
    pub records: Vec<Record>,
}

/// What a host reports about one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The type of the record.
    pub kind: RecordKind,
    /// The group.
    pub group: IpAddr,
    /// Sources.
    pub sources: Vec<IpAddr>,
}

/// RFC 3376 section 4.2.12, RFC 3810 section 5.2.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// The host listens to these sources.
    IsInclude,
    /// It listens to all but these.
    IsExclude,
    /// It listens to these from now on.
    ToInclude,
    /// It listens to all but these from now on.
    ToExclude,
    /// It listens to these as well.
    Allow,
    /// It no longer listens to these.
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

/// A message that a router sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterMessage {
    /// A query, in the newest version.
    Query(Query),
    /// A multicast router announces itself (RFC 4286 section 3).
    Advertisement {
        /// The time until the next advertisement, in seconds.
        interval_s: u8,
        /// Its query interval in seconds.
        query_interval_s: u16,
        /// Its robustness variable.
        robustness: u16,
    },
    /// A multicast router stops (RFC 4286 section 5).
    Termination,
}

/// Why a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Defect {
    /// Another protocol, or a type that neither hosts nor queriers send.
    #[error("is no message of IGMP or MLD that is heeded")]
    Other,
    /// Lengths that contradict each other, or a group address that is not multicast.
    #[error("is malformed")]
    Malformed,
    /// A wrong checksum.
    #[error("has a wrong checksum")]
    Checksum,
    /// A TTL or hop limit other than 1: the packet may come from another link.
    #[error("has a TTL that is not 1")]
    Ttl,
    /// MLD without Router Alert (RFC 3810 section 5).
    #[error("has no Router Alert option")]
    RouterAlert,
    /// A sender that may not send this message.
    #[error("has a sender that may not say it")]
    Sender,
}

/// Reads an IP packet.
///
/// # Errors
/// Why the packet is rejected.
pub fn read(packet: &[u8]) -> Result<Received, Defect> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => igmp::read(packet),
        Some(6) => mld::read(packet),
        _ => Err(Defect::Other),
    }
}

/// Writes an IP packet with TTL 1 and Router Alert. For IPv6, `from` has to be a link-local address.
/// Returns its destination and the packet; `None` if `from` and the addresses in a query differ in family.
#[must_use]
pub fn write(from: IpAddr, message: &RouterMessage) -> Option<(IpAddr, Vec<u8>)> {
    match from {
        IpAddr::V4(from) => igmp::write(from, message),
        IpAddr::V6(from) => mld::write(from, message),
    }
}

/// An advertisement or termination of these types without its checksum; `None` for a query.
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

/// A report of an old version, which has a single record.
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
    Ok(Message::Report(Report {
        version: Version::V3,
        records,
    }))
}

/// Reads the records of a report (RFC 3376 section 4.2.4).
fn records(mut bytes: &[u8], address: ReadAddress) -> Result<Vec<Record>, Defect> {
    let count = word(&mut bytes)?;
    let mut records = Vec::new();
    for _ in 0..count {
        let head = take(&mut bytes, 2)?;
        let (kind, auxiliary) = (head[0], head[1]);
        let source_count = word(&mut bytes)?;
        let group = address(&mut bytes)?;
        let sources = (0..source_count)
            .map(|_| address(&mut bytes))
            .collect::<Result<_, _>>()?;
        take(&mut bytes, usize::from(auxiliary) * 4)?;
        // Records of unknown types are ignored (RFC 3376 section 4.2.12), and so are those of no group.
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

/// Appends to `head` a query's group, tail and sources, with addresses as `octets` writes them; `None` if
/// they differ in family.
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

/// Reads the tail of a query of the newest version into `query`.
fn read_query_tail(
    mut bytes: &[u8],
    query: &mut Query,
    address: ReadAddress,
) -> Result<(), Defect> {
    let head = take(&mut bytes, 2)?;
    query.suppress = head[0] & 8 != 0;
    query.robustness = head[0] & 7;
    query.interval = Duration::from_secs(code::of_byte(head[1]).into());
    let source_count = word(&mut bytes)?;
    query.sources = (0..source_count)
        .map(|_| address(&mut bytes))
        .collect::<Result<_, _>>()?;
    Ok(())
}

/// The group that a query asks for; `None` for a general query.
const fn queried_group(group: IpAddr) -> Result<Option<IpAddr>, Defect> {
    match group {
        group if group.is_unspecified() => Ok(None),
        group if group.is_multicast() => Ok(Some(group)),
        _ => Err(Defect::Malformed),
    }
}

#[cfg(test)]
mod tests;
