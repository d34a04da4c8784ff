//! Which addresses a hook may be at. One that somebody configures must not reach what only we
//! can reach: ourselves, our neighbours, the cloud's metadata.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::lookup_host;
use url::{Host as UrlHost, Url};

use crate::subject::Host;

/// How a URL may be reached.
#[derive(Debug, PartialEq, Eq)]
pub enum Way {
    /// Only at addresses that anybody can reach.
    Public,

    /// The operator listed its host.
    Granted,
}

/// The way to a URL, or why there is none. A name is looked at again when it is resolved.
pub fn way(url: &str, granted: &[String]) -> Result<Way, String> {
    let parsed = Url::parse(url).map_err(|_| "it is no URL".to_owned())?;
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(format!("its scheme is {} and not http or https", parsed.scheme()));
    }
    let host = Host::of(url).map_err(|_| "it has no host".to_owned())?;
    if granted.iter().any(|grant| host.is_in(grant)) {
        return Ok(Way::Granted);
    }
    let address = match parsed.host() {
        Some(UrlHost::Ipv4(address)) => IpAddr::V4(address),
        Some(UrlHost::Ipv6(address)) => IpAddr::V6(address),
        Some(UrlHost::Domain(_)) => return Ok(Way::Public),
        None => return Err("it has no host".to_owned()),
    };
    match is_public(address) {
        true => Ok(Way::Public),
        false => Err(format!("{address} is not a public address")),
    }
}

/// Whether an address is one of the internet's, and no special one.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => is_public_v4(address),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let special = match address.octets() {
        [0 | 10 | 127 | 224..=255, ..] => true,
        [100, second, ..] => (64..128).contains(&second),
        [169, 254, ..] | [192, 168, ..] => true,
        [172, second, ..] => (16..32).contains(&second),
        // Assigned to protocols, to documents, and to measurements.
        [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 18 | 19, ..] => true,
        [198, 51, 100, _] | [203, 0, 113, _] => true,
        _ => false,
    };
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let special = match segments {
        // Teredo, benchmarks and others of the protocols' own; documents; tunnels to v4.
        [0x2001, second, ..] => second < 0x200 || second == 0xdb8,
        [0x2002, ..] => true,
        [0x3fff, second, ..] => second < 0x1000,
        _ => false,
    };
    segments[0] & 0xe000 == 0x2000 && !special
}

/// Resolves names to public addresses and no others.
pub struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|found| is_public(found.ip())).collect();
            match public.is_empty() {
                true => Err("its host has no public address".into()),
                false => Ok(Box::new(public.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for (text, public) in [
            ("1.1.1.1", true),
            ("93.184.216.34", true),
            ("172.15.0.1", true),
            ("172.32.0.1", true),
            ("100.63.0.1", true),
            ("223.255.255.255", true),
            ("0.0.0.0", false),
            ("10.1.2.3", false),
            ("100.64.0.1", false),
            ("127.0.0.1", false),
            ("127.255.0.1", false),
            ("169.254.169.254", false),
            ("172.16.0.1", false),
            ("172.31.255.255", false),
            ("192.0.0.1", false),
            ("192.168.1.1", false),
            ("198.18.0.1", false),
            ("203.0.113.9", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("2606:4700::1111", true),
            ("2a00::1", true),
            ("::", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("::ffff:1.1.1.1", true),
            ("::127.0.0.1", false),
            ("64:ff9b::7f00:1", false),
            ("fe80::1", false),
            ("fd00:ec2::254", false),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("2002:7f00:1::", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(text.parse().unwrap()), public, "{text}");
        }
    }

    #[test]
    fn only_what_is_public_or_granted_has_a_way() {
        let granted = ["hooks.internal:8080".to_owned(), "127.0.0.1:9000".to_owned()];
        for (url, found) in [
            ("https://example.com/hook", Ok(Way::Public)),
            ("http://1.1.1.1", Ok(Way::Public)),
            ("http://hooks.internal:8080/a", Ok(Way::Granted)),
            ("http://hooks.internal/a", Ok(Way::Public)),
            ("http://127.0.0.1:9000", Ok(Way::Granted)),
            ("http://127.0.0.1:9001", Err("127.0.0.1 is not a public address")),
            ("http://0x7f.1/", Err("127.0.0.1 is not a public address")),
            ("http://2130706433/", Err("127.0.0.1 is not a public address")),
            ("http://[::1]/", Err("::1 is not a public address")),
            ("http://169.254.169.254/latest", Err("169.254.169.254 is not a public address")),
            ("ftp://example.com", Err("its scheme is ftp and not http or https")),
            ("file:///etc/passwd", Err("its scheme is file and not http or https")),
            ("nothing", Err("it is no URL")),
        ] {
            assert_eq!(way(url, &granted), found.map_err(str::to_owned), "{url}");
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        let resolved = PublicOnly.resolve("localhost".parse().unwrap()).await;
        let problem = resolved.err().expect("localhost is nowhere").to_string();
        assert_eq!(problem, "its host has no public address");
    }
}
