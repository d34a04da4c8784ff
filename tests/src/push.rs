use proto::triggers::v1::{
    CreateTriggerRequest, Target, Trigger, Webhook, target::Session, trigger::Kind,
};

use crate::{Answer, Client, Sender, request_id, signed};

/// As much as GitHub says of a push to a small repository.
const TEXT: usize = 2_000;

/// A webhook that GitHub tells of pushes, each of which is a turn of one session.
pub struct Push {
    pub trigger_id: String,
    pub url: String,
    signature: String,
    body: String,
}

impl Push {
    pub async fn create(client: &Client, session_id: &str) -> Push {
        let webhook = Webhook { provider: "github".into(), ..Webhook::default() };
        let session = Some(Session::SessionId(session_id.to_owned()));
        let trigger = Trigger {
            name: "pushes".into(),
            kind: Some(Kind::Webhook(webhook)),
            target: Some(Target { session, ..Target::default() }),
            template: "{{ payload.ref }} was pushed\n#!script\nsay ok".into(),
            max_per_minute: 6_000,
            ..Trigger::default()
        };
        let request = CreateTriggerRequest {
            request_id: request_id(),
            trigger: Some(trigger),
            secret: String::new(),
        };
        let answer = client.triggers().create_trigger(request).await.unwrap().into_inner();
        let Trigger { trigger_id, kind, .. } = answer.trigger.unwrap();
        let Some(Kind::Webhook(webhook)) = kind else { panic!("it is no webhook") };
        let body = format!(r#"{{"ref":"refs/heads/main","text":"{}"}}"#, "x".repeat(TEXT));
        let signature = format!("sha256={}", signed(answer.secret.as_bytes(), &[&body]));
        Push { trigger_id, url: webhook.url, signature, body }
    }

    /// Tells of one push, which is known by its delivery.
    pub async fn post(&self, sender: &mut Sender, delivery: &str) -> Answer {
        let headers = [
            ("content-type", "application/json"),
            ("x-github-event", "push"),
            ("x-github-delivery", delivery),
            ("x-hub-signature-256", self.signature.as_str()),
        ];
        sender.post(&self.url, &headers, &self.body).await
    }
}
