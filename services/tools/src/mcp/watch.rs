//! What a server tells of by itself, for somebody who wants to know one thing of it.

use std::time::Duration;

use chassis::{Place, Tenant};
use rmcp::{
    RoleClient,
    model::{
        ClientRequest, PingRequest, ServerNotification, SubscribeRequestParams, SubscriptionFilter,
    },
    service::{Peer, Subscription},
};
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, Interval, interval_at, timeout},
};

use super::{
    Server,
    connect::{Connection, Connector, Protocol},
};

/// How long a server may take to agree to tell.
const SUBSCRIBING: Duration = Duration::from_secs(10);

/// How often a server of an older version is asked whether it still knows us: it says nothing
/// when it does not.
const PULSE: Duration = Duration::from_secs(10);

/// How many notifications may wait to be passed on. All of them say the same.
const WAITING: usize = 16;

/// The longest notification that is passed on, in bytes.
const LONGEST: usize = 64 * 1024;

/// What somebody wants to be told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Changes of the resource with this URI.
    Resource(String),
    /// Notifications of this method.
    Method(String),
}

impl Wanted {
    pub fn new(text: &str) -> Wanted {
        match text.starts_with("notifications/") {
            true => Wanted::Method(text.to_owned()),
            false => Wanted::Resource(text.to_owned()),
        }
    }

    /// How it is asked for in the newest version of the protocol, in which nothing is told that
    /// was not asked for.
    fn filter(&self) -> Option<SubscriptionFilter> {
        let filter = SubscriptionFilter::builder();
        Some(match self {
            Wanted::Resource(uri) => filter.resource_subscription(uri).build(),
            Wanted::Method(method) => match method.as_str() {
                "notifications/tools/list_changed" => filter.tools_list_changed().build(),
                "notifications/prompts/list_changed" => filter.prompts_list_changed().build(),
                "notifications/resources/list_changed" => filter.resources_list_changed().build(),
                _ => return None,
            },
        })
    }

    /// Whether a notification is about it. A server may also tell of what is below a resource.
    fn is(&self, notification: &Value) -> bool {
        let method = notification["method"].as_str().unwrap_or_default();
        match self {
            Wanted::Method(wanted) => method == wanted,
            Wanted::Resource(uri) => {
                let told = notification["params"]["uri"].as_str().unwrap_or_default();
                method == "notifications/resources/updated" && told.starts_with(uri.as_str())
            }
        }
    }
}

/// A server that tells.
pub struct Watch {
    wanted: Wanted,
    connection: Connection,
    subscription: Option<Subscription>,
    heard: mpsc::Receiver<ServerNotification>,
    pulse: Interval,
    _room: Place,
}

impl Watch {
    /// Connects, and has the server agree to tell.
    pub async fn begin(
        connector: &Connector,
        tenant: &Tenant,
        server: &Server,
        url: &str,
        wanted: Wanted,
        room: Place,
    ) -> Result<Watch, String> {
        let (sender, heard) = mpsc::channel(WAITING);
        let connect =
            |protocol| connector.connect_to(tenant, server, url, protocol, sender.clone());
        let connection = match connect(Protocol::Any).await {
            Ok(connection) => connection,
            // Some servers say of the newest version only that they do not know it.
            Err(problem) => connect(Protocol::Old).await.map_err(|_| problem)?,
        };
        let agreed = timeout(SUBSCRIBING, subscribe(connection.running.peer(), &wanted)).await;
        let agreed = agreed.unwrap_or_else(|_| Err("it did not answer the subscription".into()));
        let subscription = match agreed {
            Ok(subscription) => subscription,
            Err(problem) => return Err(connection.common.detail(&problem).await),
        };
        let pulse = interval_at(Instant::now() + PULSE, PULSE);
        Ok(Watch { wanted, connection, subscription, heard, pulse, _room: room })
    }

    /// The next notification as JSON text, or why there will be none.
    pub async fn next(&mut self) -> Result<String, String> {
        loop {
            let old = self.subscription.is_none();
            let told = async {
                match &mut self.subscription {
                    Some(subscription) => subscription.next().await,
                    None => std::future::pending().await,
                }
            };
            let notification = tokio::select! {
                told = told => match told {
                    Ok(Some(notification)) => notification,
                    Ok(None) => return Err("it ended the subscription".into()),
                    Err(error) => return Err(self.connection.common.explain(&error).await),
                },
                Some(notification) = self.heard.recv() => notification,
                _ = self.pulse.tick(), if old => {
                    self.still_there().await?;
                    continue;
                }
                () = self.connection.common.fault.ended() => {
                    return Err(self.connection.common.detail("it hung up").await);
                }
            };
            if let Some(text) = self.told(&notification) {
                return Ok(text);
            }
        }
    }

    async fn still_there(&self) -> Result<(), String> {
        let ping = ClientRequest::PingRequest(PingRequest::default());
        match timeout(SUBSCRIBING, self.connection.running.peer().send_request(ping)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.connection.common.explain(&error).await),
            Err(_) => Err(self.connection.common.detail("it no longer answers").await),
        }
    }

    fn told(&self, notification: &ServerNotification) -> Option<String> {
        let mut value = serde_json::to_value(notification).ok()?;
        if !self.wanted.is(&value) {
            return None;
        }
        // What belongs to the conversation and not to what happened.
        if let Some(params) = value["params"].as_object_mut() {
            params.remove("_meta");
        }
        let text = value.to_string();
        (text.len() <= LONGEST).then_some(text)
    }
}

/// Asks to be told, in the way of the version that is spoken. Older servers tell of lists without
/// being asked.
async fn subscribe(
    peer: &Peer<RoleClient>,
    wanted: &Wanted,
) -> Result<Option<Subscription>, String> {
    let old = peer.peer_info().is_none_or(|info| info.protocol_version.has_initialize());
    match (old, wanted) {
        (true, Wanted::Method(_)) => Ok(None),
        (true, Wanted::Resource(uri)) => {
            let params = SubscribeRequestParams::new(uri.clone());
            #[expect(deprecated, reason = "servers of older versions know nothing else")]
            let subscribed = peer.subscribe(params).await;
            subscribed.map_err(|error| format!("it does not tell of {uri}: {error}"))?;
            Ok(None)
        }
        (false, wanted) => {
            let filter = wanted.filter().ok_or("of this method nothing can be told")?;
            let subscription = peer.listen(filter.clone()).await;
            let subscription =
                subscription.map_err(|error| format!("it does not tell: {error}"))?;
            match *subscription.acknowledged() == filter {
                true => Ok(Some(subscription)),
                false => Err("it does not tell of that".into()),
            }
        }
    }
}
