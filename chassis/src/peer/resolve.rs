use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    vec,
};

use futures::{FutureExt as _, future::BoxFuture};
use hyper_util::client::legacy::connect::dns::Name;
use tokio::net::lookup_host;
use tower::Service;

/// Looks up all replicas behind a name and has each connection begin with the next of them. Whoever
/// rolls dice for each sends all of few connections to the same one too often.
#[derive(Clone)]
pub struct InTurn(Arc<AtomicUsize>);

impl InTurn {
    /// Begins anywhere, so that not all callers begin with the same one.
    pub fn new() -> InTurn {
        InTurn(Arc::new(AtomicUsize::new(rand::random::<u32>() as usize)))
    }
}

impl Service<Name> for InTurn {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let turn = self.0.fetch_add(1, Relaxed);
        async move {
            // The caller knows the port.
            let found = lookup_host((name.as_str(), 0)).await?.collect();
            Ok(beginning_with(turn, found).into_iter())
        }
        .boxed()
    }
}

/// Resolvers answer in any order, and in a different one each time.
fn beginning_with(turn: usize, mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    addresses.sort_unstable();
    addresses.dedup();
    let first = turn.checked_rem(addresses.len()).unwrap_or_default();
    addresses.rotate_left(first);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_spread_evenly_in_whatever_order_replicas_are_found() {
        let replicas: Vec<SocketAddr> =
            ["10.0.0.3:0", "10.0.0.1:0", "10.0.0.2:0"].map(|one| one.parse().unwrap()).into();
        let mut firsts = Vec::new();
        for turn in 5..11 {
            let mut found = replicas.clone();
            found.rotate_left(turn % 2);
            let all = beginning_with(turn, found);
            assert_eq!(all.len(), 3, "the others are tried when the first is away");
            firsts.push(all[0]);
        }
        firsts.sort_unstable();
        assert!(firsts.chunks(2).all(|pair| pair[0] == pair[1]), "{firsts:?}");
        assert_eq!(beginning_with(7, vec![]), []);
    }
}
