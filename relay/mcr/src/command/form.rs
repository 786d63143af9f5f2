//! `-o`: the form of what is listed.

use crate::global::Global;
use crate::render::Form;

/// Which form.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Output {
    /// Form of what is shown
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORM",
        value_enum,
        default_value_t
    )]
    form: Form,
}

impl Output {
    /// The requested form; `--json` comes before `-o`.
    pub(crate) const fn form(self, global: &Global) -> Form {
        if global.json { Form::Json } else { self.form }
    }
}
