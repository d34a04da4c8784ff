//! The contracts between services, and the code generated from them.
//!
//! Read the `.proto` files under `proto/windlass`; this crate mirrors them and adds
//! what protobuf cannot say: the gRPC code of each reason, the JSON form of an event, and what
//! a child may do of what its parent may.

/// Everything reflection needs to know about every service, as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

pub mod auth {
    pub mod v1 {
        tonic::include_proto!("windlass.auth.v1");
        include!(concat!(env!("OUT_DIR"), "/scopes.rs"));

        impl Scope {
            /// The scope as keys and tokens spell it: `SCOPE_READ` is `read`.
            pub fn name(self) -> String {
                self.as_str_name().trim_start_matches("SCOPE_").to_lowercase()
            }

            /// Reads what [`Scope::name`] wrote.
            pub fn from_name(name: &str) -> Option<Scope> {
                Scope::from_str_name(&format!("SCOPE_{}", name.to_uppercase()))
                    .filter(|scope| *scope != Scope::Unspecified)
            }
        }
    }
}

pub mod error {
    pub mod v1;
}

pub mod event {
    pub mod v1;
}

pub mod models {
    pub mod v1 {
        tonic::include_proto!("windlass.models.v1");
    }
}

pub mod tools {
    pub mod v1;
}

pub mod session {
    pub mod v1 {
        tonic::include_proto!("windlass.session.v1");
        include!(concat!(env!("OUT_DIR"), "/windlass.session.v1.serde.rs"));
    }
}

pub mod triggers {
    pub mod v1 {
        tonic::include_proto!("windlass.triggers.v1");
    }
}
