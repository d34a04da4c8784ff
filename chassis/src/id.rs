use std::sync::LazyLock;

use data_encoding::{Encoding, Specification};
use uuid::Uuid;

/// Declares a typed id: `id!(SessionId, "ses")` is a UUID that only names sessions.
///
/// Its text, `ses_` and 26 characters, is the same in Postgres, protobuf, JSON
/// and logs, and sorts by the time the id was made.
#[macro_export]
macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($crate::reexport::uuid::Uuid);

        impl $name {
            /// A new id, greater than all that this process made before.
            #[allow(clippy::new_without_default, reason = "every new id is another one")]
            pub fn new() -> Self {
                Self($crate::reexport::uuid::Uuid::now_v7())
            }

            pub fn from_uuid(uuid: $crate::reexport::uuid::Uuid) -> Self {
                Self(uuid)
            }

            pub fn uuid(self) -> $crate::reexport::uuid::Uuid {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&$crate::reexport::encode($prefix, self.0))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::reexport::decode($prefix, text).map(Self)
            }
        }

        impl $crate::reexport::serde::Serialize for $name {
            fn serialize<S: $crate::reexport::serde::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> $crate::reexport::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::reexport::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                let text =
                    <std::borrow::Cow<'_, str> as $crate::reexport::serde::Deserialize>::deserialize(
                        deserializer,
                    )?;
                text.parse().map_err($crate::reexport::serde::de::Error::custom)
            }
        }

        $crate::text_in_postgres!($name);
    };
}

/// Stores a type that is `Display` and `FromStr` as Postgres `text`.
#[macro_export]
macro_rules! text_in_postgres {
    ($name:ident) => {
        impl $crate::reexport::sqlx::Type<$crate::reexport::sqlx::Postgres> for $name {
            fn type_info() -> $crate::reexport::sqlx::postgres::PgTypeInfo {
                <str as $crate::reexport::sqlx::Type<$crate::reexport::sqlx::Postgres>>::type_info()
            }

            fn compatible(ty: &$crate::reexport::sqlx::postgres::PgTypeInfo) -> bool {
                <str as $crate::reexport::sqlx::Type<$crate::reexport::sqlx::Postgres>>::compatible(ty)
            }
        }

        impl $crate::reexport::sqlx::postgres::PgHasArrayType for $name {
            fn array_type_info() -> $crate::reexport::sqlx::postgres::PgTypeInfo {
                <String as $crate::reexport::sqlx::postgres::PgHasArrayType>::array_type_info()
            }
        }

        impl<'q> $crate::reexport::sqlx::Encode<'q, $crate::reexport::sqlx::Postgres> for $name {
            fn encode_by_ref(
                &self,
                buffer: &mut $crate::reexport::sqlx::postgres::PgArgumentBuffer,
            ) -> Result<$crate::reexport::sqlx::encode::IsNull, $crate::reexport::sqlx::error::BoxDynError>
            {
                <String as $crate::reexport::sqlx::Encode<$crate::reexport::sqlx::Postgres>>::encode(
                    self.to_string(),
                    buffer,
                )
            }
        }

        impl<'r> $crate::reexport::sqlx::Decode<'r, $crate::reexport::sqlx::Postgres> for $name {
            fn decode(
                value: $crate::reexport::sqlx::postgres::PgValueRef<'r>,
            ) -> Result<Self, $crate::reexport::sqlx::error::BoxDynError> {
                let text =
                    <&str as $crate::reexport::sqlx::Decode<$crate::reexport::sqlx::Postgres>>::decode(
                        value,
                    )?;
                Ok(text.parse()?)
            }
        }
    };
}

/// A text is not the id it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {prefix}_ and 26 characters")]
pub struct ParseIdError {
    prefix: &'static str,
}

/// Crockford's base 32 in lowercase: no letter looks like a digit, and because the
/// most significant bits come first, texts sort like the ids behind them.
pub static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = Specification::new();
    specification.symbols.push_str("0123456789abcdefghjkmnpqrstvwxyz");
    specification.encoding().expect("32 different symbols")
});

pub fn encode(prefix: &str, uuid: Uuid) -> String {
    let mut text = String::with_capacity(prefix.len() + 27);
    text.push_str(prefix);
    text.push('_');
    BASE32.encode_append(uuid.as_bytes(), &mut text);
    text
}

pub fn decode(prefix: &'static str, text: &str) -> Result<Uuid, ParseIdError> {
    text.strip_prefix(prefix)
        .and_then(|text| text.strip_prefix('_'))
        .and_then(decode_bare)
        .ok_or(ParseIdError { prefix })
}

/// The 26 characters without a prefix.
pub fn decode_bare(text: &str) -> Option<Uuid> {
    let bytes = BASE32.decode(text.as_bytes()).ok()?;
    Uuid::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    id!(SessionId, "ses");

    proptest! {
        #[test]
        fn the_text_of_an_id_is_the_id(bits: u128) {
            let id = SessionId::from_uuid(Uuid::from_u128(bits));
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(id.uuid().as_u128(), bits);
            prop_assert_eq!(id.to_string().len(), 30);
        }

        #[test]
        fn texts_sort_like_ids(one: u128, other: u128) {
            let (one, other) = (Uuid::from_u128(one), Uuid::from_u128(other));
            prop_assert_eq!(one.cmp(&other), encode("ses", one).cmp(&encode("ses", other)));
        }

        #[test]
        fn no_text_breaks_the_parser(text: String) {
            let _ = text.parse::<SessionId>();
        }
    }

    #[test]
    fn ids_grow() {
        let ids: Vec<_> = (0..10_000).map(|_| SessionId::new()).collect();
        assert!(ids.is_sorted());
    }

    #[test]
    fn only_the_one_right_text_is_an_id() {
        let id = SessionId::from_uuid(Uuid::from_u128(u128::MAX));
        expect!["ses_zzzzzzzzzzzzzzzzzzzzzzzzzw"].assert_eq(&id.to_string());
        for wrong in [
            "",
            "ses_",
            "zzzzzzzzzzzzzzzzzzzzzzzzzw",
            "tur_zzzzzzzzzzzzzzzzzzzzzzzzzw",
            "ses_zzzzzzzzzzzzzzzzzzzzzzzzzz",
            "ses_ZZZZZZZZZZZZZZZZZZZZZZZZZW",
            "ses_zzzzzzzzzzzzzzzzzzzzzzzzzw ",
        ] {
            let error = wrong.parse::<SessionId>().expect_err(wrong);
            assert_eq!(error.to_string(), "expected ses_ and 26 characters");
        }
    }
}
