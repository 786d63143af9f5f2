//! Options as written: how documents hold them, in TOML and JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, ArrayBuilder, ObjectBuilder, Schema,
};
use utoipa::{PartialSchema, ToSchema};

use super::{
    FieldDocument, Form, Group, Inner, Key, Options, Row, Scalar, Schemas, parse, schema, split,
};

/// The options of a `T` as written, and their subject if a table names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<T> {
    given: Vec<(&'static Row, Scalar)>,
    of: PhantomData<T>,
}

impl<T: Options> Written<T> {
    /// Parses them.
    ///
    /// # Errors
    ///
    /// Names the first key that cannot be parsed and what to write.
    pub fn read(&self) -> Result<T, T::Problem> {
        let texts = self.texts();
        parse(texts.iter().map(|(key, text)| (*key, text.as_str())))
    }

    /// Parses what the command line writes: `silence=200ms,revert=30s`.
    ///
    /// # Errors
    ///
    /// As [`Written::read`].
    pub fn from_text(text: &str) -> Result<Self, T::Problem> {
        Ok(Self::from(&parse::<T>(split::<T>(text)?)?))
    }

    /// The keys that are given, in their order.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let options = self.given.iter().filter(|(row, _)| !is_subject::<T>(row));
        options
            .map(|(row, value)| (row.key, value.to_string()))
            .collect()
    }

    /// What they are options of, if a table names it.
    pub fn subject(&self) -> String {
        let subject = self.given.iter().find(|(row, _)| is_subject::<T>(row));
        subject.map_or_else(String::new, |(_, value)| value.to_string())
    }

    /// The options of a value; those for which `is_number` holds are written as numbers.
    pub(crate) fn new(value: &T, is_number: impl Fn(&str) -> bool) -> Self {
        let written = value.texts().into_iter().map(|(key, text)| {
            let number = text.parse().ok().filter(|_| is_number(key));
            (
                row::<T>(key),
                number.map_or(Scalar::Text(text), Scalar::Integer),
            )
        });
        Self {
            given: written.collect(),
            of: PhantomData,
        }
    }
}

impl<T: Options> From<&T> for Written<T> {
    fn from(value: &T) -> Self {
        Self::new(value, |_| false)
    }
}

impl<T: Options> fmt::Display for Written<T> {
    /// As the command line writes them; `on` if none is given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self
            .texts()
            .into_iter()
            .map(|(key, value)| format!("{key}={value}"));
        match texts.collect::<Vec<String>>().as_slice() {
            [] => f.write_str("on"),
            texts => f.write_str(&texts.join(",")),
        }
    }
}

impl<T: Options> Serialize for Written<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.given.len()))?;
        for (row, value) in &self.given {
            match FieldDocument::of(value).filter(|_| is_field(row)) {
                Some(field) => map.serialize_entry(row.key, &field)?,
                None => map.serialize_entry(row.key, value)?,
            }
        }
        map.end()
    }
}

fn is_field(row: &Row) -> bool {
    matches!(row.form, Form::Bytes(_))
}

fn is_subject<T: Options>(row: &Row) -> bool {
    T::GROUP
        .subject
        .iter()
        .any(|subject| subject.key == row.key)
}

fn row<T: Options>(key: &str) -> &'static Row {
    let row = T::GROUP.rows.iter().find(|row| row.key == key);
    row.expect("options are written by their rows")
}

impl<'de, T: Options> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Given<T>(PhantomData<T>);

        impl<'de, T: Options> Visitor<'de> for Given<T> {
            type Value = Written<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::GROUP.expecting)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Written<T>, E> {
                match T::GROUP.alone {
                    "" => Err(E::invalid_type(Unexpected::Str(text), &self)),
                    key => Ok(Written {
                        given: vec![(row::<T>(key), text.into())],
                        of: PhantomData,
                    }),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written<T>, A::Error> {
                let Group { subject, rows, .. } = T::GROUP;
                let mut given: Vec<(&Row, Scalar)> = Vec::new();
                while let Some(row) = map.next_key_seed(Key(&[T::GROUP.subject, T::GROUP.rows]))? {
                    if let Some(inner) = T::nested(row) {
                        let nested = nested(map.next_value()?, row, inner);
                        for (key, value) in nested.map_err(A::Error::custom)? {
                            given.push((self::row::<T>(key), value));
                        }
                        continue;
                    }
                    let value = if is_field(row) {
                        let field: Option<FieldDocument> = map.next_value()?;
                        field.map(|field| Scalar::Text(field.to_string()))
                    } else {
                        map.next_value()?
                    };
                    if given.iter().any(|(other, _)| *other == row) {
                        return Err(A::Error::duplicate_field(row.key));
                    }
                    given.extend(value.map(|value| (row, value)));
                }
                let all = || subject.iter().chain(*rows);
                given.sort_by_key(|(row, _)| all().position(|other| other == *row));
                let is_given = |row: &Row| given.iter().any(|(other, _)| *other == row);
                match all().find(|row| row.is_required && !is_given(row)) {
                    Some(missing) => Err(A::Error::missing_field(missing.key)),
                    None => Ok(Written {
                        given,
                        of: PhantomData,
                    }),
                }
            }
        }

        deserializer.deserialize_any(Given(PhantomData))
    }
}

