//! Keeps a server from saying too much, whatever it is reached over.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use rmcp::{
    RoleClient,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};

use super::allowance::Allowance;

/// Why we hung up, for whoever wants to know why the line is dead. The first reason counts.
#[derive(Debug, Clone, Default)]
pub struct Fault(Arc<OnceLock<String>>);

impl Fault {
    pub fn set(&self, why: &str) {
        let _ = self.0.set(why.to_owned());
    }

    pub fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
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

impl<T: Transport<RoleClient>> Transport<RoleClient> for Guarded<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let message = self.inner.receive().await?;
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
