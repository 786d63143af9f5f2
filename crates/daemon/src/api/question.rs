//! What the API asks of the supervisor, and how it is refused.

use api::reply::{Change, ErrorReply, FlowStats, InterfaceStatus, Log, Stats, Status};
use api::request::{RuleList, Transaction};
use tokio::sync::{mpsc, oneshot};

use crate::events::{Begin, Board, Listening};
use crate::stats::PossibleDrops;

/// An answer, or the refusal.
pub(crate) type Answer<T> = Result<T, Refusal>;

/// Where an answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Answer<T>>;

/// One question; the supervisor answers them in order.
#[derive(Debug)]
pub(crate) enum Question {
    Status(Reply<Status>),
    Stats(Reply<Stats>),
    /// All that the metrics show.
    Scrape(Reply<Scrape>),
    Rules(Reply<RuleList>),
    /// What was seen of the ranges of the rule of that name.
    Flows(String, Reply<Vec<FlowStats>>),
    Interfaces(Reply<Vec<InterfaceStatus>>),
    /// The running rules as a configuration file.
    Export(Reply<String>),
    /// Adds and removes rules.
    Change(Transaction, Reply<Change>),
    /// Puts a whole set in the place of the running one, or only says what that would change.
    Replace {
        rules: RuleList,
        dry_run: bool,
        reply: Reply<Change>,
    },
    /// Reads the level of the log, or changes it first.
    Log(Option<Log>, Reply<Log>),
    /// Reads the configuration again, as SIGHUP does.
    Reload(Reply<Change>),
}

/// What the metrics are a view of: the same replies that others get, of one moment.
#[derive(Clone, Debug)]
pub(crate) struct Scrape {
    pub(crate) status: Status,
    pub(crate) stats: Stats,
    /// For which reasons each rule can drop packets.
    pub(crate) possible: Vec<PossibleDrops>,
}

/// Why a question was refused. The code stands in [`ErrorReply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl std::fmt::Display) -> Self {
        Self {
            code,
            message: shortened(message.to_string()),
        }
    }

    pub(crate) fn into_reply(self) -> ErrorReply {
        ErrorReply {
            code: self.code.as_str().to_owned(),
            message: self.message,
        }
    }
}

/// Longest message in bytes: hundreds of errors, one on each line.
const MESSAGE_MAX: usize = 64 << 10;

/// Keeps the first lines of what would be longer than anybody reads: a body of nonsense has an
/// error for every few bytes.
fn shortened(mut message: String) -> String {
    if message.len() <= MESSAGE_MAX {
        return message;
    }
    let most = message.floor_char_boundary(MESSAGE_MAX);
    let end = message[..most].rfind('\n').unwrap_or(most);
    let more = message[end..].lines().count().saturating_sub(1).max(1);
    message.truncate(end);
    message.push_str(&format!("\n… and {more} more"));
    message
}

/// What kind of refusal; clients rely on the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Not a request this API knows.
    Usage,
    /// No such rule.
    NotFound,
    /// A rule of that name is there.
    Exists,
    /// The set is of another generation than the client insists on.
    Conflict,
    /// The rules make no sense.
    Invalid,
    /// An interface, a path or room is missing.
    Unavailable,
    /// The request is too large.
    TooLarge,
    /// The request took too long.
    Timeout,
    /// The daemon's own fault.
    Internal,
}

impl Code {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::NotFound => "not_found",
            Self::Exists => "exists",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Unavailable => "unavailable",
            Self::TooLarge => "too_large",
            Self::Timeout => "timeout",
            Self::Internal => "internal",
        }
    }
}

/// The supervisor as the API sees it.
#[derive(Clone, Debug)]
pub(crate) struct Supervisor {
    questions: mpsc::Sender<Question>,
    events: Board,
}

impl Supervisor {
    pub(crate) const fn new(questions: mpsc::Sender<Question>, events: Board) -> Self {
        Self { questions, events }
    }

    /// Asks and waits for the answer.
    pub(crate) async fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        let ending = || Refusal::new(Code::Unavailable, "the daemon is ending");
        let sent = self.questions.send(question(reply)).await;
        sent.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())?
    }

    /// Every event from there on, or many that come together `in_few`.
    pub(crate) fn events(&self, begin: Begin, in_few: bool) -> Listening {
        self.events.listen(begin, in_few)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_end_is_shortened_to_whole_lines() {
        let line = "rule \"ä\": is wrong";
        let long = vec![line; 100_000].join("\n");
        let refusal = Refusal::new(Code::Invalid, long);
        assert!(refusal.message.len() <= MESSAGE_MAX + 32);
        let mut lines: Vec<&str> = refusal.message.lines().collect();
        let last = lines.pop().unwrap();
        assert_eq!(last, format!("… and {} more", 100_000 - lines.len()));
        assert!(lines.iter().all(|have| *have == line));
        let one = Refusal::new(Code::Usage, "é".repeat(100_000));
        assert!(one.message.len() <= MESSAGE_MAX + 32);
    }
}
