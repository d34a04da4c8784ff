//! Which addresses a server may have that is not ours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Url;

use crate::subject::Host;

/// Hosts that may have an address that is not public, as `host`, `*.host` or `host:port`.
#[derive(Debug, Clone, Default)]
pub struct PrivateHosts(pub Vec<String>);

impl PrivateHosts {
    /// Whether a server may be at this URL. A name is looked at again when it is resolved.
    pub fn check(&self, url: &Url) -> Result<Destination, String> {
        let host = Host::of(url.as_str()).map_err(|astray| astray.0)?;
        let private = self.0.iter().any(|granted| host.is_in(granted));
        let literal = match url.host() {
            Some(url::Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(url::Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(url::Host::Domain(_)) | None => None,
        };
        match literal {
            Some(address) if !private && !is_public(address) => Err(refusal(&host.name)),
            _ => Ok(Destination { private }),
        }
    }
}

fn refusal(host: &str) -> String {
    format!("{host} has an address that is not public, which only the operator can allow")
}

/// Where a connection may go, asked whenever a name is resolved: it may mean something else
/// every time.
#[derive(Debug, Clone, Copy)]
pub struct Destination {
    private: bool,
}

impl Resolve for Destination {
    fn resolve(&self, name: Name) -> Resolving {
        let private = self.private;
        Box::pin(async move {
            let name = name.as_str().to_owned();
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            // One address that is not public is enough to know what a name is about.
            match private || found.iter().all(|address| is_public(address.ip())) {
                true => Ok(Box::new(found.into_iter()) as Addrs),
                false => Err(refusal(&name).into()),
            }
        })
    }
}

/// Whether an address is one of the internet's, and no machine nearby answers to it.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_unspecified()
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_documentation()
        || a == 0
        // Shared by the customers of a provider.
        || a == 100 && b & 0b1100_0000 == 64
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99)
        || a == 198 && b & 0b1111_1110 == 18
        || a >= 240;
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    if let Some(address) = address.to_ipv4_mapped() {
        return is_public_v4(address);
    }
    // Of all addresses, only these are given to anybody; some of them lead to version 4.
    let global = a & 0xe000 == 0x2000;
    let translated = a == 0x2002 || (a, b) == (0x2001, 0) || (a, b) == (0x2001, 0xdb8);
    global && !translated
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn only_public_addresses_are_reached_unless_allowed() {
        let allowed = PrivateHosts(vec!["127.0.0.1:8080".into(), "[::1]".into()]);
        let mut lines = String::new();
        for url in [
            "https://example.com/mcp",
            "https://93.184.216.34/",
            "http://127.0.0.1:8080/",
            "http://127.0.0.1:8081/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://169.254.169.254/latest/meta-data",
            "http://10.1.2.3/",
            "http://172.16.0.1/",
            "http://192.168.1.1/",
            "http://100.64.0.1/",
            "http://0.0.0.0/",
            "http://[::1]/",
            "http://[::]/",
            "http://[fe80::1]/",
            "http://[fd00::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://[2606:2800:220:1::1]/",
        ] {
            let verdict = allowed.check(&Url::parse(url).unwrap()).map(|to| to.private);
            lines += &format!("{url}: {verdict:?}\n");
        }
        expect![[r#"
            https://example.com/mcp: Ok(false)
            https://93.184.216.34/: Ok(false)
            http://127.0.0.1:8080/: Ok(true)
            http://127.0.0.1:8081/: Err("127.0.0.1 has an address that is not public, which only the operator can allow")
            http://2130706433/: Err("127.0.0.1 has an address that is not public, which only the operator can allow")
            http://0x7f.1/: Err("127.0.0.1 has an address that is not public, which only the operator can allow")
            http://169.254.169.254/latest/meta-data: Err("169.254.169.254 has an address that is not public, which only the operator can allow")
            http://10.1.2.3/: Err("10.1.2.3 has an address that is not public, which only the operator can allow")
            http://172.16.0.1/: Err("172.16.0.1 has an address that is not public, which only the operator can allow")
            http://192.168.1.1/: Err("192.168.1.1 has an address that is not public, which only the operator can allow")
            http://100.64.0.1/: Err("100.64.0.1 has an address that is not public, which only the operator can allow")
            http://0.0.0.0/: Err("0.0.0.0 has an address that is not public, which only the operator can allow")
            http://[::1]/: Ok(true)
            http://[::]/: Err("[::] has an address that is not public, which only the operator can allow")
            http://[fe80::1]/: Err("[fe80::1] has an address that is not public, which only the operator can allow")
            http://[fd00::1]/: Err("[fd00::1] has an address that is not public, which only the operator can allow")
            http://[::ffff:127.0.0.1]/: Err("[::ffff:7f00:1] has an address that is not public, which only the operator can allow")
            http://[64:ff9b::7f00:1]/: Err("[64:ff9b::7f00:1] has an address that is not public, which only the operator can allow")
            http://[2002:7f00:1::]/: Err("[2002:7f00:1::] has an address that is not public, which only the operator can allow")
            http://[2606:2800:220:1::1]/: Ok(false)
        "#]].assert_eq(&lines);
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        let resolve = async |private| {
            let found = Destination { private }.resolve("localhost".parse().unwrap()).await;
            found.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(resolve(true).await, Ok(()));
        assert_eq!(resolve(false).await, Err(refusal("localhost")));
    }
}
