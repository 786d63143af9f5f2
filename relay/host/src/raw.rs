//! Unparsed netlink messages: for protocols that no crate supports completely, and for notifications whose
//! content is not used.

use std::io;

use futures::channel::mpsc::UnboundedReceiver;
use rtnetlink::packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use rtnetlink::proto::sys::TokioSocket;
use rtnetlink::proto::{ConnectionHandle, new_connection_with_socket};
use rtnetlink::sys::{AsyncSocket, SocketAddr};

/// The handle for requests.
pub(super) type Handle = ConnectionHandle<Message>;
/// A stream of unparsed notifications.
pub(super) type Changes = UnboundedReceiver<(NetlinkMessage<Message>, SocketAddr)>;

/// An unparsed message.
#[derive(Clone, Debug)]
pub struct Message {
    pub(super) kind: u16,
    pub(super) body: Vec<u8>,
}

/// Follows the given groups of a protocol.
pub(super) fn follow(protocol: isize, groups: u32) -> io::Result<Changes> {
    Ok(connect(protocol, groups)?.1)
}

/// Opens a socket that receives the given groups.
pub(super) fn connect(protocol: isize, groups: u32) -> io::Result<(Handle, Changes)> {
    let (mut connection, handle, changes) =
        new_connection_with_socket::<Message, TokioSocket>(protocol)?;
    let socket = connection.socket_mut().socket_mut();
    socket.bind(&SocketAddr::new(0, groups))?;
    tokio::spawn(connection);
    Ok((handle, changes))
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            kind: header.message_type,
            body: payload.to_vec(),
        })
    }
}

impl From<Message> for NetlinkPayload<Message> {
    fn from(message: Message) -> Self {
        Self::InnerMessage(message)
    }
}
