//! Explains what would happen to a packet, what decides it, and what to do about it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api::reply::{ErrorReply, ExplainedCopy, ExplainedOutput, Explanation, Nearest, Stage};
use api::request::PacketAsked;
use axum::Json;
use axum::extract::State;
use compile::host::{Host, Interface};
use compile::table::{LinkHeader, Output, OutputState, Path, Route};
use dataplane::explain::Explained;
use observe::view::{RuleState, View};
use packet::datagram::Datagram;
use packet::parse::{Link, Meta, Parsed, parse};
use packet::reference::Copy;
use packet::verdict::{DropReason, Verdict};
use rules::endpoint::Endpoint;
use rules::near;
use rules::net::{Ifindex, Mac};
use rules::rule::Rule;
use rules::wildcard;

use super::api_error::{ApiError, Code, Reply};
use super::body::Body;
use super::changing::Changing;
use super::service::Service;

/// How many inputs that nearly match a packet are listed.
const NEAREST: usize = 3;

/// Says what would become of a packet, by the rules and all that decides as it stands now; nothing is
/// sent and nothing counted.
#[utoipa::path(post, path = "/v1/explain", tag = "observe", request_body = PacketAsked,
    responses((status = 200, body = Explanation), (status = 404, body = ErrorReply)))]
pub(super) async fn explain(
    State(service): State<Arc<Service>>,
    changing: Changing,
    Body(asked): Body<PacketAsked>,
) -> Reply<Json<Explanation>> {
    let view = service.view();
    let link = view
        .host
        .by_name(&asked.interface)
        .ok_or_else(|| no_such_interface(&view.host, &asked.interface))?;
    let frame = bytes(&asked.frame)?;
    let parsed = match parse(&frame, Link::Ethernet, Meta::default()) {
        Parsed::Udp(datagram) => Ok(datagram),
        Parsed::Fragment(fragment) => fragment.datagram.ok_or("an odd fragment".to_owned()),
        Parsed::NotOurs(why) => Err(format!("{why:?}")),
    };
    let datagram = match parsed {
        Ok(datagram) => datagram,
        Err(why) => return Ok(Json(ignored(&why))),
    };
    let table = changing.routes(link.index, datagram.destination).await?;
    let explained = service
        .explained(table, link.index, frame, &datagram)
        .await?;
    let context = Context {
        view: &view,
        link,
        datagram,
    };
    Ok(Json(context.explanation(&explained)))
}

fn bytes(digits: &str) -> Reply<Vec<u8>> {
    let pair = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(pair).collect();
    let message = "frame: pairs of hexadecimal digits, 65,536 at most";
    bytes
        .filter(|bytes| !bytes.is_empty() && bytes.len() <= 1 << 16)
        .ok_or_else(|| ApiError::new(Code::Usage, message))
}

fn no_such_interface(host: &Host, name: &str) -> ApiError {
    let near = near::hint(name, host.names());
    ApiError::new(
        Code::NotFound,
        format!("there is no interface {name} here{near}"),
    )
}

fn ignored(why: &str) -> Explanation {
    Explanation {
        packet: "no UDP packet to a group, or to an address of this host".to_owned(),
        verdict: "passed".to_owned(),
        reason: Some(why.to_lowercase()),
        passed_up: true,
        ..Explanation::default()
    }
}

/// A packet and the state that its explanation refers to.
struct Context<'a> {
    view: &'a View,
    link: &'a Interface,
    datagram: Datagram,
}

