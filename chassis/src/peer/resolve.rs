use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll},
    vec,
};

use futures::{FutureExt as _, future::BoxFuture};
use hyper_util::client::legacy::connect::dns::Name;
use rand::seq::SliceRandom as _;
use tokio::net::lookup_host;
use tower::Service;

/// Looks up all replicas behind a name and puts them in random order. The system's
/// resolver puts them in the same order every time, so that all would call the first.
#[derive(Clone)]
pub struct Shuffled;

impl Service<Name> for Shuffled {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        async move {
            // The caller knows the port.
            let mut addresses: Vec<SocketAddr> = lookup_host((name.as_str(), 0)).await?.collect();
            addresses.shuffle(&mut rand::rng());
            Ok(addresses.into_iter())
        }
        .boxed()
    }
}
