use proto::error::v1::Reason;
use tonic::{Request, Status};

use super::{Error, Scopes};
use crate::Tenant;

/// Somebody who has proved who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub tenant: Tenant,

    /// The person or program within the tenant.
    pub subject: String,
    pub scopes: Scopes,
    pub kind: Kind,
}

/// How a caller proved it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    ApiKey,
    Token,

    /// One of our services vouches for them.
    Service,
}

impl Caller {
    /// One of our own services, acting for a tenant without being asked by anybody:
    /// a sweep, a schedule, a recovery.
    pub fn service(tenant: Tenant, subject: impl Into<String>) -> Caller {
        let scopes = Scopes::public();
        Caller { tenant, subject: subject.into(), scopes, kind: Kind::Service }
    }
}

/// Who makes this call. Fails only where nobody was asked: outside of [`crate::Server`].
pub fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    request.extensions().get().cloned().ok_or_else(|| {
        crate::status(Reason::Unauthenticated, &Error::Unauthenticated("nobody asked"), vec![])
    })
}

/// Subjects are shown to people and written to logs, so they are short and printable.
pub fn is_subject(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= 256 && !text.chars().any(char::is_control)
}