impl Context<'_> {
    fn explanation(&self, explained: &Explained) -> Explanation {
        let packet = format!("{} on {}", description(&self.datagram), self.link.name);
        let outcome = &explained.outcome;
        let Some((_, route)) = &explained.route else {
            return Explanation {
                packet,
                verdict: "passed".to_owned(),
                passed_up: true,
                nearest: self.nearest(),
                ..Explanation::default()
            };
        };
        let reason = dropped(outcome.verdict);
        let state = self
            .view
            .states
            .values()
            .find(|state| state.name() == route.rule);
        let rule = self.view.rules.get(&route.rule);
        let first_input = rule
            .and_then(|rule| rule.inputs.first())
            .map(ToString::to_string);
        Explanation {
            packet,
            verdict: verdict(reason),
            reason: reason.map(|reason| reason.as_str().to_owned()),
            remedy: reason.map(|reason| remedy(reason, explained)),
            rule: Some(route.rule.clone()),
            input: route.input.clone().or(first_input),
            path: Some(observe::stats::path_name(route.path).to_owned()),
            path_reason: state.map(|state| {
                let takes = match route.path {
                    Path::Kernel => "at the tc ingress hook",
                    Path::Userspace => "from a packet socket",
                };
                format!(
                    "takes packets {takes} of {}; {}",
                    self.link.name, state.rule.placement.reason
                )
            }),
            stages: stages(route, explained, reason),
            passed_up: outcome.passed_up,
            outputs: self.outputs(route, explained, state),
            nearest: Vec::new(),
        }
    }

    fn outputs(
        &self,
        route: &Route,
        explained: &Explained,
        state: Option<&Arc<RuleState>>,
    ) -> Vec<ExplainedOutput> {
        let mut copies = explained.outcome.copies.iter();
        let outcomes = route.outputs.iter().zip(&explained.outcome.outputs);
        let outputs = outcomes.map(|(output, outcome)| {
            let reason = dropped(*outcome);
            let view = state.and_then(|state| {
                state
                    .rule
                    .outputs
                    .get(Output::number(output.index) as usize)
            });
            let down = view
                .and_then(|view| view.down.as_ref())
                .map(|down| down.text.clone());
            let copy = if reason.is_none() {
                copies.next()
            } else {
                None
            };
            let link = match &output.state {
                OutputState::Up(egress) => egress.link,
                OutputState::Down(_) => LinkHeader::None,
            };
            ExplainedOutput {
                to: output.to.clone(),
                verdict: verdict(reason),
                reason: reason.map(|reason| reason.as_str().to_owned()),
                remedy: reason.map(|reason| down.unwrap_or_else(|| reason.remedy().to_owned())),
                copy: copy.and_then(|copy| self.copy(copy, link)),
            }
        });
        outputs.collect()
    }

    fn copy(&self, copy: &Copy, link: LinkHeader) -> Option<ExplainedCopy> {
        let (kind, mac) = match link {
            LinkHeader::Group { .. } | LinkHeader::Neighbour { .. } => {
                (Link::Ethernet, copy.frame.first_chunk().copied().map(Mac))
            }
            LinkHeader::None | LinkHeader::Host | LinkHeader::Routed { .. } => (Link::None, None),
        };
        let datagram = match parse(&copy.frame, kind, Meta::default()) {
            Parsed::Udp(datagram) => datagram,
            Parsed::Fragment(fragment) => fragment.datagram?,
            Parsed::NotOurs(_) => return None,
        };
        let out = self.view.host.interfaces.get(&Ifindex(copy.interface));
        let [source, destination] = ends(&datagram);
        Some(ExplainedCopy {
            interface: out.map_or_else(String::new, |link| link.name.clone()),
            source: source.to_string(),
            destination: destination.to_string(),
            mac: mac.map(|mac| mac.to_string()),
            ttl: datagram.ttl,
            dscp: datagram.traffic_class >> 2,
            bytes: datagram.ip_length,
        })
    }

    /// The inputs that differ least from the packet.
    fn nearest(&self) -> Vec<Nearest> {
        let rules = self.view.rules.iter();
        let inputs = rules.flat_map(|rule| rule.inputs.iter().map(move |input| (rule, input)));
        let mut near: Vec<Nearest> = inputs
            .map(|(rule, input)| Nearest {
                rule: rule.name.clone(),
                input: input.to_string(),
                differs: self.differences(rule, input),
            })
            .filter(|near| near.differs.len() <= 2)
            .collect();
        near.sort_by_key(|near| near.differs.len());
        near.truncate(NEAREST);
        near
    }

    fn differences(&self, rule: &Rule, input: &Endpoint) -> Vec<String> {
        let (datagram, name) = (&self.datagram, &self.link.name);
        let mut differs = Vec::new();
        let mut differ = |is_same: bool, text: String| {
            if !is_same {
                differs.push(text);
            }
        };
        let interface = input.interface.as_deref().unwrap_or_default();
        let is_named = self.link.is_named(interface) || wildcard::matches(interface, name);
        differ(is_named, format!("interface {interface}, not {name}"));
        let to = input.destination;
        let is_any =
            to.address.is_unspecified() && self.link.addresses.contains(&datagram.destination);
        let takes = is_any || to.contains(datagram.destination);
        let text = format!("{}, not {}", input.destination_text(), datagram.destination);
        differ(takes, text);
        let port = datagram.destination_port;
        differ(
            input.ports.contains(port),
            format!("port {}, not {port}", input.ports),
        );
        let sender = datagram.source;
        let sources: Vec<String> = input.sources.iter().map(ToString::to_string).collect();
        let listens = input.listens_to(sender);
        differ(
            listens,
            format!("from {}, not {sender}", sources.join(", ")),
        );
        differ(rule.enabled, "the rule is disabled".to_owned());
        if differs.is_empty() {
            differs.push("nothing; it is not taken yet, mcr show says why".to_owned());
        }
        differs
    }
}

