use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use local::{Fleet, Service};
use proto::{
    session::v1::{Message, message::Role, part::Content},
    triggers::v1::{
        CreateTriggerRequest, CreateTriggerResponse, Firing, GetTriggerRequest, ListFiringsRequest,
        RedeliverFiringRequest, RotateTriggerSecretRequest, Target, Trigger, Webhook,
        target::Session as TargetSession, trigger::Kind,
    },
};
use serde_json::{Value, json};
use tests::{Answer, Client, Sender, Session, World, explain, hmac_of, request_id, signed};
use tokio::time::{sleep, timeout};

const SCRIPT: &str = "\n#!script\nsay ok";

fn webhook(provider: &str, template: &str, session: TargetSession) -> Trigger {
    let webhook = Webhook { provider: provider.into(), ..Webhook::default() };
    let agent = match session {
        TargetSession::SessionId(_) => String::new(),
        _ => "scripted".into(),
    };
    Trigger {
        name: format!("from {provider}"),
        kind: Some(Kind::Webhook(webhook)),
        target: Some(Target { session: Some(session), agent, ..Target::default() }),
        template: format!("{template}{SCRIPT}"),
        ..Trigger::default()
    }
}

/// A webhook that somebody made, and the secret that its sender has.
struct Hook {
    id: String,
    url: String,
    secret: String,
}

async fn create(client: &Client, trigger: Trigger, secret: &str) -> Hook {
    let request = CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(trigger),
        secret: secret.into(),
    };
    let answer = client.triggers().create_trigger(request).await.unwrap().into_inner();
    hook(answer, secret)
}

fn hook(answer: CreateTriggerResponse, chosen: &str) -> Hook {
    let trigger = answer.trigger.unwrap();
    let Some(Kind::Webhook(webhook)) = trigger.kind else { panic!("it is no webhook") };
    let secret = match chosen {
        "" => answer.secret,
        chosen => chosen.into(),
    };
    Hook { id: trigger.trigger_id, url: webhook.url, secret }
}

impl Hook {
    /// Posts as GitHub does.
    async fn github(&self, delivery: &str, body: &Value) -> Answer {
        let body = body.to_string();
        let signature = format!("sha256={}", signed(self.secret.as_bytes(), &[&body]));
        let headers = [
            ("content-type", "application/json"),
            ("user-agent", "GitHub-Hookshot/044aadd"),
            ("x-github-event", "pull_request"),
            ("x-github-delivery", delivery),
            ("x-hub-signature-256", &signature),
            ("cookie", "session=stolen"),
        ];
        Sender::post_once(&self.url, &headers, &body).await
    }
}

async fn firings(client: &Client, trigger_id: &str) -> Vec<Firing> {
    let request = ListFiringsRequest {
        trigger_id: trigger_id.into(),
        page_size: 500,
        page_token: String::new(),
    };
    client.triggers().list_firings(request).await.unwrap().into_inner().firings
}

