//! Enums whose variants have a name each, and types that are written as one text.

/// Declares an enum whose variants have names; adds a list of all of them, and the names.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])+
        $vis:vis enum $name:ident {
            $($(#[$help:meta])+ $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$about])+
        $vis enum $name {
            $($(#[$help])+ $variant,)+
        }

        impl $name {
            /// All of them, in their order.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}
pub use named;

/// Converts types that implement `FromStr` and `Display` from and to `String`, for
/// `#[serde(try_from = "String", into = "String")]`.
#[macro_export]
macro_rules! by_text {
    ($name:ty, $error:ty) => {
        impl TryFrom<String> for $name {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}
pub use by_text;
