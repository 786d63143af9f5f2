//! The user's token: one for all requests, requested when there is none or the old one is stale.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::config::Config;
use crate::connection::{Connection, Failure};
use crate::error_class::ErrorClass;
use crate::messages::{AuthenticateRequest, AuthenticateResponse};
use crate::refusal::Refusal;

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
const INVALID_ARGUMENT: u32 = 3;
const FAILED_PRECONDITION: u32 = 9;
const UNAUTHENTICATED: u32 = 16;

/// The token of a request; `None` without a user, or if etcd needs none.
pub(crate) type Token = Option<Arc<str>>;

/// The token of a client, shared by all its requests.
#[derive(Default)]
pub(crate) struct Tokens {
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    Unknown,
    Token(Token),
    Refused(Refusal<(u32, String)>),
}

impl Tokens {
    /// The user's token, if there is a user; requests another if it is the one that was `refused`.
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
        // Locked during the request: many requests that need a token ask for only one.
        let mut state = timeout_at(until, self.state.lock())
            .await
            .map_err(|_| Failure::NotSent("no token before the deadline".to_owned()))?;
        let previous = match &*state {
            State::Token(token) if refused != Some(token) => return Ok(token.clone()),
            State::Refused(refusal) => match refusal.active(Instant::now()) {
                Some((code, message)) => return Err(Failure::Answered { code, message }),
                None => Some(refusal.clone()),
            },
            State::Token(_) | State::Unknown => None,
        };
        let request = AuthenticateRequest {
            name: name.clone(),
            password: password.reveal().to_owned(),
        };
        let call = connection.unary(AUTHENTICATE, &request, None, until, config.reply_max);
        let token = match call.await {
            Ok(AuthenticateResponse { token }) => Some(token.into()),
            Err(Failure::Answered { code, message }) if is_needless(code, &message) => None,
            Err(Failure::Answered { code, message })
                if ErrorClass::of(code, &message) == ErrorClass::Refused =>
            {
                let message = format!("user {name:?}: {message}");
                let reason = (code, message.clone());
                *state = State::Refused(Refusal::new(reason, previous.as_ref(), Instant::now()));
                return Err(Failure::Answered { code, message });
            }
            // The request that needs the token was not sent.
            Err(failure) => {
                return Err(Failure::NotSent(format!("no token: {}", failure.reason())));
            }
        };
        *state = State::Token(token.clone());
        Ok(token)
    }
}

/// Whether etcd's authentication is off.
fn is_needless(code: u32, message: &str) -> bool {
    code == FAILED_PRECONDITION && message.contains("authentication is not enabled")
}

/// Whether a request may have been refused only for its token.
pub(crate) fn is_stale(code: u32, message: &str) -> bool {
    let about_token = ["revision of auth store is old", "user name is empty"];
    code == UNAUTHENTICATED
        || code == INVALID_ARGUMENT && about_token.iter().any(|text| message.contains(text))
}
