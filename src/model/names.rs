//! Closed sets of names. A name is written once, next to its variant: it is the value in JSON,
//! the label of a metric and the word in a log, so that the three can't differ.

/// Declares an enum without data whose variants have names, with `ALL` in the order of declaration,
/// `name()`, and `Display` and serde by that name.
macro_rules! named {
    ($(#[$meta:meta])* $set:ident { $($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $set { $($(#[$doc])* #[serde(rename = $name)] $variant,)+ }

        impl $set {
            /// All of them, in the order in which they are declared.
            pub const ALL: [$set; [$($name),+].len()] = [$($set::$variant),+];

            /// The name used in logs, metrics and JSON.
            pub const fn name(self) -> &'static str {
                match self { $($set::$variant => $name,)+ }
            }
        }

        impl std::fmt::Display for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use named;
