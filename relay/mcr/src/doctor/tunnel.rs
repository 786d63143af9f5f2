//! Tunnels to other relays: whether anything gets through, and who may send into them.

use api::reply::{State, TunnelStatus};

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

/// Bytes of a tunnel's headers within the MTU below it, over IPv4 and IPv6 (RFC 7348 section 5).
const HEADERS: [u32; 2] = [50, 70];

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let tunnels = snapshot.rules.tunnels().iter();
    tunnels.flat_map(findings_of).collect()
}

fn findings_of(tunnel: &TunnelStatus) -> Vec<Finding> {
    let (interface, remote) = (&tunnel.interface, &tunnel.remote);
    let (port, id) = (tunnel.port, tunnel.id);
    let finding =
        |severity, evidence| Finding::new(severity, format!("tunnel {interface}"), evidence);
    let mut findings = Vec::new();
    if tunnel.state == State::Down {
        let reason = tunnel.reason.clone().unwrap_or_default();
        let remedy = "mcr status shows it; what it says to do";
        findings.push(finding(Severity::Stops, reason).remedy(remedy));
        return findings;
    }
    let is_ipv4 = !remote.contains(':');
    let headers = HEADERS[usize::from(!is_ipv4)];
    let mtus = tunnel.below_mtu.zip(tunnel.mtu);
    if let Some((below, mtu)) = mtus.filter(|(below, mtu)| mtu + headers > *below) {
        let by = tunnel.below.as_deref().unwrap_or_default();
        let evidence = format!(
            "takes packets of {mtu} bytes and sends them by {by}, whose MTU is {below}: the largest leave \
             in fragments, and are lost whole with one of them"
        );
        let remedy = format!("ip link set {by} mtu larger, or no mtu in [interface.{interface}]");
        findings.push(finding(Severity::Harms, evidence).remedy(remedy));
    }
    let family = if is_ipv4 { "ip" } else { "ip6" };
    let evidence = format!(
        "whoever can send to UDP port {port} here, with identifier {id}, can put packets into it: the \
         kernel does not ask where they come from"
    );
    let remedy = format!(
        "let {remote} alone: nft add rule inet filter input udp dport {port} {family} saddr != {remote} drop"
    );
    findings.push(finding(Severity::Note, evidence).remedy(remedy));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel(mtu: u32, state: State) -> TunnelStatus {
        TunnelStatus {
            interface: "wan".to_owned(),
            local: None,
            remote: "10.9.9.9".to_owned(),
            port: 4789,
            id: 1,
            state,
            reason: (state == State::Down).then(|| "no route to 10.9.9.9".to_owned()),
            mtu: Some(mtu),
            below: Some("eth1".to_owned()),
            below_mtu: Some(1500),
        }
    }

    fn texts(tunnel: &TunnelStatus) -> Vec<(Severity, String)> {
        let findings = findings_of(tunnel).into_iter();
        findings
            .map(|one| (one.severity, format!("{}; {}", one.evidence, one.remedy)))
            .collect()
    }

    #[test]
    fn who_may_send_into_a_tunnel_is_told_with_a_filter() {
        let [(severity, text)] = &texts(&tunnel(1450, State::Up))[..] else {
            panic!("one finding");
        };
        assert_eq!(*severity, Severity::Note);
        let filter = "nft add rule inet filter input udp dport 4789 ip saddr != 10.9.9.9 drop";
        assert!(text.ends_with(filter), "{text}");
    }

    #[test]
    fn a_tunnel_that_fragments_or_leads_nowhere_is_reported() {
        let findings = texts(&tunnel(1500, State::Up));
        assert_eq!((findings.len(), findings[0].0), (2, Severity::Harms));
        assert!(
            findings[0]
                .1
                .contains("whose MTU is 1500: the largest leave in fragments")
        );
        let findings = texts(&tunnel(1450, State::Down));
        assert_eq!((findings.len(), findings[0].0), (1, Severity::Stops));
        assert!(findings[0].1.starts_with("no route to 10.9.9.9"));
    }
}
