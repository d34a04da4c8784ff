use proto::auth::v1::Scope;
use tests::{World, explain, methods};
use tonic::Code;

#[tokio::test]
async fn every_rpc_of_the_contract_answers() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    for method in methods() {
        let answer = client.call(&method).await;
        if method.scope == Scope::Internal {
            assert_eq!(
                explain(&answer.unwrap_err()),
                "PermissionDenied REASON_SCOPE_MISSING: \
                 the credential does not hold the scope internal",
                "{}",
                method.name
            );
            continue;
        }
        let Err(status) = answer else { continue };
        match status.code() {
            Code::InvalidArgument | Code::NotFound => {}
            _ => panic!("{} to an empty message: {}", method.name, explain(&status)),
        }
    }
}
