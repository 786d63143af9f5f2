//! Values that are one of a few words.

/// Declares an enum whose variants are written as words, each with its meaning and perhaps with
/// synonyms; the default follows `=`.
#[macro_export]
macro_rules! words {
    (
        $(#[doc = $about:literal])+
        $vis:vis enum $name:ident = $default:ident {
            $($(#[doc = $help:literal])+ $variant:ident = $word:literal $(| $same:literal)*,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize,
            serde::Deserialize,
        )]
        #[serde(rename_all = "lowercase")]
        $vis enum $name {
            $($(#[doc = $help])+ $variant,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self::$default
            }
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The words, with their meanings.
            pub const WORDS: &[$crate::setting::Word] = &[$($crate::setting::Word {
                word: $word,
                same: &[$($same),*],
                help: &[$($help),+],
            }),+];

            /// Its word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl $crate::setting::Setting for $name {
            const FORM: $crate::setting::Form = $crate::setting::Form::Words(Self::WORDS);

            fn parse(
                text: &str,
                _: &$crate::setting::Form,
            ) -> Result<Self, $crate::setting::Refusal> {
                match text {
                    $($word $(| $same)* => Ok(Self::$variant),)+
                    _ => Err($crate::setting::Refusal::Form),
                }
            }

            fn text(&self, _: &$crate::setting::Form) -> String {
                self.as_str().to_owned()
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $crate::setting::Form::Words(Self::WORDS).schema(concat!($($about),+).trim(), None, false).into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}
pub use words;
