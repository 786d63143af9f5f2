//! The messages of etcd's v3 API that the client uses, written by hand: building needs no protoc.
//!
//! Field numbers are those of etcd's `api/etcdserverpb/rpc.proto` and `api/mvccpb/kv.proto`; fields
//! that are not used here are omitted, and skipped when received.

use prost::Message;

/// The revision in a header, 0 without one.
pub(crate) fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

/// Messages: for each field its name, its type, and how it is encoded.
macro_rules! messages {
    ($($name:ident {
        $($(#[doc = $help:literal])* $field:ident: $type:ty = ($($encoding:tt)+);)*
    })+) => {$(
        #[derive(Clone, PartialEq, Message)]
        pub(crate) struct $name {
            $($(#[doc = $help])* #[prost($($encoding)+)] pub(crate) $field: $type,)*
        }
    )+};
}

/// A key with its value and revisions.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The revision at which it was created.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    /// The revision at which it was last written.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// How often it was written since its creation; 1 at first.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// Its value; empty if only keys were requested.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

messages! {
    ResponseHeader {
        cluster_id: u64 = (uint64, tag = "1");
        member_id: u64 = (uint64, tag = "2");
        revision: i64 = (int64, tag = "3");
        raft_term: u64 = (uint64, tag = "4");
    }
    Event {
        /// 0 put, 1 delete.
        kind: i32 = (int32, tag = "1");
        kv: Option<KeyValue> = (message, optional, tag = "2");
    }
    RangeRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1");
        range_end: Vec<u8> = (bytes = "vec", tag = "2");
        limit: i64 = (int64, tag = "3");
        revision: i64 = (int64, tag = "4");
        serializable: bool = (bool, tag = "7");
        keys_only: bool = (bool, tag = "8");
    }
    RangeResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1");
        kvs: Vec<KeyValue> = (message, repeated, tag = "2");
        more: bool = (bool, tag = "3");
        count: i64 = (int64, tag = "4");
    }
    PutRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1");
        value: Vec<u8> = (bytes = "vec", tag = "2");
    }
    PutResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1");
    }
    DeleteRangeRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1");
        range_end: Vec<u8> = (bytes = "vec", tag = "2");
    }
    DeleteRangeResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1");
        deleted: i64 = (int64, tag = "2");
    }
    RequestOp {
        request: Option<request_op::Request> = (oneof = "request_op::Request", tags = "1, 2, 3");
    }
    ResponseOp {
        response: Option<response_op::Response> = (oneof = "response_op::Response", tags = "1, 2, 3");
    }
    Compare {
        /// 0 equal, 1 greater, 2 less, 3 not equal.
        result: i32 = (int32, tag = "1");
        /// 0 version, 1 create revision, 2 mod revision, 3 value.
        target: i32 = (int32, tag = "2");
        key: Vec<u8> = (bytes = "vec", tag = "3");
        value: Option<compare::Target> = (oneof = "compare::Target", tags = "4, 5, 6, 7");
    }
    TxnRequest {
        compare: Vec<Compare> = (message, repeated, tag = "1");
        success: Vec<RequestOp> = (message, repeated, tag = "2");
        failure: Vec<RequestOp> = (message, repeated, tag = "3");
    }
    TxnResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1");
        succeeded: bool = (bool, tag = "2");
        responses: Vec<ResponseOp> = (message, repeated, tag = "3");
    }
    WatchRequest {
        request: Option<watch_request::Request> = (oneof = "watch_request::Request", tags = "1, 2, 3");
    }
    WatchCreateRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1");
        range_end: Vec<u8> = (bytes = "vec", tag = "2");
        start_revision: i64 = (int64, tag = "3");
        progress_notify: bool = (bool, tag = "4");
        watch_id: i64 = (int64, tag = "7");
        fragment: bool = (bool, tag = "8");
    }
    WatchCancelRequest {
        watch_id: i64 = (int64, tag = "1");
    }
    WatchProgressRequest {}
    WatchResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1");
        watch_id: i64 = (int64, tag = "2");
        created: bool = (bool, tag = "3");
        canceled: bool = (bool, tag = "4");
        compact_revision: i64 = (int64, tag = "5");
        cancel_reason: String = (string, tag = "6");
        fragment: bool = (bool, tag = "7");
        events: Vec<Event> = (message, repeated, tag = "11");
    }
    AuthenticateRequest {
        name: String = (string, tag = "1");
        password: String = (string, tag = "2");
    }
    AuthenticateResponse {
        token: String = (string, tag = "2");
    }
    StatusRequest {}
    StatusResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1");
        version: String = (string, tag = "2");
        db_size: i64 = (int64, tag = "3");
        leader: u64 = (uint64, tag = "4");
        errors: Vec<String> = (string, repeated, tag = "8");
        is_learner: bool = (bool, tag = "10");
    }
}

pub(crate) mod request_op {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Request {
        #[prost(message, tag = "1")]
        Range(super::RangeRequest),
        #[prost(message, tag = "2")]
        Put(super::PutRequest),
        #[prost(message, tag = "3")]
        Delete(super::DeleteRangeRequest),
    }
}

