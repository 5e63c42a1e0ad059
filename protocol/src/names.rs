//! Enums whose values have one name, in code that reads and writes JSON, in the store and in texts.

/// An enum without fields: serde and [`wire_names`] spell its values alike.
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($variants:tt)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[derive(strum::Display, strum::EnumString, strum::IntoStaticStr, strum::VariantArray)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(rename_all = "snake_case")]
        #[strum(serialize_all = "snake_case")]
        pub enum $name { $($variants)* }

        crate::names::wire_names!($name);
    };
}

/// The names of an enum that derives strum's traits, with a test that serde spells them alike.
macro_rules! wire_names {
    ($name:ident) => {
        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

            /// The name on the wire and in the store.
            pub fn as_str(self) -> &'static str {
                self.into()
            }

            /// From the name on the wire.
            pub fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }

        #[cfg(test)]
        #[test]
        #[expect(non_snake_case, reason = "the test is named after the enum")]
        fn $name() {
            for value in $name::ALL {
                let json = serde_json::Value::from(value.as_str());
                assert_eq!($name::parse(value.as_str()), Some(*value));
                assert_eq!(serde_json::to_value(value).unwrap(), json);
                assert_eq!(serde_json::from_value::<$name>(json).unwrap(), *value);
            }
        }
    };
}

pub(crate) use {wire_enum, wire_names};
