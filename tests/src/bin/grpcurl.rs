//! As much of `grpcurl` as the README uses, so that its commands can be run as they stand on a
//! machine that has only Rust: `grpcurl -plaintext -H <header> -d @ <address> <service>/<method>`.

#![allow(clippy::print_stdout, reason = "what is printed is the answer")]

use std::{env, io};

use anyhow::{Context, Result, bail};
use http::uri::PathAndQuery;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
    prost::Message as _,
};
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::Endpoint,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ["-plaintext", "-H", header, "-d", "@", address, name] = arguments[..] else {
        bail!("usage: grpcurl -plaintext -H <header> -d @ <address> <service>/<method>");
    };
    let method = find(name)?;
    let mut json = serde_json::Deserializer::from_reader(io::stdin());
    let message = DynamicMessage::deserialize(method.input(), &mut json)?;

    let mut request = Request::new(message);
    let (key, value) = header.split_once(": ").context("a header is `name: value`")?;
    let (key, value): (AsciiMetadataKey, AsciiMetadataValue) = (key.parse()?, value.parse()?);
    request.metadata_mut().insert(key, value);

    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    let mut grpc = Grpc::new(channel);
    grpc.ready().await?;
    let path: PathAndQuery = format!("/{name}").parse()?;
    // An answer that is no stream is a stream of one.
    let codec = Dynamic(method.output());
    let mut answers = grpc.server_streaming(request, path, codec).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        let mut printer = serde_json::Serializer::pretty(io::stdout());
        answer.serialize_with_options(&mut printer, &SerializeOptions::new())?;
        println!();
    }
    Ok(())
}

fn find(name: &str) -> Result<MethodDescriptor> {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS)?;
    let (service, method) = name.split_once('/').context("a method is `service/method`")?;
    let service = pool.get_service_by_name(service).context("there is no such service")?;
    service.methods().find(|one| one.name() == method).context("there is no such method")
}

/// Messages that are known only by their descriptor.
struct Dynamic(MessageDescriptor);

impl Codec for Dynamic {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Dynamic;
    type Decoder = Dynamic;

    fn encoder(&mut self) -> Dynamic {
        Dynamic(self.0.clone())
    }

    fn decoder(&mut self) -> Dynamic {
        Dynamic(self.0.clone())
    }
}

impl Encoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(
        &mut self,
        message: DynamicMessage,
        buffer: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let message = DynamicMessage::decode(self.0.clone(), buffer);
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
