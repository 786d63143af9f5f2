//! The user's token: one for all requests, asked for when there is none or the old one is stale.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::answer::Answer;
use crate::config::Config;
use crate::connection::{Connection, Failure};
use crate::messages::{AuthenticateRequest, AuthenticateResponse};
use crate::refusal::Refusal;

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
const INVALID_ARGUMENT: u32 = 3;
const FAILED_PRECONDITION: u32 = 9;
const UNAUTHENTICATED: u32 = 16;

/// What a request is sent with; none where there is no user, or where etcd wants none.
pub(crate) type Token = Option<Arc<str>>;

/// The token, or what is known of it.
#[derive(Default)]
pub(crate) struct Tokens {
    held: Mutex<Held>,
}

#[derive(Default)]
enum Held {
    #[default]
    Nothing,
    Token(Token),
    Refused(Refusal<(u32, String)>),
}

impl Tokens {
    /// The user's token, if there is a user; asks for another if it is the one that is `refused`.
    pub(crate) async fn of(
        &self,
        config: &Config,
        connection: &Connection,
        refused: Option<&Token>,
        until: Instant,
    ) -> Result<Token, Failure> {
        let Some((name, password)) = &config.user else {
            return Ok(None);
        };
        // Held while asking: many requests that need a token ask for one only.
        let mut held = timeout_at(until, self.held.lock())
            .await
            .map_err(|_| Failure::NotSent("no token before the deadline".to_owned()))?;
        let before = match &*held {
            Held::Token(token) if refused != Some(token) => return Ok(token.clone()),
            Held::Refused(refusal) => match refusal.stands(Instant::now()) {
                Some((code, message)) => return Err(Failure::Answered { code, message }),
                None => Some(refusal.clone()),
            },
            Held::Token(_) | Held::Nothing => None,
        };
        let request = AuthenticateRequest {
            name: name.clone(),
            password: password.reveal().to_owned(),
        };
        let reply = connection.unary(AUTHENTICATE, &request, None, until, config.reply_max);
        let reply: Result<AuthenticateResponse, Failure> = reply.await;
        let token = match reply {
            Ok(reply) => Some(reply.token.into()),
            Err(Failure::Answered { code, message }) if is_needless(code, &message) => None,
            Err(Failure::Answered { code, message })
                if Answer::of(code, &message) == Answer::Refused =>
            {
                let message = format!("user {name:?}: {message}");
                let reason = (code, message.clone());
                *held = Held::Refused(Refusal::new(reason, before.as_ref(), Instant::now()));
                return Err(Failure::Answered { code, message });
            }
            // The request itself, which waits for the token, never left.
            Err(failure) => {
                return Err(Failure::NotSent(format!("no token: {}", failure.reason())));
            }
        };
        *held = Held::Token(token.clone());
        Ok(token)
    }
}

/// Whether etcd asks nobody for a password.
fn is_needless(code: u32, message: &str) -> bool {
    code == FAILED_PRECONDITION && message.contains("authentication is not enabled")
}

/// Whether a request may have been refused for its token alone.
pub(crate) fn is_stale(code: u32, message: &str) -> bool {
    let of_token = ["revision of auth store is old", "user name is empty"];
    code == UNAUTHENTICATED
        || code == INVALID_ARGUMENT && of_token.iter().any(|text| message.contains(text))
}
