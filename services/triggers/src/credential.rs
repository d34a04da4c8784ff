//! Gives triggers what their senders prove themselves with.

use std::{sync::Arc, time::Duration};

use secrecy::{ExposeSecret as _, SecretString};
use sqlx::PgConnection;

use crate::{
    error::{Result, invalid},
    sealed::Keys,
    secret,
    store::secrets::{self, Kept},
    trigger::{Kind, Trigger, Webhook},
    webhook::Provider,
};

/// Makes secrets, and keeps what is needed to know them again.
#[derive(Clone)]
pub struct Credentials {
    pub keys: Arc<Keys>,
}

impl Credentials {
    /// Gives a trigger its first secret, and returns it if it was made here.
    pub async fn issue(
        &self,
        db: &mut PgConnection,
        trigger: &Trigger,
        chosen: &str,
    ) -> Result<Option<SecretString>> {
        match &trigger.definition.kind {
            Kind::Webhook(_) | Kind::Api => self.rotate(db, trigger, chosen, Duration::ZERO).await,
            Kind::Schedule(_) | Kind::McpEvent(_) => refuse_chosen(chosen).map(|()| None),
        }
    }

    /// Gives a trigger another secret. Those it has go on for `grace`.
    pub async fn rotate(
        &self,
        db: &mut PgConnection,
        trigger: &Trigger,
        chosen: &str,
        grace: Duration,
    ) -> Result<Option<SecretString>> {
        let (kept, made) = match &trigger.definition.kind {
            Kind::Webhook(webhook) => self.webhook(trigger, webhook, chosen)?,
            Kind::Api => {
                refuse_chosen(chosen)?;
                let made = secret::new_credential();
                let hash = secret::hash(made.expose_secret());
                (Kept::Sha256(hash.to_vec()), Some(made))
            }
            Kind::Schedule(_) | Kind::McpEvent(_) => {
                return Err(invalid("trigger_id", "only webhooks and API triggers have a secret"));
            }
        };
        secrets::put(db, trigger.id, kept, grace).await?;
        Ok(made)
    }

    fn webhook(
        &self,
        trigger: &Trigger,
        webhook: &Webhook,
        chosen: &str,
    ) -> Result<(Kept, Option<SecretString>)> {
        let made = match chosen {
            "" => Some(secret::new_webhook()),
            chosen => {
                let provider = provider(webhook)?;
                secret::check(&provider, chosen).map_err(|problem| invalid("secret", problem))?;
                None
            }
        };
        let text = made.as_ref().map_or(chosen, |made| made.expose_secret());
        let sealed = self.keys.seal(&trigger.id.to_string(), text).ok_or_else(|| {
            let problem = "this server has no key to keep secrets of webhooks with: \
                its operator has to set SECRETS_KEY_FILE";
            invalid("trigger.webhook", problem)
        })?;
        Ok((Kept::Sealed(sealed), made))
    }
}

/// Who sends, if it is somebody we know.
pub fn provider(webhook: &Webhook) -> Result<Provider> {
    let Webhook { provider, signature_header, delivery_header, .. } = webhook;
    Provider::new(provider, signature_header, delivery_header).ok_or_else(|| {
        let problem = "expected `github`, `stripe`, `standard`, `slack` or `hmac`";
        invalid("trigger.webhook.provider", problem)
    })
}

fn refuse_chosen(chosen: &str) -> Result<()> {
    match chosen.is_empty() {
        true => Ok(()),
        false => Err(invalid("secret", "only that of a webhook can be chosen")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::TriggerId,
        trigger::{Definition, Source, Status, Target, TargetSession},
    };

    #[test]
    fn without_a_key_there_are_no_webhooks() {
        let webhook = Webhook {
            provider: "github".into(),
            filter: String::new(),
            signature_header: String::new(),
            delivery_header: String::new(),
        };
        let target = Target {
            session: TargetSession::New,
            agent: String::new(),
            workspace_id: String::new(),
        };
        let definition = Definition {
            name: "pushes".into(),
            kind: Kind::Webhook(webhook.clone()),
            target,
            template: String::new(),
            max_per_minute: None,
            mode: None,
        };
        let now = jiff::Timestamp::now();
        let trigger = Trigger {
            id: TriggerId::new(),
            tenant: "acme".parse().unwrap(),
            subject: "ann".into(),
            source: Source::Webhook,
            definition,
            status: Status::Active,
            created_at: now,
            expires_at: None,
        };
        let credentials = Credentials { keys: Arc::default() };
        let refused = credentials.webhook(&trigger, &webhook, "").unwrap_err().to_string();
        assert!(refused.contains("SECRETS_KEY_FILE"), "{refused}");
    }
}