/// The firing that an answer names, when its turn was submitted.
async fn submitted(client: &Client, hook: &Hook, answer: &Answer) -> Firing {
    assert_eq!(answer.status, 202, "{answer:?}");
    loop {
        let found = firings(client, &hook.id).await;
        let firing = found.into_iter().find(|firing| answer.body["firing_id"] == *firing.firing_id);
        match firing {
            Some(firing) if firing.status == "submitted" => return firing,
            Some(firing) => assert_eq!(firing.status, "pending", "{firing:?}"),
            None => panic!("{answer:?} is nowhere"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// What the agent was told by a firing, and its metadata.
async fn message(client: &Client, firing: &Firing) -> (String, Value) {
    let session = Session { client: client.clone(), id: firing.session_id.clone() };
    let messages = session.messages().await;
    let told =
        |message: &&Message| message.turn_id == firing.turn_id && message.role() == Role::User;
    let turn = messages.iter().find(told).unwrap();
    let Some(Content::Text(text)) = &turn.parts[0].content else { panic!("{turn:?} says nothing") };
    let text = text.text.strip_suffix(SCRIPT).unwrap_or(&text.text).to_owned();
    (text, serde_json::from_str(&turn.metadata_json).unwrap())
}

fn now() -> String {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().to_string()
}

fn pull_request(number: u32, action: &str) -> Value {
    json!({
        "action": action,
        "number": number,
        "pull_request": { "title": "Fix the pump", "draft": false },
        "repository": { "full_name": "acme/pumps" },
    })
}

#[tokio::test]
async fn webhooks() {
    let mut world = World::start().await;
    let client = world.client("acme").await;

    // GitHub: a session per pull request, and only some of what it sends.
    let template = "{{ payload.repository.full_name }}#{{ payload.number }} was {{ payload.action }}: \
        {{ payload.pull_request.title }}";
    let key = TargetSession::SessionKey("pr-{{ payload.number }}".into());
    let mut trigger = webhook("github", template, key);
    if let Some(Kind::Webhook(webhook)) = &mut trigger.kind {
        webhook.filter = "payload.action != 'labeled' and not payload.pull_request.draft".into();
    }
    let github = create(&client, trigger, "").await;
    assert!(github.secret.starts_with("whsec_"));
    let answer = github.github("delivery-1", &pull_request(7, "opened")).await;
    let first = submitted(&client, &github, &answer).await;
    assert_eq!((first.delivery_id.as_str(), first.drop_reason.as_str()), ("delivery-1", ""));
    let (text, metadata) = message(&client, &first).await;
    assert_eq!(text, "acme/pumps#7 was opened: Fix the pump");
    let envelope = &metadata["trigger"];
    assert_eq!(envelope["source"], "webhook");
    assert_eq!(envelope["delivery_id"], "delivery-1");
    assert_eq!(envelope["headers"]["x-github-event"], "pull_request");
    assert_eq!(envelope["headers"].get("cookie"), None);
    assert_eq!(envelope["headers"].get("x-hub-signature-256"), None);

    let answer = github.github("delivery-2", &pull_request(7, "synchronize")).await;
    let second = submitted(&client, &github, &answer).await;
    assert_eq!(second.session_id, first.session_id, "the same pull request, the same session");
    let answer = github.github("delivery-3", &pull_request(8, "opened")).await;
    let third = submitted(&client, &github, &answer).await;
    assert_ne!(third.session_id, first.session_id);

    // What was delivered before, does not count, or says nothing is on record and becomes no turn.
    for (delivery, body, reason) in [
        ("delivery-1", pull_request(7, "opened"), "duplicate"),
        ("delivery-4", pull_request(7, "labeled"), "filtered"),
        ("delivery-5", json!({ "zen": "Keep it logically awesome." }), "filtered"),
        ("delivery-6", json!({ "action": "opened", "pull_request": { "draft": 0 } }), "template"),
    ] {
        let answer = github.github(delivery, &body).await;
        assert_eq!((answer.status, answer.body["reason"].as_str()), (200, Some(reason)));
        let newest = firings(&client, &github.id).await.remove(0);
        assert_eq!(
            (newest.delivery_id.as_str(), newest.status.as_str(), newest.drop_reason.as_str()),
            (delivery, "dropped", reason)
        );
    }

    // What nobody believes leaves no trace.
    let known = firings(&client, &github.id).await.len();
    let body = pull_request(9, "opened").to_string();
    let good = format!("sha256={}", signed(github.secret.as_bytes(), &[&body]));
    let bad = format!("sha256={}", signed(b"another secret", &[&body]));
    let large = "x".repeat(1024 * 1024 + 1);
    let large_signed = format!("sha256={}", signed(github.secret.as_bytes(), &[&large]));
    let elsewhere = github.url.replace(&github.id, &first.firing_id.replace("fire_", "trg_"));
    for (url, signature, body, status) in [
        (&github.url, Some(&bad), &body, 401),
        (&github.url, None, &body, 401),
        (&github.url, Some(&good), &body.replace('9', "8"), 401),
        (&github.url, Some(&large_signed), &large, 413),
        (&elsewhere, Some(&good), &body, 404),
        (&github.url.replace("trg_", "no-"), Some(&good), &body, 404),
    ] {
        let mut headers = vec![("x-github-delivery", "delivery-9")];
        headers.extend(signature.map(|signature| ("x-hub-signature-256", signature.as_str())));
        let answer = Sender::post_once(url, &headers, body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        let fields: Vec<_> = answer.body.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["error", "message"], "all of them look alike");
    }
    assert_eq!(firings(&client, &github.id).await.len(), known);

    // What was recorded can be fired again.
    let request =
        RedeliverFiringRequest { firing_id: first.firing_id.clone(), request_id: request_id() };
    let again = client.triggers().redeliver_firing(request).await.unwrap().into_inner();
    assert_ne!(again.firing.unwrap().firing_id, first.firing_id);

    // A secret is replaced without losing a delivery, or revoked at once.
    let rotate = async |grace_seconds| {
        let request = RotateTriggerSecretRequest {
            trigger_id: github.id.clone(),
            grace_seconds,
            secret: String::new(),
        };
        client.triggers().rotate_trigger_secret(request).await.unwrap().into_inner().secret
    };
    let renewed =
        Hook { secret: rotate(3600).await, id: github.id.clone(), url: github.url.clone() };
    let mut number = 100;
    until(async || {
        number += 1;
        let answer = renewed.github(&format!("new-{number}"), &pull_request(7, "closed")).await;
        answer.status == 202
    })
    .await;
    assert_eq!(github.github("old-1", &pull_request(7, "closed")).await.status, 202);
    let last = Hook { secret: rotate(0).await, id: github.id.clone(), url: github.url.clone() };
    until(async || {
        number += 1;
        let answer = github.github(&format!("old-{number}"), &pull_request(7, "closed")).await;
        answer.status == 401
    })
    .await;
    assert_eq!(renewed.github("new-2", &pull_request(7, "closed")).await.status, 401);
    assert_eq!(last.github("last-1", &pull_request(7, "closed")).await.status, 202);
}

#[tokio::test]
async fn every_sender_is_believed_in_its_own_way() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let target = || TargetSession::SessionId(session.id.clone());

    // Standard Webhooks, with two signatures of which one is ours.
    let standard = create(&client, webhook("standard", "{{ payload.type }}", target()), "").await;
    let key = BASE64.decode(standard.secret.strip_prefix("whsec_").unwrap().as_bytes()).unwrap();
    let (time, body) = (now(), r#"{"type":"invoice.paid"}"#);
    let signature = BASE64.encode(&hmac_of(&key, &["msg_1", ".", &time, ".", body]));
    let other = BASE64.encode(&hmac_of(b"other", &["x"]));
    let signatures = format!("v1,{other} v1,{signature}");
    let headers = [
        ("webhook-id", "msg_1"),
        ("webhook-timestamp", time.as_str()),
        ("webhook-signature", signatures.as_str()),
    ];
    let answer = Sender::post_once(&standard.url, &headers, body).await;
    let firing = submitted(&client, &standard, &answer).await;
    assert_eq!(firing.delivery_id, "msg_1");
    assert_eq!(message(&client, &firing).await.0, "invoice.paid");
    // The same at another time is not.
    let old = (time.parse::<u64>().unwrap() - 600).to_string();
    let signature =
        format!("v1,{}", BASE64.encode(&hmac_of(&key, &["msg_1", ".", &old, ".", body])));
    let headers =
        [("webhook-id", "msg_1"), ("webhook-timestamp", &old), ("webhook-signature", &signature)];
    assert_eq!(Sender::post_once(&standard.url, &headers, body).await.status, 401);

    // Stripe and Slack choose the secret themselves.
    let stripe = create(
        &client,
        webhook("stripe", "{{ payload.type }}", target()),
        "whsec_of_stripe_itself",
    )
    .await;
    let body = r#"{"id":"evt_1","object":"event","type":"charge.failed"}"#;
    let signature =
        format!("t={time},v1={},v0=0", signed(stripe.secret.as_bytes(), &[&time, ".", body]));
    let answer = Sender::post_once(&stripe.url, &[("stripe-signature", &signature)], body).await;
    let firing = submitted(&client, &stripe, &answer).await;
    assert_eq!(firing.delivery_id, "evt_1");
    assert_eq!(message(&client, &firing).await.0, "charge.failed");
    // A copy fires nothing, whatever it says it is: that is not signed.
    let form = "application/x-www-form-urlencoded";
    let headers = [("stripe-signature", signature.as_str()), ("content-type", form)];
    let answer = Sender::post_once(&stripe.url, &headers, body).await;
    assert_eq!((answer.status, &answer.body["reason"]), (200, &json!("duplicate")));

    let slack = create(
        &client,
        webhook("slack", "{{ payload.command }} {{ payload.text }}", target()),
        "8f742231b10e8888abcd99yyyzzz85a5",
    )
    .await;
    let post = async |body: &str, kind: &str| {
        let signature =
            format!("v0={}", signed(slack.secret.as_bytes(), &["v0:", &time, ":", body]));
        let headers = [
            ("content-type", kind),
            ("x-slack-request-timestamp", time.as_str()),
            ("x-slack-signature", signature.as_str()),
        ];
        Sender::post_once(&slack.url, &headers, body).await
    };
    let challenge = r#"{"type":"url_verification","token":"x","challenge":"3eZbrw1aB"}"#;
    let answer = post(challenge, "application/json").await;
    assert_eq!((answer.status, &answer.body), (200, &json!({ "challenge": "3eZbrw1aB" })));
    assert_eq!(firings(&client, &slack.id).await, []);
    let unsigned =
        Sender::post_once(&slack.url, &[("content-type", "application/json")], challenge).await;
    assert_eq!(unsigned.status, 401, "a challenge is answered only to who can sign");
    let answer = post("command=%2Fdeploy&text=the+pump", form).await;
    let firing = submitted(&client, &slack, &answer).await;
    assert_eq!(message(&client, &firing).await.0, "/deploy the pump");
    let event = r#"{"event_id":"Ev1","command":"told","text":"of it"}"#;
    let answer = post(event, "application/json").await;
    assert_eq!(submitted(&client, &slack, &answer).await.delivery_id, "Ev1");
    let answer = post(event, form).await;
    assert_eq!((answer.status, &answer.body["reason"]), (200, &json!("duplicate")));

    // Anybody else, with headers of their own. Without a template, what was sent is the message.
    let mut trigger = webhook("hmac", "", target());
    trigger.template.clear();
    if let Some(Kind::Webhook(webhook)) = &mut trigger.kind {
        (webhook.signature_header, webhook.delivery_header) =
            ("X-Gitea-Signature".into(), "X-Gitea-Delivery".into());
    }
    let gitea = create(&client, trigger, "").await;
    let body = r#"{"ref":"main"}"#;
    let signature = signed(gitea.secret.as_bytes(), &[body]);
    let headers = [("x-gitea-signature", signature.as_str()), ("x-gitea-delivery", "42")];
    let answer = Sender::post_once(&gitea.url, &headers, body).await;
    let firing = submitted(&client, &gitea, &answer).await;
    assert_eq!(firing.delivery_id, "42");
    assert_eq!(message(&client, &firing).await.0, body);

    // What cannot work is refused before it is made, and says why.
    for (change, expected) in [
        (
            (|webhook| webhook.provider = "gitlab".into()) as fn(&mut Webhook),
            "trigger.webhook.provider",
        ),
        (|webhook| webhook.filter = "payload.".into(), "trigger.webhook.filter"),
        (|webhook| webhook.signature_header = "x".into(), "trigger.webhook.signature_header"),
    ] {
        let mut trigger = webhook("github", "x", TargetSession::NewSession(true));
        if let Some(Kind::Webhook(webhook)) = &mut trigger.kind {
            change(webhook);
        }
        let request = CreateTriggerRequest {
            request_id: request_id(),
            trigger: Some(trigger),
            secret: String::new(),
        };
        let refused = explain(&client.triggers().create_trigger(request).await.unwrap_err());
        assert!(refused.contains(expected), "{refused}");
    }
}

#[tokio::test]
async fn a_flood_stays_within_its_bounds() {
    const SENDERS: usize = 8;
    const EACH: usize = 25;
    const MOST: usize = 20;

    // Time stands still, so that a minute does not end in between.
    let clock = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(clock.path(), "2026-11-17T12:00:30Z").unwrap();
    let path = clock.path().display().to_string();
    let mut world =
        World::planned(Fleet::plan().env_of(Service::Triggers, "CLOCK_FILE", path)).await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    let turn = session.submit("delay 5m\nsay late").await;
    let mut trigger = webhook(
        "github",
        "flood {{ payload.number }}",
        TargetSession::SessionId(session.id.clone()),
    );
    trigger.max_per_minute = MOST as i32;
    let flooded = create(&client, trigger, "").await;
    let other =
        create(&client, webhook("github", "calm", TargetSession::NewSession(true)), "").await;

    let answers = futures::future::join_all((0..SENDERS).map(async |sender| {
        let mut connection = Sender::to(&flooded.url).await;
        let mut answers = Vec::new();
        for number in 0..EACH {
            let body = json!({ "number": sender * EACH + number }).to_string();
            let signature = format!("sha256={}", signed(flooded.secret.as_bytes(), &[&body]));
            let delivery = format!("{sender}-{number}");
            let headers =
                [("x-hub-signature-256", signature.as_str()), ("x-github-delivery", &delivery)];
            answers.push(connection.post(&flooded.url, &headers, &body).await);
        }
        answers
    }));
    let answers = answers.await.concat();
    let count = |status| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!((count(202), count(429)), (MOST, SENDERS * EACH - MOST));
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.retry_after, Some(30), "{refused:?}");

    // The queue is as long as the throttle allows, the rest is on record often enough, and others
    // are served.
    let answer = other.github("calm-1", &json!({})).await;
    submitted(&client, &other, &answer).await;
    until(async || {
        firings(&client, &flooded.id).await.iter().all(|firing| firing.status != "pending")
    })
    .await;
    let found = firings(&client, &flooded.id).await;
    let of = |status: &str| found.iter().filter(|firing| firing.status == status).count();
    assert_eq!(of("submitted"), MOST);
    assert!((100..=100 + SENDERS).contains(&of("dropped")), "{}", of("dropped"));
    assert!(
        found
            .iter()
            .all(|firing| firing.status == "submitted" || firing.drop_reason == "throttled")
    );
    let shown = session.get().await;
    assert_eq!(shown.queued_turns as usize, MOST, "{shown:?}");
    let request = GetTriggerRequest { trigger_id: flooded.id.clone() };
    assert!(client.triggers().get_trigger(request).await.is_ok());
    session.interrupt("enough").await;
    drop(turn);
}

/// Tries until it is so.
pub async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(120), waiting).await.expect("it should be so by now");
}
