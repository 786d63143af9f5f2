//! The routes that have rules forward, or nothing while they stay configured. Clients that may not change
//! rules may do this.

use std::collections::BTreeSet;

use api::reply::{Change, ErrorReply};
use api::request::{Enabled, EnabledRules, Transaction};
use rules::document::RuleDocument;

use super::api_error::{ApiError, Code, Reply};
use super::body::{Body, Name, Tagged};
use super::changing::{Changing, ConfirmOptions, IfMatchHeader, MessageHeader, transact};

/// Has a rule forward, or nothing while it stays configured.
#[utoipa::path(put, path = "/v1/rules/{name}/enabled", tag = "rules", operation_id = "set_enabled", request_body = Enabled,
    params(("name" = String, Path, description = "Name of the rule"), IfMatchHeader, MessageHeader, ConfirmOptions),
    responses((status = 200, body = Change), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
pub(super) async fn set_one(
    changing: Changing,
    Name(name): Name,
    Body(Enabled { enabled }): Body<Enabled>,
) -> Reply<Tagged<Change>> {
    let rules = vec![name];
    set(changing, &EnabledRules { rules, enabled }).await
}

/// Has rules forward, or nothing while they stay configured: all of them or none.
#[utoipa::path(put, path = "/v1/enabled", tag = "rules", operation_id = "set_all_enabled", request_body = EnabledRules,
    params(IfMatchHeader, MessageHeader, ConfirmOptions),
    responses((status = 200, body = Change), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
pub(super) async fn set_all(
    changing: Changing,
    Body(asked): Body<EnabledRules>,
) -> Reply<Tagged<Change>> {
    set(changing, &asked).await
}

async fn set(changing: Changing, asked: &EnabledRules) -> Reply<Tagged<Change>> {
    let names: BTreeSet<&String> = asked.rules.iter().collect();
    loop {
        let view = changing.service.view();
        let required = view.rules.require(&asked.rules);
        required.map_err(|error| ApiError::new(Code::NotFound, error))?;
        let mut transaction = Transaction {
            generation: Some(view.generation),
            ..Transaction::default()
        };
        for rule in names.iter().filter_map(|name| view.rules.get(name)) {
            if rule.enabled != asked.enabled {
                transaction.remove.push(rule.name.clone());
                transaction.add.push(RuleDocument {
                    enabled: Some(false).filter(|_| !asked.enabled),
                    ..RuleDocument::from(rule)
                });
            }
        }
        match transact(changing.clone(), transaction).await {
            // Another client changed the rules meanwhile.
            Err(_) if changing.service.view().generation != view.generation => {}
            outcome => return outcome,
        }
    }
}
