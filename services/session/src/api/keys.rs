use chassis::auth::{
    Scopes,
    keys::{self, Key, KeyError, NewKey},
};
use jiff::Timestamp;
use proto::session::v1::{self as pb, key_service_server::KeyService};
use secrecy::ExposeSecret as _;
use tonic::{Request, Response, Status};

use super::{Api, check};
use crate::{
    error::{Error, Result, parse},
    time,
};

#[tonic::async_trait]
impl KeyService for Api {
    async fn create_key(
        &self,
        request: Request<pb::CreateKeyRequest>,
    ) -> Result<Response<pb::CreateKeyResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        for (field, text, most) in
            [("name", &request.name, 100), ("subject", &request.subject, 200)]
        {
            if check::text(field, text, most)?.is_empty() {
                return Err(check::invalid(field, "is missing").into());
            }
        }
        let scopes = Scopes::from_names(request.scopes.iter().map(String::as_str));
        if scopes.is_empty() || scopes.names().len() != request.scopes.len() {
            let problem = "expected one or more of read, run, configure and admin, each once";
            return Err(check::invalid("scopes", problem).into());
        }
        if let Some(scope) = scopes.iter().find(|scope| !caller.scopes.contains(*scope)) {
            return Err(Error::ScopeNotHeld(scope.name()).into());
        }
        let expires_at = match request.expire_time {
            Some(time) => Some(
                Timestamp::new(time.seconds, time.nanos)
                    .ok()
                    .filter(|time| *time > Timestamp::now())
                    .ok_or_else(|| check::invalid("expire_time", "must be in the future"))?,
            ),
            None => None,
        };
        let new = NewKey {
            tenant: caller.tenant,
            subject: request.subject,
            name: request.name,
            scopes,
            expires_at,
        };
        let (key, secret) = keys::create(&self.host.db, new).await.map_err(error)?;
        let secret = secret.expose_secret().to_owned();
        Ok(Response::new(pb::CreateKeyResponse { key: Some(encode(key)), secret }))
    }

    async fn list_keys(
        &self,
        request: Request<pb::ListKeysRequest>,
    ) -> Result<Response<pb::ListKeysResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let limit = check::count("page_size", request.page_size, 50, 200)?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| Error::InvalidCursor("page_token"))?),
        };
        let mut keys = keys::list(&self.host.db, &caller.tenant, after, limit + 1)
            .await
            .map_err(Error::Database)?;
        let more = keys.len() as i64 > limit;
        keys.truncate(limit as usize);
        let next_page_token = match keys.last() {
            Some(last) if more => last.id.to_string(),
            _ => String::new(),
        };
        let keys = keys.into_iter().map(encode).collect();
        Ok(Response::new(pb::ListKeysResponse { keys, next_page_token }))
    }

    async fn revoke_key(
        &self,
        request: Request<pb::RevokeKeyRequest>,
    ) -> Result<Response<pb::RevokeKeyResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let id = parse("key_id", &request.into_inner().key_id)?;
        let revoked = keys::revoke(&self.host.db, &caller.tenant, id).await.map_err(error)?;
        Ok(Response::new(pb::RevokeKeyResponse { revoke_time: Some(time::to_proto(revoked)) }))
    }
}

fn error(error: KeyError) -> Error {
    match error {
        KeyError::NotFound(id) => Error::KeyNotFound(id.to_string()),
        KeyError::Database(error) => Error::Database(error),
        error => Error::Invalid { field: "key", problem: error.to_string() },
    }
}

fn encode(key: Key) -> pb::Key {
    pb::Key {
        key_id: key.id.to_string(),
        name: key.name,
        subject: key.subject,
        scopes: key.scopes.names(),
        create_time: Some(time::to_proto(key.created_at)),
        expire_time: key.expires_at.map(time::to_proto),
        revoke_time: key.revoked_at.map(time::to_proto),
    }
}