fn ends(datagram: &Datagram) -> [SocketAddr; 2] {
    let end = |address: IpAddr, port| SocketAddr::new(address, port);
    [
        end(datagram.source, datagram.source_port),
        end(datagram.destination, datagram.destination_port),
    ]
}

fn description(datagram: &Datagram) -> String {
    let [source, destination] = ends(datagram);
    let (bytes, ttl) = (datagram.payload_bytes(), datagram.ttl);
    format!("{source} to {destination}, {bytes} bytes of payload, TTL {ttl},")
}

const fn dropped(verdict: Verdict) -> Option<DropReason> {
    match verdict {
        Verdict::Dropped(reason) => Some(reason),
        Verdict::Forwarded | Verdict::Passed => None,
    }
}

fn verdict(reason: Option<DropReason>) -> String {
    if reason.is_some() {
        "dropped"
    } else {
        "forwarded"
    }
    .to_owned()
}

fn remedy(reason: DropReason, explained: &Explained) -> String {
    match reason {
        DropReason::Standby if explained.open == Some(false) => {
            "nothing, if another relay of the fleet holds the share; see mcr fleet status"
                .to_owned()
        }
        DropReason::OwnSource => {
            let remedy = reason.remedy();
            format!("{remedy}; what a program here sends by that interface is no such copy")
        }
        _ => reason.remedy().to_owned(),
    }
}

/// The stages before the outputs, in the order in which they decide.
fn stages(route: &Route, explained: &Explained, reason: Option<DropReason>) -> Vec<Stage> {
    let mut stages = Vec::new();
    let mut stage = |stage: &str, passes, text| {
        let stage = stage.to_owned();
        stages.push(Stage {
            stage,
            passes,
            text,
        });
    };
    if let (Some(share), Some(open)) = (&route.share, explained.open) {
        let is = if open {
            "open"
        } else {
            "shut: another relay forwards"
        };
        stage("gate", open, format!("share {share} is {is}"));
    }
    if let (Some(failover), Some(active)) = (&route.failover, explained.active) {
        let is = if active { "is relayed" } else { "stands by" };
        let input = route.input.as_deref().unwrap_or_default();
        stage(
            "failover",
            active,
            format!("{input} {is}; of {}", failover.lines.join(", ")),
        );
    }
    if let Some(merge) = &route.merge {
        let lines = merge.lines.join(", ");
        stage(
            "merge",
            true,
            format!("leaves once, whichever brings it first: {lines}"),
        );
    }
    if route.limit.is_some() && reason.is_none_or(|reason| reason == DropReason::RateLimited) {
        let passes = reason.is_none();
        let is = if passes {
            "has room now"
        } else {
            "is used up now"
        };
        stage("limit", passes, format!("the rule's limit {is}"));
    }
    stages
}
