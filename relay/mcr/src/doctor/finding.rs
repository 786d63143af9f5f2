//! What a check has to say: how bad, about what, why, and what to do.

use rules::printable::printable;
use serde::Serialize;

use super::repair::Repair;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Traffic of a rule does not flow, or will stop.
    Stops,
    /// Some packets, or somebody else, will suffer.
    Harms,
    /// Often suspected, harmless to MCR; or merely good to know.
    Note,
}

/// One thing that a check has to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The check that found it.
    pub(crate) check: &'static str,
    pub(crate) severity: Severity,
    /// What it is about: an interface, a rule, the host.
    pub(crate) subject: String,
    /// What is so, and what follows from it.
    pub(crate) evidence: String,
    /// What to do.
    pub(crate) remedy: String,
    /// What `--fix` does about it, if that is safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<Repair>,
    /// What `--fix` came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fixed: Option<bool>,
}

impl Finding {
    /// Whether traffic does not flow because of it, now that `--fix` had its turn.
    pub(crate) fn stops(&self) -> bool {
        self.severity == Severity::Stops && self.fixed != Some(true)
    }

    /// Carries out its repair, if it has one, and notes what that came to.
    pub(crate) fn mend(&mut self) {
        let Some(repair) = &self.fix else { return };
        match repair.run() {
            Ok(()) => self.fixed = Some(true),
            Err(error) => {
                self.fixed = Some(false);
                self.remedy = format!("{} (tried: {error})", self.remedy);
            }
        }
    }

    pub(super) fn new(
        severity: Severity,
        subject: impl Into<String>,
        evidence: impl Into<String>,
    ) -> Self {
        Self {
            check: "",
            severity,
            // Names of programs, filters and interfaces are others' to choose.
            subject: printable(&subject.into()).into_owned(),
            evidence: printable(&evidence.into()).into_owned(),
            remedy: String::new(),
            fix: None,
            fixed: None,
        }
    }

    /// Something found of a rule.
    pub(super) fn of_rule(severity: Severity, rule: &str, evidence: impl Into<String>) -> Self {
        Self::new(severity, format!("rule {rule:?}"), evidence)
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    pub(super) fn repair(mut self, repair: Repair) -> Self {
        self.fix = Some(repair);
        self
    }
}
