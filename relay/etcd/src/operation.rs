//! Transactions: comparisons, operations, and their replies.

use crate::messages::{self, KeyValue, compare, request_op, response_op};
use crate::range::{KeyRange, RangeReply};

/// A transaction: carries out `then` if all of `when` hold, else `otherwise`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Txn {
    pub(crate) message: messages::TxnRequest,
}

impl Txn {
    /// A transaction without conditions and operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.message.compare.push(compare.0);
        self
    }

    /// Adds an operation for when all conditions hold.
    #[must_use]
    pub fn then(mut self, op: Op) -> Self {
        self.message.success.push(op.0);
        self
    }

    /// Adds an operation for when a condition does not hold.
    #[must_use]
    pub fn otherwise(mut self, op: Op) -> Self {
        self.message.failure.push(op.0);
        self
    }
}

/// How a key's number compares to the given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// The same.
    Equal,
    /// Above the given one.
    Greater,
    /// Below the given one.
    Less,
    /// Not the same.
    NotEqual,
}

impl Is {
    fn number(self) -> i32 {
        match self {
            Is::Equal => 0,
            Is::Greater => 1,
            Is::Less => 2,
            Is::NotEqual => 3,
        }
    }
}

/// A condition on one key. The version and revisions of a missing key are 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Compare(messages::Compare);

impl Compare {
    /// How often the key was written since its creation.
    pub fn version(key: impl Into<Vec<u8>>, is: Is, version: i64) -> Self {
        Self::new(key, is, 0, compare::Target::Version(version))
    }

    /// The revision at which the key was created.
    pub fn create_revision(key: impl Into<Vec<u8>>, is: Is, revision: i64) -> Self {
        Self::new(key, is, 1, compare::Target::CreateRevision(revision))
    }

    /// The revision at which the key was last written.
    pub fn mod_revision(key: impl Into<Vec<u8>>, is: Is, revision: i64) -> Self {
        Self::new(key, is, 2, compare::Target::ModRevision(revision))
    }

    /// The key's value, byte by byte. A missing key never compares equal.
    pub fn value(key: impl Into<Vec<u8>>, is: Is, value: impl Into<Vec<u8>>) -> Self {
        Self::new(key, is, 3, compare::Target::Value(value.into()))
    }

    /// That the key does not exist.
    pub fn absent(key: impl Into<Vec<u8>>) -> Self {
        Self::create_revision(key, Is::Equal, 0)
    }

    fn new(key: impl Into<Vec<u8>>, is: Is, target: i32, value: compare::Target) -> Self {
        Self(messages::Compare {
            result: is.number(),
            target,
            key: key.into(),
            value: Some(value),
        })
    }
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Op(messages::RequestOp);

impl Op {
    /// Writes a key.
    pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self::new(request_op::Request::Put(messages::PutRequest {
            key: key.into(),
            value: value.into(),
        }))
    }

    /// Deletes the keys of a range.
    pub fn delete(range: KeyRange) -> Self {
        Self::new(request_op::Request::Delete(messages::DeleteRangeRequest {
            key: range.first,
            range_end: range.end,
        }))
    }

    /// Reads the keys of a range.
    pub fn range(range: KeyRange) -> Self {
        Self::new(request_op::Request::Range(messages::RangeRequest {
            key: range.first,
            range_end: range.end,
            ..messages::RangeRequest::default()
        }))
    }

    fn new(request: request_op::Request) -> Self {
        Self(messages::RequestOp {
            request: Some(request),
        })
    }
}

/// The reply to a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnReply {
    /// Whether all conditions held.
    pub succeeded: bool,
    /// The store's revision afterwards: that of the transaction's writes, if it wrote.
    pub revision: i64,
    /// The replies to the operations that were carried out, in their order.
    pub replies: Vec<OpReply>,
}

/// The reply to one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpReply {
    /// Written.
    Put,
    /// The number of deleted keys.
    Deleted(u64),
    /// The keys that were read.
    Range(RangeReply),
}

impl OpReply {
    /// The first key that was read, if any was.
    pub fn first(&self) -> Option<&KeyValue> {
        match self {
            OpReply::Range(range) => range.keys.first(),
            OpReply::Put | OpReply::Deleted(_) => None,
        }
    }
}

impl From<messages::TxnResponse> for TxnReply {
    fn from(response: messages::TxnResponse) -> Self {
        Self {
            succeeded: response.succeeded,
            revision: messages::revision(response.header.as_ref()),
            replies: response.responses.into_iter().filter_map(reply).collect(),
        }
    }
}

fn reply(op: messages::ResponseOp) -> Option<OpReply> {
    Some(match op.response? {
        response_op::Response::Range(range) => OpReply::Range(range.into()),
        response_op::Response::Put(_) => OpReply::Put,
        response_op::Response::Delete(deleted) => {
            OpReply::Deleted(u64::try_from(deleted.deleted).unwrap_or(0))
        }
    })
}
