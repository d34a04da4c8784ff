//! What we are to a server.

use std::sync::Arc;

use rmcp::{
    ErrorData, RoleClient, Service,
    model::{
        ClientCapabilities, ClientConfig, ClientResult, ErrorCode, Implementation,
        ServerNotification, ServerRequest,
    },
    service::{NotificationContext, RequestContext},
};
use tokio::sync::{Notify, mpsc};

/// Our side of the conversation. It refuses whatever a server asks for.
#[derive(Default)]
pub struct Client {
    pub changed: Arc<Notify>,
    /// Who wants to know everything that a server tells of.
    pub heard: Option<mpsc::Sender<ServerNotification>>,
}

impl Service<RoleClient> for Client {
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("windlass", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), us)
    }

    async fn handle_request(
        &self,
        request: ServerRequest,
        _: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        match request {
            ServerRequest::PingRequest(_) => Ok(ClientResult::empty(())),
            _ => {
                let text = "this client does nothing but call tools";
                Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, text, None))
            }
        }
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        _: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        if let ServerNotification::ToolListChangedNotification(_) = notification {
            self.changed.notify_one();
        }
        if let Some(heard) = &self.heard {
            // Whoever does not keep up has enough that says the same before it.
            let _ = heard.try_send(notification);
        }
        Ok(())
    }
}
