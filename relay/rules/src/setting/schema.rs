//! Forms, rows and tables as schemas of the OpenAPI document, from which the configuration's is made.

use serde_json::Value;
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema,
    SchemaType, Type,
};
use utoipa::openapi::{Ref, RefOr};

use super::{ANY, Form, Options, Row, TextForm, Word, joined};

/// The schema of a table of these rows.
pub fn schema(rows: &[Row], description: &[&str]) -> Schema {
    let object = ObjectBuilder::new()
        .description(Some(joined(description)))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    let object = rows.iter().fold(object, |object, row| {
        let object = object.property(row.key, row.schema());
        if row.is_required {
            object.required(row.key)
        } else {
            object
        }
    });
    Schema::Object(object.build())
}

/// The schema of a text of this form, or of the table of a `T`.
pub fn text_or_table<T: Options>(description: &str, pattern: &str) -> RefOr<Schema> {
    let text = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(format!("^({pattern})$")));
    let both = AnyOfBuilder::new()
        .description(Some(description))
        .item(text)
        .item(Ref::from_schema_name(T::GROUP.document));
    Schema::AnyOf(both.build()).into()
}

impl Form {
    /// Its schema, with its meaning; `is_optional`: null counts as absent.
    pub fn schema(&self, description: &str, default: Option<&str>, is_optional: bool) -> Schema {
        let pattern = Some(self.pattern())
            .filter(|pattern| pattern != ANY.pattern)
            .map(|pattern| format!("^({pattern})$"));
        let typed = |types: &[Type]| {
            let null = is_optional.then_some(Type::Null);
            let types = types.iter().cloned().chain(null).collect();
            ObjectBuilder::new().schema_type(SchemaType::Array(types))
        };
        let text = || {
            ObjectBuilder::new()
                .schema_type(Type::String)
                .pattern(pattern.clone())
        };
        let object = match self {
            Self::Flag => typed(&[Type::Boolean]),
            Self::Number { least, most, .. } => typed(&[Type::Integer, Type::String])
                .minimum(Some(*least as f64))
                .maximum(Some(*most as f64))
                .pattern(pattern),
            Self::Words(words) => {
                let (types, values) = values(words);
                let null = is_optional.then_some(Value::Null);
                typed(&types).enum_values(Some(values.into_iter().chain(null)))
            }
            Self::Text(TextForm {
                numbers: Some((least, most)),
                ..
            }) => typed(&[Type::Integer, Type::String])
                .minimum(Some(*least as f64))
                .maximum(Some(*most as f64))
                .pattern(pattern),
            Self::Time { .. } | Self::Text(_) => typed(&[Type::String]).pattern(pattern),
            Self::Map(_) => typed(&[Type::Object])
                .property_names(Some(text()))
                .additional_properties(Some(AdditionalProperties::RefOr(RefOr::T(text().into())))),
            Self::List(_) | Self::Tables(_) => {
                let array = ArrayBuilder::new().description(Some(description));
                let array = match self {
                    Self::Tables(name) => array.items(Ref::from_schema_name(*name)),
                    _ => array.items(text()),
                };
                let null = is_optional.then_some(Type::Null);
                let types = [Type::Array].into_iter().chain(null).collect();
                return Schema::Array(array.schema_type(SchemaType::Array(types)).build());
            }
            Self::Bytes(_) => {
                let both = AnyOfBuilder::new()
                    .description(Some(description))
                    .item(typed(&[Type::String]).pattern(pattern))
                    .item(Ref::from_schema_name("FieldDocument"));
                return Schema::AnyOf(both.build());
            }
            Self::Table(name) => {
                let mut table = Ref::from_schema_name(*name);
                table.description = description.to_owned();
                let mut either = OneOfBuilder::new();
                if is_optional {
                    either = either.item(typed(&[]));
                }
                return Schema::OneOf(either.item(table).build());
            }
        };
        let default = default.map(|text| match self {
            Self::Flag => (text == "true").into(),
            _ => text
                .parse::<u64>()
                .map_or_else(|_| text.into(), Value::from),
        });
        Schema::Object(
            object
                .description(Some(description))
                .default(default)
                .build(),
        )
    }
}

/// The values that words may be written as, with their types: `true` for `yes`, and a number for its
/// digits.
fn values(words: &[Word]) -> (Vec<Type>, Vec<Value>) {
    let words: Vec<&str> = words.iter().flat_map(Word::all).collect();
    let mut types = vec![Type::String];
    let mut values: Vec<Value> = words.iter().map(|word| Value::from(*word)).collect();
    for word in words {
        let (of, value) = match word {
            "yes" => (Type::Boolean, true.into()),
            "no" => (Type::Boolean, false.into()),
            word => match word.parse::<u64>() {
                Ok(number) => (Type::Integer, number.into()),
                Err(_) => continue,
            },
        };
        values.push(value);
        if !types.contains(&of) {
            types.push(of);
        }
    }
    (types, values)
}
