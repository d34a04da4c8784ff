//! What a fleet should look like.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{Fleet, Servers, Service};

/// One replica of each service with its usual settings, unless told otherwise.
#[derive(Debug, Default)]
pub struct Plan {
    replicas: Vec<(Service, usize)>,
    variables: Vec<(Option<Service>, String, String)>,
    detours: Vec<Detour>,
    lasting: Option<PathBuf>,
    separate_disks: bool,
}

/// A way of one replica that leads over another address.
#[derive(Debug)]
struct Detour {
    service: Service,
    index: usize,
    variable: String,
    address: SocketAddr,
}

impl Plan {
    /// How many replicas of `service` to start; the other services call the first.
    pub fn replicas(mut self, service: Service, count: usize) -> Plan {
        self.replicas.push((service, count));
        self
    }

    /// Sets a variable for every service.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Plan {
        self.variables.push((None, name.to_owned(), value.into()));
        self
    }

    /// Sets a variable for one service.
    pub fn env_of(mut self, service: Service, name: &str, value: impl Into<String>) -> Plan {
        self.variables.push((Some(service), name.to_owned(), value.into()));
        self
    }

    /// Lets one replica reach what a variable names (`DATABASE_URL`, `TOOLS_URL`) by way of
    /// another address, where somebody listens who passes on what they want to.
    pub fn detour(
        mut self,
        service: Service,
        index: usize,
        variable: impl Into<String>,
        address: SocketAddr,
    ) -> Plan {
        self.detours.push(Detour { service, index, variable: variable.into(), address });
        self
    }

    /// Gives every replica of the tools service a disk of its own.
    pub fn separate_disks(mut self) -> Plan {
        self.separate_disks = true;
        self
    }

    /// Keeps database, secret and logs for the next time, and takes the services'
    /// usual ports where they are free.
    pub fn lasting(mut self, dir: &Path) -> Plan {
        self.lasting = Some(dir.to_owned());
        self
    }

    /// Starts everything at once and waits until all of it serves.
    pub async fn start(self, servers: &Servers) -> Result<Fleet> {
        Fleet::launch(self, servers).await
    }

    pub(crate) fn count(&self, wanted: Service) -> usize {
        let last = self.replicas.iter().rev().find(|(service, _)| *service == wanted);
        last.map_or(1, |(_, count)| *count)
    }

    pub(crate) fn variables(&self, of: Service) -> impl Iterator<Item = (&str, &str)> {
        let applies = move |service: &Option<Service>| service.is_none_or(|service| service == of);
        let variables = self.variables.iter().filter(move |(service, ..)| applies(service));
        variables.map(|(_, name, value)| (name.as_str(), value.as_str()))
    }

    /// The address that a replica finds in a URL instead of the one that is there.
    pub(crate) fn way(&self, of: Service, index: usize, variable: &str) -> Option<SocketAddr> {
        let leads = |detour: &&Detour| {
            detour.service == of && detour.index == index && detour.variable == variable
        };
        self.detours.iter().rev().find(leads).map(|detour| detour.address)
    }

    pub(crate) fn has_separate_disks(&self) -> bool {
        self.separate_disks
    }

    pub(crate) fn dir(&self) -> Option<&Path> {
        self.lasting.as_deref()
    }
}
