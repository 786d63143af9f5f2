//! A finding of a check: its severity, subject, evidence and remedy.

use rules::printable::printable;
use serde::Serialize;

use super::repair::Repair;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Traffic of a rule does not flow, or will stop.
    Stops,
    /// Some packets, or other users of the network, will suffer.
    Harms,
    /// Often suspected but harmless to MCR, or merely good to know.
    Note,
}

/// One problem or note that a check reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Name of the check that reports it.
    pub(crate) check: &'static str,
    pub(crate) severity: Severity,
    /// What it is about: an interface, a rule, the host.
    pub(crate) subject: String,
    /// What was observed, and its consequence.
    pub(crate) evidence: String,
    /// What to do.
    pub(crate) remedy: String,
    /// What `--fix` does about it, if that is safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<Repair>,
    /// Whether `--fix` succeeded, if it was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fixed: Option<bool>,
}

impl Finding {
    /// Whether it stops traffic and `--fix` did not repair it.
    pub(crate) fn stops(&self) -> bool {
        self.severity == Severity::Stops && self.fixed != Some(true)
    }

    /// Carries out its repair, if it has one, and records the outcome.
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
            // Others choose the names of programs, filters and interfaces.
            subject: printable(&subject.into()).into_owned(),
            evidence: printable(&evidence.into()).into_owned(),
            remedy: String::new(),
            fix: None,
            fixed: None,
        }
    }

    /// A finding about a rule.
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