pub(crate) mod response_op {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Response {
        #[prost(message, tag = "1")]
        Range(super::RangeResponse),
        #[prost(message, tag = "2")]
        Put(super::PutResponse),
        #[prost(message, tag = "3")]
        Delete(super::DeleteRangeResponse),
    }
}

pub(crate) mod compare {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Target {
        #[prost(int64, tag = "4")]
        Version(i64),
        #[prost(int64, tag = "5")]
        CreateRevision(i64),
        #[prost(int64, tag = "6")]
        ModRevision(i64),
        #[prost(bytes, tag = "7")]
        Value(Vec<u8>),
    }
}

pub(crate) mod watch_request {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Request {
        #[prost(message, tag = "1")]
        Create(super::WatchCreateRequest),
        #[prost(message, tag = "2")]
        Cancel(super::WatchCancelRequest),
        #[prost(message, tag = "3")]
        Progress(super::WatchProgressRequest),
    }
}

#[cfg(test)]
mod tests {
    //! The bytes were captured between etcdctl and a member, both 3.4.23.

    use super::*;
    use crate::{Compare, Event, Is, KeyRange, Op, OpReply, Txn, TxnReply};

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digits).collect()
    }

    /// Decodes captured bytes, without loss.
    fn decoded<R: Message + Default>(hex: &str) -> R {
        let message = R::decode(bytes(hex).as_slice()).unwrap();
        assert_eq!(message.encode_to_vec(), bytes(hex));
        message
    }

    #[test]
    fn writes_a_transaction_as_etcdctl_does() {
        let txn = Txn::new()
            .when(Compare::mod_revision("k", Is::Equal, 0))
            .when(Compare::create_revision("k", Is::Greater, 5))
            .when(Compare::version("k", Is::Less, 2))
            .when(Compare::value("k", Is::NotEqual, "v"))
            .then(Op::put("k", "v"))
            .otherwise(Op::range(KeyRange::key("k")))
            .otherwise(Op::delete(KeyRange::key("k")));
        let expected = "0a0710021a016b3000\
                      0a09080110011a016b2805\
                      0a0708021a016b2002\
                      0a0a080310031a016b3a0176\
                      120812060a016b120176\
                      1a050a030a016b\
                      1a051a030a016b";
        assert_eq!(txn.message.encode_to_vec(), bytes(expected));
    }

    #[test]
    fn reads_the_replies_to_transactions() {
        let reply: TxnResponse = decoded(
            "0a1a08bdb089e78a84d2cfe701109ab787a4cff6ed8ef10118022002\
             10011a0612040a021802",
        );
        let expected = TxnReply {
            succeeded: true,
            revision: 2,
            replies: vec![OpReply::Put],
        };
        assert_eq!(TxnReply::from(reply), expected);
        let reply: TxnResponse = decoded(
            "0a1a08bdb089e78a84d2cfe701109ab787a4cff6ed8ef10118012002\
             1a060a040a0218011a061a040a021801",
        );
        let reply = TxnReply::from(reply);
        assert!(!reply.succeeded);
        assert!(matches!(&reply.replies[0], OpReply::Range(range) if range.keys.is_empty()));
        assert_eq!(reply.replies[1], OpReply::Deleted(0));
    }

    #[test]
    fn reads_a_range() {
        let range = KeyRange::prefix("k");
        let request = RangeRequest {
            key: range.first,
            range_end: range.end,
            limit: 3,
            revision: 2,
            serializable: true,
            keys_only: true,
        };
        let expected = bytes("0a016b12016c1803200238014001");
        assert_eq!(request.encode_to_vec(), expected);
        let reply: RangeResponse = decoded(
            "0a1a08bdb089e78a84d2cfe701109ab787a4cff6ed8ef10118022002\
             12090a016b1002180220012001",
        );
        let reply = crate::RangeReply::from(reply);
        assert_eq!((reply.revision, reply.count, reply.more), (2, 1, false));
        let kv = &reply.keys[0];
        let revisions = (kv.create_revision, kv.mod_revision, kv.version);
        assert_eq!((kv.key.as_slice(), revisions), (&b"k"[..], (2, 2, 1)));
    }

    #[test]
    fn reads_the_responses_of_a_watch() {
        let request = WatchRequest {
            request: Some(watch_request::Request::Create(WatchCreateRequest {
                key: b"k".to_vec(),
                range_end: b"l".to_vec(),
                start_revision: 2,
                ..WatchCreateRequest::default()
            })),
        };
        assert_eq!(request.encode_to_vec(), bytes("0a080a016b12016c1802"));
        let created: WatchResponse =
            decoded("0a1a08bdb089e78a84d2cfe701109ab787a4cff6ed8ef101180220021801");
        assert!(created.created && created.events.is_empty());
        let changed: WatchResponse = decoded(
            "0a1a08bdb089e78a84d2cfe701109ab787a4cff6ed8ef10118022002\
             5a0e120c0a016b1002180220012a0176",
        );
        let event = crate::watch::event(changed.events[0].clone());
        assert!(matches!(event, Some(Event::Put(kv)) if kv.value == b"v"));
    }
}
