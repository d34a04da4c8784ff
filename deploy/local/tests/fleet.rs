//! What can be done to a fleet of real services.

use std::{path::Path, time::Duration};

use local::{Fleet, Servers, Service};
use tokio::{net::TcpStream, time::timeout};
use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

#[tokio::test]
async fn a_killed_service_comes_back_on_its_port() {
    let servers = Servers::throwaway().await.unwrap();
    let mut fleet = Fleet::start(&servers).await.unwrap();
    let models = fleet.get(Service::Models);
    let address = models.address();

    models.kill().await.unwrap();
    assert!(TcpStream::connect(&address).await.is_err());
    models.restart().await.unwrap();
    assert_eq!(models.address(), address);
    assert!(TcpStream::connect(&address).await.is_ok());
}

#[tokio::test]
async fn a_paused_service_answers_when_it_is_resumed() {
    let servers = Servers::throwaway().await.unwrap();
    let mut fleet = Fleet::start(&servers).await.unwrap();
    let tools = fleet.get(Service::Tools);
    let channel = Endpoint::from_shared(tools.endpoint()).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel);

    tools.pause().unwrap();
    let check = timeout(Duration::from_millis(300), health.check(HealthCheckRequest::default()));
    assert!(check.await.is_err());
    tools.resume().unwrap();
    health.check(HealthCheckRequest::default()).await.unwrap();
}

#[tokio::test]
async fn replicas_can_be_added_and_terminated() {
    let servers = Servers::throwaway().await.unwrap();
    let mut fleet = Fleet::plan().replicas(Service::Session, 2).start(&servers).await.unwrap();
    let third = fleet.add(Service::Session).await.unwrap().address();

    fleet.get(Service::Session).terminate().await.unwrap();
    assert!(TcpStream::connect(&third).await.is_ok());
    let key = fleet.mint_key("acme", "ann", "read,run").await.unwrap();
    assert!(!key.is_empty());
}

#[tokio::test]
async fn a_service_that_cannot_start_says_why() {
    let servers = Servers::throwaway().await.unwrap();
    let plan = Fleet::plan().env_of(Service::Triggers, "LISTEN", "nowhere");
    let error = plan.start(&servers).await.unwrap_err().to_string();
    assert!(error.contains("triggers ended at once"), "{error}");
    assert!(error.contains("invalid value 'nowhere'"), "{error}");
}

#[tokio::test]
async fn a_dropped_fleet_leaves_no_process_behind() {
    let servers = Servers::throwaway().await.unwrap();
    let mut fleet = Fleet::start(&servers).await.unwrap();
    let pids: Vec<_> = fleet.pids().collect();
    assert_eq!(pids.len(), 4);

    drop(fleet);
    for (name, pid) in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{name} is still there");
    }
}
