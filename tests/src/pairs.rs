//! Two replicas of each service, and a wire of ours under everything that they say to others.

use std::net::SocketAddr;

use local::{Plan, Replica, Servers, Service};

use crate::{Proxy, World};

/// How many replicas each service has.
pub const REPLICAS: usize = 2;

/// A world in which everybody has a second. Calls from one service to another go to both of them,
/// as they would where a name has several addresses.
pub struct Pairs {
    pub world: World,
    pub wires: Vec<Wire>,
}

/// How one replica reaches something.
pub struct Wire {
    pub service: Service,
    pub index: usize,
    pub variable: String,
    pub proxy: Proxy,
}

/// The arrows of the architecture: whom a service calls, by the variable that says where that is.
fn ways(service: Service) -> &'static [&'static str] {
    match service {
        Service::Session => {
            &["DATABASE_URL", "REDIS_URL", "TOOLS_URL", "MODELS_URL", "TRIGGERS_URL"]
        }
        Service::Tools => &["DATABASE_URL"],
        Service::Models => &["DATABASE_URL", "REDIS_URL"],
        Service::Triggers => &["DATABASE_URL", "SESSION_URL", "TOOLS_URL"],
    }
}

impl Pairs {
    pub async fn start(mut plan: Plan) -> Pairs {
        let servers = Servers::private().await.unwrap();
        let mut wires = Vec::new();
        for service in Service::ALL {
            plan = plan.replicas(service, REPLICAS);
            for index in 0..REPLICAS {
                for variable in ways(service) {
                    let proxy = match *variable {
                        "DATABASE_URL" => Proxy::to_url(servers.database_url()).await,
                        "REDIS_URL" => Proxy::to_url(servers.redis_url()).await,
                        // Where the others are is known when they have started.
                        _ => Proxy::to(SocketAddr::from(([127, 0, 0, 1], 0))).await,
                    };
                    plan = plan.detour(service, index, *variable, proxy.address());
                    let variable = (*variable).to_owned();
                    wires.push(Wire { service, index, variable, proxy });
                }
            }
        }
        let mut world = World::on(servers, plan).await;
        for callee in Service::ALL {
            let address =
                |index| world.fleet.replica(callee, index).address().parse::<SocketAddr>().unwrap();
            let addresses: Vec<_> = (0..REPLICAS).map(address).collect();
            let variable = callee.url_variable();
            for wire in wires.iter().filter(|wire| wire.variable == variable) {
                wire.proxy.spread(&addresses);
            }
        }
        Pairs { world, wires }
    }

    pub fn replica(&mut self, service: Service, index: usize) -> &mut Replica {
        self.world.fleet.replica(service, index)
    }

    /// The wires to what a variable names, of everybody.
    pub fn wires_to(&self, variable: &str) -> impl Iterator<Item = &Wire> {
        self.wires.iter().filter(move |wire| wire.variable == variable)
    }

    /// Keeps everybody from reaching one replica, which reaches everybody.
    pub fn deafen(&mut self, service: Service, index: usize) {
        let address = self.address(service, index);
        self.wires_to(&service.url_variable()).for_each(|wire| wire.proxy.hold_to(address));
    }

    /// Lets it be reached again.
    pub fn undeafen(&mut self, service: Service, index: usize) {
        let address = self.address(service, index);
        self.wires_to(&service.url_variable()).for_each(|wire| wire.proxy.resume_to(address));
    }

    fn address(&mut self, service: Service, index: usize) -> SocketAddr {
        self.replica(service, index).address().parse().unwrap()
    }

    /// The wires of one replica.
    pub fn wires_of(&self, service: Service, index: usize) -> impl Iterator<Item = &Wire> {
        self.wires.iter().filter(move |wire| wire.service == service && wire.index == index)
    }
}
