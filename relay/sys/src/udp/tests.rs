//! The batches over loopback, between two connected sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::option;
use super::receive::ReceiveBatch;
use super::send::{Message, SendBatch};

fn pair() -> (Socket, Socket) {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let receiver = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    receiver.bind(&any.into()).unwrap();
    let sender = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    sender.connect(&receiver.local_addr().unwrap()).unwrap();
    (sender, receiver)
}

fn collect(receiver: &Socket, want: usize) -> Vec<(Vec<u8>, Option<u64>)> {
    let mut batch = ReceiveBatch::new(8, 65536);
    let mut datagrams = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while datagrams.len() < want && Instant::now() < deadline {
        let Ok(count) = batch.receive(receiver.as_fd()) else {
            std::thread::yield_now();
            continue;
        };
        for index in 0..count {
            let received = batch.received(index);
            let each = received
                .datagrams()
                .map(|bytes| (bytes.to_vec(), received.timestamp_ns));
            datagrams.extend(each);
        }
    }
    datagrams
}

#[test]
fn a_batch_arrives_in_order_with_timestamps() {
    let (sender, receiver) = pair();
    option::enable_timestamps(receiver.as_fd()).unwrap();
    let messages = [0..3, 3..4, 4..10].map(|bytes| Message { bytes, segment: 0 });
    let sent = SendBatch::new(8)
        .send(sender.as_fd(), b"abcdefghij", &messages)
        .unwrap();
    assert_eq!(sent, 3);
    let datagrams = collect(&receiver, 3);
    let bytes: Vec<_> = datagrams
        .iter()
        .map(|(bytes, _)| bytes.as_slice())
        .collect();
    assert_eq!(bytes, [&b"abc"[..], b"d", b"efghij"]);
    assert!(datagrams.iter().all(|(_, time)| time.is_some()));
}

#[test]
fn a_segmented_message_arrives_as_datagrams() {
    for offload in [false, true] {
        let (sender, receiver) = pair();
        if offload {
            option::enable_receive_offload(receiver.as_fd()).unwrap();
        }
        let messages = [Message {
            bytes: 0..10,
            segment: 4,
        }];
        SendBatch::new(1)
            .send(sender.as_fd(), b"abcdefghij", &messages)
            .unwrap();
        let datagrams = collect(&receiver, 3);
        let bytes: Vec<_> = datagrams
            .iter()
            .map(|(bytes, _)| bytes.as_slice())
            .collect();
        assert_eq!(bytes, [&b"abcd"[..], b"efgh", b"ij"], "offload {offload}");
    }
}

#[test]
fn an_empty_datagram_is_a_datagram() {
    let (sender, receiver) = pair();
    sender.send(&[]).unwrap();
    assert_eq!(collect(&receiver, 1), [(Vec::new(), None)]);
}

#[test]
fn what_a_full_buffer_drops_is_counted() {
    let (sender, receiver) = pair();
    assert_eq!(option::dropped(receiver.as_fd()).unwrap(), 0);
    receiver.set_recv_buffer_size(4096).unwrap();
    // The kernel delivers over loopback before send returns.
    for _ in 0..100 {
        sender.send(&[0; 1000]).unwrap();
    }
    let dropped = option::dropped(receiver.as_fd()).unwrap();
    assert!((90..100).contains(&dropped), "{dropped}");
    assert_eq!(
        collect(&receiver, 100 - dropped as usize).len() as u32,
        100 - dropped
    );
}
