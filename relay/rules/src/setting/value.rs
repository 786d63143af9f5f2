//! Types of values: how each is parsed and written.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use utoipa::openapi::{RefOr, Schema};

use super::form::ANY;
use super::{Form, Row, Scalar, TextForm};
use crate::duration;

/// Why a text is not a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not have the form.
    Form,
    /// Another reason, with what to write.
    Because(&'static str),
}

/// Schemas by their names.
pub type Schemas = Vec<(String, RefOr<Schema>)>;

/// A value of a key.
pub trait Setting: Sized {
    /// The values that it may have, unless the row has narrower bounds.
    const FORM: Form;

    /// Parses a text that has the form.
    ///
    /// # Errors
    ///
    /// A text that has the form and still is not a value.
    fn parse(text: &str, form: &Form) -> Result<Self, Refusal>;

    /// Writes it as it is parsed.
    fn text(&self, form: &Form) -> String;

    /// Adds the schemas that its own refers to by name.
    fn schemas(_list: &mut Schemas) {}

    /// Deserialises it from a table, in any type that is natural to write.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in the row's wording.
    fn read<'de, D: Deserializer<'de>>(row: &Row, deserializer: D) -> Result<Self, D::Error> {
        let text = Scalar::of(row, deserializer)?.to_string();
        let parsed = row.parse(&text);
        parsed.map_err(|refusal| D::Error::custom(row.refused(&text, refusal)))
    }
}

/// Values that are parsed and written by the standard library.
macro_rules! plain {
    ($($type:ty, $form:expr;)+) => {$(
        impl Setting for $type {
            const FORM: Form = $form;

            fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
                text.parse().map_err(|_| Refusal::Form)
            }

            fn text(&self, _: &Form) -> String {
                self.to_string()
            }
        }
    )+};
}

const ADDRESS_AND_PORT: TextForm = TextForm {
    name: "ADDRESS:PORT",
    fits: |text| address_and_port(text).is_some(),
    pattern: r"([0-9.]+|\*|localhost|\[[0-9A-Fa-f:.]+(%[0-9]+)?\])?:[0-9]{1,5}",
    remedy: "ADDRESS:PORT, as in 127.0.0.1:9469, [::1]:9469, localhost:9469, or :9469 for all of IPv4",
    is_quoted: false,
    ..ANY
};

const WHOLE_PATH: TextForm = TextForm {
    name: "FILE",
    fits: |text| text.starts_with('/'),
    pattern: "/.*",
    remedy: "the whole path, from / on",
    ..ANY
};

plain! {
    u8, Form::number(0, u8::MAX as u64);
    u16, Form::number(0, u16::MAX as u64);
    u32, Form::number(0, u32::MAX as u64);
    String, Form::Text(&ANY);
}

/// Parses everyday spellings too: `localhost:9469`, and `:9469` or `*:9469` for every IPv4 address.
fn address_and_port(text: &str) -> Option<SocketAddr> {
    let of = |address: Ipv4Addr, port: &str| Some((address, port.parse().ok()?).into());
    match text.rsplit_once(':')? {
        ("" | "*", port) => of(Ipv4Addr::UNSPECIFIED, port),
        ("localhost", port) => of(Ipv4Addr::LOCALHOST, port),
        _ => text.parse().ok(),
    }
}

impl Setting for SocketAddr {
    const FORM: Form = Form::Text(&ADDRESS_AND_PORT);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        address_and_port(text).ok_or(Refusal::Form)
    }

    fn text(&self, _: &Form) -> String {
        self.to_string()
    }
}

impl Setting for Duration {
    const FORM: Form = Form::time(Self::ZERO, Self::MAX);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        duration::parse(text).ok_or(Refusal::Form)
    }

    fn text(&self, _: &Form) -> String {
        duration::text(*self)
    }
}

/// `None` is the word that the form permits in place of a value.
impl<T: Setting> Setting for Option<T> {
    const FORM: Form = T::FORM;

    fn parse(text: &str, form: &Form) -> Result<Self, Refusal> {
        if form.or().contains(&text) {
            Ok(None)
        } else {
            T::parse(text, form).map(Some)
        }
    }

    fn text(&self, form: &Form) -> String {
        match self {
            Some(value) => value.text(form),
            None => form.or().concat(),
        }
    }
}

impl Setting for PathBuf {
    const FORM: Form = Form::Text(&WHOLE_PATH);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        Ok(text.into())
    }

    fn text(&self, _: &Form) -> String {
        self.display().to_string()
    }
}

impl Setting for bool {
    const FORM: Form = Form::Flag;

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        match text {
            "true" | "yes" => Ok(true),
            "false" | "no" => Ok(false),
            _ => Err(Refusal::Form),
        }
    }

    fn text(&self, form: &Form) -> String {
        let words = match form {
            Form::Flag => ["false", "true"],
            _ => ["no", "yes"],
        };
        words[usize::from(*self)].to_owned()
    }

    fn read<'de, D: Deserializer<'de>>(_: &Row, deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(deserializer)
    }
}

/// Values that tables hold in another form than one text.
#[macro_export]
macro_rules! nested {
    ($($type:ty $(as $of:ty)?, $form:expr, $text:expr;)+) => {$(
        impl $crate::setting::Setting for $type {
            const FORM: $crate::setting::Form = $form;

            fn parse(_: &str, _: &$crate::setting::Form) -> Result<Self, $crate::setting::Refusal> {
                Err($crate::setting::Refusal::Form)
            }

            fn text(&self, _: &$crate::setting::Form) -> String {
                let text: fn(&Self) -> String = $text;
                text(self)
            }

            fn schemas(_list: &mut $crate::setting::Schemas) {
                $(
                    _list.push((<$of as utoipa::ToSchema>::name().into(), <$of as utoipa::PartialSchema>::schema()));
                    <$of as utoipa::ToSchema>::schemas(_list);
                )?
            }

            fn read<'de, D: serde::Deserializer<'de>>(
                _: &$crate::setting::Row,
                deserializer: D,
            ) -> Result<Self, D::Error> {
                serde::Deserialize::deserialize(deserializer)
            }
        }
    )+};
}
pub use nested;

nested! {
    Vec<String>, Form::List(&ANY), |list| list.join(", ");
    BTreeMap<String, String>, Form::Map(&ANY), |map| {
        let pairs = map.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<String>>().join(", ")
    };
}

/// Any scalar; the rest of its document decides whether it is valid.
impl Setting for Scalar {
    const FORM: Form = Form::Text(&ANY);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        Ok(text.into())
    }

    fn text(&self, _: &Form) -> String {
        self.to_string()
    }

    fn read<'de, D: Deserializer<'de>>(row: &Row, deserializer: D) -> Result<Self, D::Error> {
        Self::of(row, deserializer)
    }
}
