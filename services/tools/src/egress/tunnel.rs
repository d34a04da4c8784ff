//! Connections that are encrypted between a command and a host, so that only their beginning
//! can be looked at: whom they are for, by the request and by the first message of TLS.

use std::{sync::Arc, time::Duration};

use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, upgrade};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncWriteExt as _, copy_bidirectional},
    time::timeout,
};

use super::{
    Way,
    hello::{self, Hello},
    proxy::{Body, Denied, Room, reach},
    traffic::Counted,
};
use crate::host::Host;

/// How long a client may take to say hello.
const HELLO: Duration = Duration::from_secs(30);

/// The alert `unrecognized_name` of TLS, fatal: what a client is told in the only language that
/// it listens to by now.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

pub async fn open(
    way: &Arc<Way>,
    room: Room,
    request: Request<Incoming>,
) -> Result<Response<Body>, Denied> {
    let authority = request.uri().authority();
    let host = authority.and_then(|authority| Host::of_authority(authority.as_str(), None));
    let host = host.ok_or(Denied::Malformed("CONNECT takes a host and a port"))?;
    let upstream = reach(way, &host).await?;
    let relaying = relay(way.clone(), host, upgrade::on(request), upstream);
    way.clone().spawn(async move {
        relaying.await;
        drop(room);
    });
    Ok(Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync()))
}

async fn relay(way: Arc<Way>, host: Host, upgrade: upgrade::OnUpgrade, mut upstream: Counted) {
    let Ok(client) = upgrade.await else { return };
    let mut client = TokioIo::new(client);
    let Ok(hello) = timeout(HELLO, hello::read(&mut client)).await else { return };
    let Ok(hello) = hello else { return };
    if !way.omitted.server_name()
        && let Err(reason) = check(&host, &hello)
    {
        way.ledger.refuse(reason);
        let _ = client.write_all(&UNRECOGNIZED_NAME).await;
        let _ = client.shutdown().await;
        return;
    }
    if upstream.write_all(&hello.bytes).await.is_ok() {
        let _ = copy_bidirectional(&mut client, &mut upstream).await;
    }
}

/// Whether the first message is for the host that was checked. Many hosts may be at one address,
/// and this is how a client says which it wants; what it says later is not for our eyes. Where
/// the name is encrypted as well (ECH), this is the name that everybody may see: a client that
/// does not say the host's own there is refused, and one that does can still mean another host
/// of the same server, just as with the encrypted `Host` of its requests.
fn check(host: &Host, hello: &Hello) -> Result<(), String> {
    let Some(greeting) = &hello.greeting else {
        return Err(format!("what was sent to {host} is no TLS"));
    };
    let named = greeting.server_name.as_deref();
    let same = named.map(|name| Host::new(name, host.port).as_ref() == Some(host));
    match same {
        Some(true) => Ok(()),
        Some(false) => Err(format!("a connection to {host} asks for another host by TLS")),
        // An address is nothing that can be asked for by name.
        None if host.literal().is_some() => Ok(()),
        None => Err(format!("a connection to {host} does not ask for it by TLS")),
    }
}
