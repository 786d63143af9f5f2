//! Other users of an interface's packets, before or after its rules: XDP programs, filters of an ingress
//! qdisc, devices on top of it. Bridges and macvlans, which take packets from it, are in
//! `Interface::shared_with` as well.

use std::collections::BTreeMap;
use std::path::Path;

use bpf::pin::BPFFS;
use futures::TryStreamExt;
use rtnetlink::Handle;
use rtnetlink::packet_route::link::InfoKind;
use rtnetlink::packet_route::tc::{TcAttribute, TcMessage};
use rules::net::Ifindex;

use super::links::Link;

/// Lists them by interface, as text.
pub(super) async fn read(handle: &Handle, links: &[Link]) -> BTreeMap<Ifindex, Vec<String>> {
    let mut users: BTreeMap<Ifindex, Vec<String>> = BTreeMap::new();
    for link in links {
        let xdp = link.xdp();
        let index = link.interface.index.0;
        if xdp.is_some_and(|id| !bpf::attached::is_xdp_instances(Path::new(BPFFS), index, id)) {
            let own = users.entry(link.interface.index).or_default();
            own.push("an XDP program".to_owned());
        }
        if let Some(below) = below(link) {
            let upon = users.entry(below).or_default();
            upon.push(format!("{} upon it", link.interface.name));
        }
    }
    for index in ingress_qdiscs(handle).await {
        let own = users.entry(index).or_default();
        own.push("a clsact or ingress qdisc".to_owned());
    }
    users
}

/// The links with a foreign clsact or ingress qdisc: before Linux 6.6 MCR's instances have their own. Empty
/// in a kernel that has no qdiscs to list.
pub async fn ingress_qdiscs(handle: &Handle) -> Vec<Ifindex> {
    let request = handle.qdisc().get().execute();
    let qdiscs: Vec<TcMessage> = request.try_collect().await.unwrap_or_default();
    let is_ingress = |message: &&TcMessage| {
        message.attributes.iter().any(|attribute| {
            matches!(attribute, TcAttribute::Kind(kind) if kind == "clsact" || kind == "ingress")
        })
    };
    let ingress = qdiscs.iter().filter(is_ingress);
    let links = ingress.map(|message| Ifindex(message.header.index as u32));
    links
        .filter(|link| !bpf::attached::has_instances_filters_alone(link.0))
        .collect()
}

/// The device below a link, in this namespace. A veth names its peer there.
fn below(link: &Link) -> Option<Ifindex> {
    let is_veth = link.kind() == Some(&InfoKind::Veth);
    let below = link.lower().map(Ifindex).filter(|_| !is_veth);
    below.filter(|below| *below != link.interface.index)
}
