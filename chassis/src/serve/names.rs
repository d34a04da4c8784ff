//! Which gRPC services one of our services is made of.

use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic_reflection::server::Builder;

/// The full names in the package of `service`, such as `windlass.models.v1.UsageService`.
pub fn grpc_services(service: &str) -> Vec<String> {
    let package = format!("windlass.{service}.");
    let descriptors =
        FileDescriptorSet::decode(proto::DESCRIPTORS).expect("our own descriptors are well-formed");
    let files = descriptors.file.iter().filter(|file| file.package().starts_with(&package));
    files
        .flat_map(|file| {
            file.service.iter().map(|service| format!("{}.{}", file.package(), service.name()))
        })
        .collect()
}

/// Reflection that lists what this server serves, and not what its neighbours do.
pub fn reflection(service: &str) -> Builder<'static> {
    let builder = Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // So that generic clients can print the details of an error.
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .with_service_name("grpc.health.v1.Health")
        .with_service_name("grpc.reflection.v1.ServerReflection");
    grpc_services(service)
        .into_iter()
        .fold(builder, |builder, name| builder.with_service_name(name))
}

#[test]
fn a_service_knows_its_own_names_only() {
    assert!(grpc_services("models").contains(&"windlass.models.v1.UsageService".to_owned()));
    assert!(grpc_services("models").iter().all(|name| name.starts_with("windlass.models.v1.")));
    assert!(grpc_services("model").is_empty());
}
