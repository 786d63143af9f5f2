//! The messages of etcd's v3 API that the client uses, by hand: building needs no protoc.
//!
//! Field numbers are those of etcd's `api/etcdserverpb/rpc.proto` and `api/mvccpb/kv.proto`; fields
//! that nobody here reads or writes are left out, and skipped when they come.

use prost::Message;

/// The revision that a header tells, 0 without one.
pub(crate) fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub(crate) version: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// 0 put, 1 delete.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(bool, tag = "7")]
    pub(crate) serializable: bool,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) deleted: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "request_op::Request", tags = "1, 2, 3")]
    pub(crate) request: Option<request_op::Request>,
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

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    #[prost(oneof = "response_op::Response", tags = "1, 2, 3")]
    pub(crate) response: Option<response_op::Response>,
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

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    /// 0 equal, 1 greater, 2 less, 3 not equal.
    #[prost(int32, tag = "1")]
    pub(crate) result: i32,
    /// 0 version, 1 create revision, 2 mod revision, 3 value.
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(oneof = "compare::Target", tags = "4, 5, 6, 7")]
    pub(crate) value: Option<compare::Target>,
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

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "watch_request::Request", tags = "1, 2, 3")]
    pub(crate) request: Option<watch_request::Request>,
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

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(crate) progress_notify: bool,
    #[prost(int64, tag = "7")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "8")]
    pub(crate) fragment: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCancelRequest {
    #[prost(int64, tag = "1")]
    pub(crate) watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchProgressRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    #[prost(bool, tag = "7")]
    pub(crate) fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(int64, tag = "3")]
    pub(crate) db_size: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
    #[prost(string, repeated, tag = "8")]
    pub(crate) errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub(crate) is_learner: bool,
}

#[cfg(test)]
mod tests {
    //! The bytes are those between etcdctl and a member, both 3.4.23.

    use super::*;
    use crate::{Compare, Event, Is, KeyRange, Op, OpReply, Txn, TxnReply};

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digits).collect()
    }

    /// Decodes what was captured; nothing of it may get lost.
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
        let wanted = "0a0710021a016b3000\
                      0a09080110011a016b2805\
                      0a0708021a016b2002\
                      0a0a080310031a016b3a0176\
                      120812060a016b120176\
                      1a050a030a016b\
                      1a051a030a016b";
        assert_eq!(txn.message.encode_to_vec(), bytes(wanted));
    }

    #[test]
    fn reads_the_replies_to_transactions() {
        let reply: TxnResponse = decoded(
            "0a1a08bdb089e78a84d2cfe701109ab787a4cff6ed8ef10118022002\
             10011a0612040a021802",
        );
        let wanted = TxnReply {
            succeeded: true,
            revision: 2,
            replies: vec![OpReply::Put],
        };
        assert_eq!(TxnReply::from(reply), wanted);
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
        let wanted = bytes("0a016b12016c1803200238014001");
        assert_eq!(request.encode_to_vec(), wanted);
        let reply: RangeResponse = decoded(
            "0a1a08bdb089e78a84d2cfe701109ab787a4cff6ed8ef10118022002\
             12090a016b1002180220012001",
        );
        let reply = crate::RangeReply::from(reply);
        assert_eq!((reply.revision, reply.count, reply.more), (2, 1, false));
        let found = &reply.keys[0];
        let revisions = (found.create_revision, found.mod_revision, found.version);
        assert_eq!((found.key.as_slice(), revisions), (&b"k"[..], (2, 2, 1)));
    }

    #[test]
    fn reads_what_a_watch_tells() {
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
        let told: WatchResponse = decoded(
            "0a1a08bdb089e78a84d2cfe701109ab787a4cff6ed8ef10118022002\
             5a0e120c0a016b1002180220012a0176",
        );
        let event = crate::watch::event(told.events[0].clone());
        assert!(matches!(event, Some(Event::Put(kv)) if kv.value == b"v"));
    }
}
