//! On what terms something is changed: why, and whether it is written down.

use api::request::MESSAGE_MAX;

use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::save::{Configuration, Save};

/// What is said about a change.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Said {
    /// Why, for the log of changes: mcr log changes
    #[arg(long, value_name = "TEXT", value_parser = message)]
    message: Option<String>,
}

/// On what terms rules are changed.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Terms {
    #[command(flatten)]
    save: Save,
    #[command(flatten)]
    said: Said,
}

impl Said {
    /// Opens a conversation in which it is said.
    pub(crate) fn open(&self, global: &Global) -> Result<Control, Failure> {
        Control::open(global).map(|control| control.because(self.message.clone()))
    }
}

impl Terms {
    /// Opens a conversation on these terms. The configuration is read where it is to be written, so that
    /// nothing is changed where it cannot be.
    pub(crate) fn open(
        &self,
        global: &Global,
    ) -> Result<(Control, Option<Configuration>), Failure> {
        let control = self.said.open(global)?;
        let saving = self.save.begin(&control)?;
        Ok((control, saving))
    }

    /// Whether any are given.
    pub(crate) const fn are_given(&self) -> bool {
        self.save.is_asked() || self.said.message.is_some()
    }
}

/// It becomes a header of a request.
fn message(text: &str) -> Result<String, String> {
    match text.len() {
        _ if text.chars().any(char::is_control) => Err("a message is one line".to_owned()),
        0..=MESSAGE_MAX => Ok(text.to_owned()),
        length => Err(format!(
            "a message has at most {MESSAGE_MAX} bytes, not {length}"
        )),
    }
}