/// A value, or a table of it and of options beside it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Nested {
    One(Option<Scalar>),
    Table(BTreeMap<String, Part>),
}

/// One of the values of such a table.
#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    One(Scalar),
    Several(Vec<String>),
}

/// The options of a nested table, or why it has a key that does not belong there.
fn nested(nested: Nested, own: &Row, inner: Inner) -> Result<Vec<(&'static str, Scalar)>, String> {
    let table = match nested {
        Nested::One(value) => return Ok(value.into_iter().map(|one| (own.key, one)).collect()),
        Nested::Table(table) => table,
    };
    let mut given = Vec::new();
    for (name, value) in table {
        let Some((_, key)) = inner.iter().find(|(valid, _)| *valid == name) else {
            let valid: Vec<&str> = inner.iter().map(|(valid, _)| *valid).collect();
            let (own, valid) = (own.key, valid.join("`, `"));
            return Err(format!(
                "unknown field `{name}` of `{own}`, expected one of `{valid}`"
            ));
        };
        given.extend(match value {
            Part::One(value) => Some((*key, value)),
            Part::Several(all) if all.is_empty() => None,
            Part::Several(all) => Some((*key, Scalar::Text(all.join("+")))),
        });
    }
    Ok(given)
}

/// The schema of a key whose value may be a table.
fn nested_schema<T: Options>(own: &Row, inner: Inner) -> Schema {
    let mut table = ObjectBuilder::new()
        .description(Some(own.description()))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    let mut stands_alone = false;
    for (name, key) in inner {
        let one = row::<T>(key);
        table = match one.form {
            // A text with + between its parts may also be a list.
            Form::Text(form) if form.name.contains('+') => {
                let several = ArrayBuilder::new().items(RefOr::T(one.schema()));
                table.property(*name, AnyOfBuilder::new().item(one.schema()).item(several))
            }
            _ => table.property(*name, one.schema()),
        };
        if *key == own.key {
            stands_alone = true;
            table = table.required(*name);
        }
    }
    if stands_alone {
        Schema::AnyOf(AnyOfBuilder::new().item(own.schema()).item(table).build())
    } else {
        Schema::Object(table.build())
    }
}

impl<T: Options> PartialSchema for Written<T> {
    fn schema() -> RefOr<Schema> {
        let group = T::GROUP;
        let rows = [group.subject, group.rows].concat();
        let mut table = schema(&rows, group.about);
        if let Schema::Object(table) = &mut table {
            for row in group.rows {
                let inner = T::nested(row).map(|inner| nested_schema::<T>(row, inner));
                let key = || row.key.to_owned();
                table
                    .properties
                    .extend(inner.map(|inner| (key(), inner.into())));
            }
        }
        let Some(alone) = group.rows.iter().find(|row| row.key == group.alone) else {
            return table.into();
        };
        let alone = Row {
            is_required: true,
            ..*alone
        };
        let both = AnyOfBuilder::new().item(alone.schema()).item(table);
        Schema::AnyOf(both.build()).into()
    }
}

impl<T: Options> ToSchema for Written<T> {
    fn name() -> Cow<'static, str> {
        T::GROUP.document.into()
    }

    fn schemas(list: &mut Schemas) {
        if T::GROUP.rows.iter().any(is_field) {
            list.push((FieldDocument::name().into(), FieldDocument::schema()));
            FieldDocument::schemas(list);
        }
    }
}
