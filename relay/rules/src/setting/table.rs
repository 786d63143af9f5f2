//! Tables of settings: a struct with a field for each row.

use super::Row;

/// A table that is made of rows.
pub trait Table: Sized {
    /// Its rows, in the order in which they are written.
    const ROWS: &'static [Row];

    /// Each row with its text, if given.
    fn values(&self) -> Vec<(&'static Row, Option<String>)>;

    /// The keys of this table, and those of `below` where it has none.
    fn over(&self, below: &Self) -> Self;

    /// The row of a key that exists.
    fn row(key: &str) -> &'static Row {
        let row = Self::ROWS.iter().find(|row| row.key == key);
        row.expect("keys are asked for by their rows")
    }
}

/// A key that differs between two tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: &'static str,
    /// Its value in the first.
    pub configured: String,
    /// Its value in the other.
    pub other: String,
}

impl Difference {
    /// The message that the key, of that table, takes effect only when the daemon is restarted.
    pub fn awaiting_restart(&self, table: &str) -> String {
        let Self {
            key,
            configured,
            other,
        } = self;
        let space = if key.is_empty() { "" } else { " " };
        format!(
            "[{table}]{space}{key}: {configured} takes effect when the daemon is started again; until then {other}"
        )
    }
}

/// The keys that differ between two tables, defaults included.
pub fn differences<T: Table>(configured: &T, other: &T) -> Vec<Difference> {
    let mut differences = Vec::new();
    for ((row, configured), (_, other)) in configured.values().into_iter().zip(other.values()) {
        let or_default = |text: Option<String>| text.unwrap_or_else(|| row.unsaid().to_owned());
        let (configured, other) = (or_default(configured), or_default(other));
        if configured != other {
            differences.push(Difference {
                key: row.key,
                configured,
                other,
            });
        }
    }
    differences
}

/// Declares a table: a struct with a field for each key, which is `optional` or `required`, or holds
/// `several` values, perhaps none. After the key come its type, a function that checks it further, if
/// any, and what its row has besides its form.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $name:ident {
            $($(#[doc = $help:literal])+ $need:ident $key:ident: $type:ty $(=> $check:expr)? $(, $column:ident: $what:expr)*;)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        $vis struct $name {
            $($(#[doc = $help])+ pub $key: $crate::setting::settings!(@type $need $type),)+
        }

        impl $crate::setting::Table for $name {
            const ROWS: &'static [$crate::setting::Row] = &[$($crate::setting::Row {
                is_required: $crate::setting::settings!(@is_required $need),
                $($column: $what,)*
                ..$crate::setting::Row::new(
                    stringify!($key),
                    &[$($help),+],
                    <$type as $crate::setting::Setting>::FORM,
                )
            }),+];

            fn values(&self) -> Vec<(&'static $crate::setting::Row, Option<String>)> {
                vec![$({
                    let row = Self::row(stringify!($key));
                    let value: Option<&$type> = $crate::setting::settings!(@given $need self.$key);
                    (row, value.map(|value| $crate::setting::Setting::text(value, &row.form)))
                }),+]
            }

            fn over(&self, below: &Self) -> Self {
                Self {
                    $($key: $crate::setting::settings!(@over $need self.$key, below.$key),)+
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serde::Serializer::serialize_map(serializer, None)?;
                $(if let Some(value) = $crate::setting::settings!(@given $need self.$key) {
                    serde::ser::SerializeMap::serialize_entry(&mut map, stringify!($key), value)?;
                })+
                serde::ser::SerializeMap::end(map)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Rows;

                impl<'de> serde::de::Visitor<'de> for Rows {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("struct ", stringify!($name)))
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> Result<$name, A::Error> {
                        use $crate::setting::{Key, Keyed, Table};
                        $(let mut $key: Option<$type> = None;)+
                        while let Some(row) = map.next_key_seed(Key(&[$name::ROWS]))? {
                            match row.key {
                                $(stringify!($key) => {
                                    let check = $crate::setting::settings!(@check $($check)?);
                                    let read = Keyed::<$type> { row, check };
                                    if $key.is_some() {
                                        return Err(serde::de::Error::duplicate_field(row.key));
                                    }
                                    $key = map.next_value_seed(read)?;
                                })+
                                _ => {}
                            }
                        }
                        Ok($name {
                            $($key: $crate::setting::settings!(@read $need $key),)+
                        })
                    }
                }

                deserializer.deserialize_map(Rows)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $crate::setting::schema(
                    <Self as $crate::setting::Table>::ROWS,
                    &[$($about),+],
                )
                .into()
            }
        }

        impl utoipa::ToSchema for $name {
            fn schemas(list: &mut $crate::setting::Schemas) {
                $(<$type as $crate::setting::Setting>::schemas(list);)+
            }
        }
    };
    (@type optional $type:ty) => { Option<$type> };
    (@type required $type:ty) => { $type };
    (@type several $type:ty) => { $type };
    (@check) => { Ok };
    (@check $check:expr) => { $check };
    (@is_required optional) => { false };
    (@is_required required) => { true };
    (@is_required several) => { false };
    (@given optional $($value:tt)+) => { $($value)+.as_ref() };
    (@given required $($value:tt)+) => { Some(&$($value)+) };
    (@given several $($value:tt)+) => { Some(&$($value)+).filter(|several| !several.is_empty()) };
    (@over optional $value:expr, $below:expr) => { $value.clone().or_else(|| $below.clone()) };
    (@over $need:ident $value:expr, $below:expr) => { $value.clone() };
    (@read optional $key:ident) => { $key };
    (@read several $key:ident) => { $key.unwrap_or_default() };
    (@read required $key:ident) => {
        $key.ok_or_else(|| serde::de::Error::missing_field(stringify!($key)))?
    };
}
pub use settings;
