//! Translates a member's transactions for etcd's client, and their outcomes back.

use std::time::Duration;

use etcd::{Client, Compare, Is, KeyRange, Op, OpReply, TxnReply};

use crate::member::{self, KeyValue, Outcome, Target, Txn};

/// Carries out a transaction within `limit`; returns its outcome, and the error if it failed.
pub(super) async fn carry_out(
    client: &Client,
    txn: Txn,
    limit: Duration,
) -> (Outcome, Option<etcd::Error>) {
    match client.txn(translate(txn), limit).await {
        Ok(reply) => (outcome(reply), None),
        Err(error @ etcd::Error::Unknown { .. }) => (Outcome::Unknown, Some(error)),
        // Refused by etcd, not by a comparison: nothing of it was applied, nor will be.
        Err(error) => (Outcome::NotSent, Some(error)),
    }
}

fn translate(txn: Txn) -> etcd::Txn {
    let mut out = etcd::Txn::new();
    for compare in txn.compares {
        out = out.when(translate_compare(compare));
    }
    for (key, value) in txn.puts {
        out = out.then(Op::put(key, value));
    }
    for key in txn.deletes {
        out = out.then(Op::delete(KeyRange::key(key)));
    }
    for key in txn.reads {
        out = out.otherwise(Op::range(KeyRange::key(key)));
    }
    out
}

fn translate_compare(compare: member::Compare) -> Compare {
    let is = if compare.equal {
        Is::Equal
    } else {
        Is::NotEqual
    };
    let revision = signed(compare.revision);
    match compare.target {
        Target::Created => Compare::create_revision(compare.key, is, revision),
        Target::Modified => Compare::mod_revision(compare.key, is, revision),
    }
}

fn outcome(reply: TxnReply) -> Outcome {
    let revision = unsigned(reply.revision);
    if reply.succeeded {
        return Outcome::Applied { revision };
    }
    let keys = reply.replies.iter().filter_map(OpReply::first);
    Outcome::Refused {
        revision,
        found: keys.filter_map(key_value).collect(),
    }
}

/// A key in the member's types; `None` if it is not UTF-8, and so not one of the fleet's.
pub(super) fn key_value(kv: &etcd::KeyValue) -> Option<KeyValue> {
    Some(KeyValue {
        key: String::from_utf8(kv.key.clone()).ok()?,
        value: kv.value.clone(),
        created: unsigned(kv.create_revision),
        modified: unsigned(kv.mod_revision),
    })
}

/// A revision in etcd's type: from 1 up, in a signed number.
pub(super) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// A revision in the member's type.
pub(super) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}
