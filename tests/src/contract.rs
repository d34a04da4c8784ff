//! The contract itself, to be walked through.

use std::time::Duration;

use http::uri::PathAndQuery;
use local::Service;
use prost_reflect::{DescriptorPool, MessageDescriptor};
use proto::auth::v1::{Scope, scope_of};
use tokio::time::timeout;
use tonic::{Request, Status, client::Grpc};
use tonic_prost::ProstCodec;

use crate::Client;

/// Some streams say nothing until something happens, and that is an answer too.
const SILENCE: Duration = Duration::from_secs(2);

/// One RPC.
#[derive(Debug, Clone)]
pub struct Method {
    /// `windlass.session.v1.TaskService/CreateTask`.
    pub name: String,
    /// Who serves it.
    pub service: Service,
    pub scope: Scope,
    /// What it is asked with.
    pub input: MessageDescriptor,
    /// What it answers with, once or as a stream.
    pub output: MessageDescriptor,
}

/// Every RPC of the four services, by name.
pub fn methods() -> Vec<Method> {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).unwrap();
    let mut methods = Vec::new();
    for service in pool.services() {
        let package = service.package_name().to_owned();
        let home =
            Service::ALL.into_iter().find(|home| package.split('.').nth(1) == Some(home.name()));
        for method in service.methods() {
            let name = format!("{}/{}", service.full_name(), method.name());
            let scope = scope_of(&format!("/{name}")).unwrap();
            let (input, output) = (method.input(), method.output());
            methods.push(Method { name, service: home.unwrap(), scope, input, output });
        }
    }
    methods.sort_by(|one, other| one.name.cmp(&other.name));
    methods
}

impl Client {
    /// Calls any RPC with an empty message, and only looks at whether it fails.
    pub async fn call(&self, method: &Method) -> Result<(), Status> {
        let path: PathAndQuery = format!("/{}", method.name).parse().unwrap();
        let mut grpc = Grpc::new(self.to(method.service));
        grpc.ready().await.unwrap();
        // Every message can be read as an empty one, and a stream of one message is a message.
        let codec = ProstCodec::<(), ()>::default();
        let mut answer = grpc.server_streaming(Request::new(()), path, codec).await?.into_inner();
        match timeout(SILENCE, answer.message()).await {
            Ok(first) => first.map(drop),
            Err(_) => Ok(()),
        }
    }
}
