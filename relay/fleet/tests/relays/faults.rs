//! Relays that die or hang.

use config::OnIsolation;

use crate::cluster::{Cluster, needs_etcd};
use crate::node::{each_at_one, eventually, pair, shares};
use crate::recorder::never_two;

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_share_and_one_takes_over() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (mut a, b) = pair(&cluster, OnIsolation::Peers, 20).await;
    let (of_a, of_b) = (a.host.open().len(), b.host.open().len());
    assert!(of_a.abs_diff(of_b) <= 4, "{of_a} and {of_b}");
    a.crash();
    eventually("the other has all", || b.host.open() == shares(20)).await;
    eventually("they are open at one", || each_at_one(&[&a, &b], 20)).await;
    never_two(&[&a.host, &b.host]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_data_plane_hangs_is_relieved() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (a, b) = pair(&cluster, OnIsolation::Peers, 20).await;
    a.host.hang();
    eventually("the other has all", || b.host.open() == shares(20)).await;
    eventually("they are open at one", || each_at_one(&[&a, &b], 20)).await;
    never_two(&[&a.host, &b.host]);
}
