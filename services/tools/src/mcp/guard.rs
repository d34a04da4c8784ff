//! Keeps a server from saying too much, whatever it is reached over.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use rmcp::{
    RoleClient,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio_util::sync::CancellationToken;

use super::allowance::Allowance;

/// Whether a conversation is over, and why we hung up if we did. The first reason counts.
#[derive(Debug, Clone, Default)]
pub struct Fault {
    why: Arc<OnceLock<String>>,
    over: CancellationToken,
    /// It is nobody's fault.
    moved: Arc<AtomicBool>,
}

impl Fault {
    pub fn set(&self, why: &str) {
        let _ = self.why.set(why.to_owned());
        self.over.cancel();
    }

    /// Hangs up on a server that did nothing wrong.
    pub fn part(&self, why: &str) {
        self.moved.store(true, Relaxed);
        self.set(why);
    }

    pub fn is_nobodys(&self) -> bool {
        self.moved.load(Relaxed)
    }

    pub fn get(&self) -> Option<&str> {
        self.why.get().map(String::as_str)
    }

    /// Nothing more will be heard.
    pub fn end(&self) {
        self.over.cancel();
    }

    pub async fn ended(&self) {
        self.over.cancelled().await;
    }
}

/// A transport that ends when too many messages arrive.
pub struct Guarded<T> {
    inner: T,
    allowance: Allowance,
    fault: Fault,
}

impl<T> Guarded<T> {
    pub fn new(inner: T, fault: Fault) -> Guarded<T> {
        Guarded { inner, allowance: Allowance::new(Instant::now()), fault }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        self.fault.end();
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Guarded<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let Some(message) = self.inner.receive().await else {
            self.fault.end();
            return None;
        };
        if !self.allowance.take(Instant::now()) {
            self.fault.set("it sends too many messages");
            return None;
        }
        Some(message)
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        self.inner.close().await
    }
}
