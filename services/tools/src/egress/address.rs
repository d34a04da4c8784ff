//! Which addresses may be reached from here. Decides and touches nothing.
//!
//! A name is granted, an address is reached, and whoever owns the name says which. So every
//! address is looked at before it is used: what is not of the public internet may be a service
//! of this machine, of its neighbours or of the cloud, all of which trust whoever can call them.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::host::{Grant, Host};

/// The addresses that may be reached: those of the public internet, and what the operator adds.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    allowances: Vec<Allowance>,
}

/// Something beside the public internet that the operator lets be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowance {
    Network(IpNet),
    /// Whatever addresses these names have.
    Names(Grant),
}

/// An address that may not be reached, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {kind}")]
pub struct Forbidden {
    pub address: IpAddr,
    pub kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a network (`10.0.0.0/8`), an address, or a name without a port (`host`, `*.host`)"
)]
pub struct ParseAllowanceError;

impl FromStr for Allowance {
    type Err = ParseAllowanceError;

    fn from_str(text: &str) -> Result<Allowance, ParseAllowanceError> {
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Allowance::Network(network.trunc()));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Allowance::Network(address.to_canonical().into()));
        }
        match Grant::new(text) {
            Some(grant) if grant.port.is_none() && !grant.is_literal() => {
                Ok(Allowance::Names(grant))
            }
            _ => Err(ParseAllowanceError),
        }
    }
}

impl Addresses {
    pub fn new(allowances: Vec<Allowance>) -> Addresses {
        Addresses { allowances }
    }

    /// The address to connect to when a host is said to be at `address`.
    pub fn check(&self, host: &Host, address: IpAddr) -> Result<IpAddr, Forbidden> {
        // However it is written, the kernel would send packets of the one kind.
        let address = address.to_canonical();
        let allowed = self.allowances.iter().any(|allowance| match allowance {
            Allowance::Network(network) => network.contains(&address),
            Allowance::Names(grant) => grant.covers(host),
        });
        if allowed {
            return Ok(address);
        }
        match kind(address) {
            Kind::Public => Ok(address),
            // A translator would send it on, and into our own network if that is its way.
            Kind::Translated(within) => self
                .check(host, within.into())
                .map(|_| address)
                .map_err(|Forbidden { kind, .. }| Forbidden { address, kind }),
            Kind::Other(kind) => Err(Forbidden { address, kind }),
        }
    }
}

enum Kind {
    Public,
    /// An address of IPv4 in a prefix that translators listen to.
    Translated(Ipv4Addr),
    Other(&'static str),
}

fn kind(address: IpAddr) -> Kind {
    let found = match address {
        IpAddr::V4(address) => V4.iter().find(|(net, _)| net.contains(&address)).map(|it| it.1),
        IpAddr::V6(address) if NAT64.contains(&address) => {
            let [.., a, b, c, d] = address.octets();
            return Kind::Translated(Ipv4Addr::new(a, b, c, d));
        }
        IpAddr::V6(address) => V6.iter().find(|(net, _)| net.contains(&address)).map(|it| it.1),
    };
    found.map_or(Kind::Public, Kind::Other)
}

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(first: u16, second: u16, third: u16, length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0), length)
}

const NAT64: Ipv6Net = v6(0x64, 0xff9b, 0, 96);

/// The registry of special addresses of IPv4, and what clouds have made of some others.
const V4: &[(Ipv4Net, &str)] = &[
    (v4(0, 0, 0, 0, 8), "unspecified"),
    (v4(10, 0, 0, 0, 8), "private"),
    (v4(100, 64, 0, 0, 10), "shared by a provider's customers"),
    (v4(127, 0, 0, 0, 8), "loopback"),
    (v4(168, 63, 129, 16, 32), "metadata of a cloud"),
    (v4(169, 254, 0, 0, 16), "link-local, where clouds keep metadata"),
    (v4(172, 16, 0, 0, 12), "private"),
    (v4(192, 0, 0, 0, 24), "reserved for protocols"),
    (v4(192, 0, 2, 0, 24), "for documentation"),
    (v4(192, 88, 99, 0, 24), "a relay of 6to4"),
    (v4(192, 168, 0, 0, 16), "private"),
    (v4(198, 18, 0, 0, 15), "for benchmarks"),
    (v4(198, 51, 100, 0, 24), "for documentation"),
    (v4(203, 0, 113, 0, 24), "for documentation"),
    (v4(224, 0, 0, 0, 4), "multicast"),
    (v4(240, 0, 0, 0, 4), "reserved"),
];

/// Of IPv6, only 2000::/3 is of the internet, and not all of that. Tunnels carry an address of
/// IPv4, so that they could lead anywhere.
const V6: &[(Ipv6Net, &str)] = &[
    (v6(0xfc00, 0, 0, 7), "unique-local, which is private"),
    (v6(0xfe80, 0, 0, 10), "link-local"),
    (v6(0xff00, 0, 0, 8), "multicast"),
    (v6(0, 0, 0, 16), "loopback, unspecified or reserved"),
    (v6(0x2001, 0, 0, 32), "a tunnel of Teredo"),
    (v6(0x2001, 0, 0, 23), "reserved for protocols"),
    (v6(0x2001, 0xdb8, 0, 32), "for documentation"),
    (v6(0x2002, 0, 0, 16), "a tunnel of 6to4"),
    (v6(0x3fff, 0, 0, 20), "for documentation"),
    (v6(0, 0, 0, 3), "reserved"),
    (v6(0x4000, 0, 0, 2), "reserved"),
    (v6(0x8000, 0, 0, 1), "reserved"),
];

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    fn verdict(allowances: &[&str], host: &str, address: &str) -> String {
        let allowances = allowances.iter().map(|text| text.parse().unwrap()).collect();
        let host = Host::new(host, 443).unwrap();
        match Addresses::new(allowances).check(&host, address.parse().unwrap()) {
            Ok(address) => format!("{address} may be reached"),
            Err(forbidden) => forbidden.to_string(),
        }
    }

    #[test]
    fn only_the_public_internet_may_be_reached() {
        let mut lines = String::new();
        for address in [
            "93.184.215.14",
            "2606:2800:21f:cb07:6820:80da:af6b:8b2c",
            "64:ff9b::5db8:d70e",
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.63.255.255",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "100.128.0.0",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.15.255.255",
            "172.16.0.1",
            "172.31.255.255",
            "172.32.0.0",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "198.20.0.0",
            "203.0.113.7",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:93.184.215.14",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a00:1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2001:200::1",
            "2002:7f00:1::",
            "2002:5db8:d70e::",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
            "5f00::1",
        ] {
            lines += &format!("{address}: {}\n", verdict(&[], "example.com", address));
        }
        expect![[r#"
            93.184.215.14: 93.184.215.14 may be reached
            2606:2800:21f:cb07:6820:80da:af6b:8b2c: 2606:2800:21f:cb07:6820:80da:af6b:8b2c may be reached
            64:ff9b::5db8:d70e: 64:ff9b::5db8:d70e may be reached
            0.0.0.0: 0.0.0.0 is unspecified
            0.1.2.3: 0.1.2.3 is unspecified
            10.1.2.3: 10.1.2.3 is private
            100.63.255.255: 100.63.255.255 may be reached
            100.64.0.1: 100.64.0.1 is shared by a provider's customers
            100.100.100.200: 100.100.100.200 is shared by a provider's customers
            100.127.255.255: 100.127.255.255 is shared by a provider's customers
            100.128.0.0: 100.128.0.0 may be reached
            127.0.0.1: 127.0.0.1 is loopback
            127.255.255.254: 127.255.255.254 is loopback
            168.63.129.16: 168.63.129.16 is metadata of a cloud
            169.254.169.254: 169.254.169.254 is link-local, where clouds keep metadata
            172.15.255.255: 172.15.255.255 may be reached
            172.16.0.1: 172.16.0.1 is private
            172.31.255.255: 172.31.255.255 is private
            172.32.0.0: 172.32.0.0 may be reached
            192.0.0.192: 192.0.0.192 is reserved for protocols
            192.168.1.1: 192.168.1.1 is private
            198.18.0.1: 198.18.0.1 is for benchmarks
            198.20.0.0: 198.20.0.0 may be reached
            203.0.113.7: 203.0.113.7 is for documentation
            224.0.0.1: 224.0.0.1 is multicast
            255.255.255.255: 255.255.255.255 is reserved
            ::: :: is loopback, unspecified or reserved
            ::1: ::1 is loopback, unspecified or reserved
            ::127.0.0.1: ::7f00:1 is loopback, unspecified or reserved
            ::ffff:127.0.0.1: 127.0.0.1 is loopback
            ::ffff:169.254.169.254: 169.254.169.254 is link-local, where clouds keep metadata
            ::ffff:93.184.215.14: 93.184.215.14 may be reached
            ::ffff:0:127.0.0.1: ::ffff:0:7f00:1 is loopback, unspecified or reserved
            64:ff9b::7f00:1: 64:ff9b::7f00:1 is loopback
            64:ff9b::a9fe:a9fe: 64:ff9b::a9fe:a9fe is link-local, where clouds keep metadata
            64:ff9b:1::a00:1: 64:ff9b:1::a00:1 is reserved
            100::1: 100::1 is reserved
            2001::1: 2001::1 is a tunnel of Teredo
            2001:db8::1: 2001:db8::1 is for documentation
            2001:200::1: 2001:200::1 may be reached
            2002:7f00:1::: 2002:7f00:1:: is a tunnel of 6to4
            2002:5db8:d70e::: 2002:5db8:d70e:: is a tunnel of 6to4
            3fff::1: 3fff::1 is for documentation
            fc00::1: fc00::1 is unique-local, which is private
            fd00:ec2::254: fd00:ec2::254 is unique-local, which is private
            fe80::1: fe80::1 is link-local
            fec0::1: fec0::1 is reserved
            ff02::1: ff02::1 is multicast
            4000::1: 4000::1 is reserved
            5f00::1: 5f00::1 is reserved
        "#]].assert_eq(&lines);
    }

    #[test]
    fn the_operator_may_add_networks_and_names() {
        let mut lines = String::new();
        for (allowances, host, address) in [
            (&["10.0.0.0/8"][..], "example.com", "10.1.2.3"),
            (&["10.0.0.0/8"], "example.com", "::ffff:10.1.2.3"),
            (&["10.0.0.0/8"], "example.com", "64:ff9b::a01:203"),
            (&["10.0.0.0/8"], "example.com", "192.168.0.1"),
            (&["10.1.2.3/8"], "example.com", "10.9.9.9"),
            (&["127.0.0.1"], "localhost", "127.0.0.1"),
            (&["127.0.0.1"], "localhost", "127.0.0.2"),
            (&["fd00::/8"], "example.com", "fd12::1"),
            (&["*.corp.example"], "git.corp.example", "10.0.0.1"),
            (&["*.corp.example"], "corp.example", "10.0.0.1"),
            (&["git.corp.example"], "evil.example", "10.0.0.1"),
        ] {
            let verdict = verdict(allowances, host, address);
            lines += &format!("{host} with {allowances:?}: {verdict}\n");
        }
        expect![[r#"
            example.com with ["10.0.0.0/8"]: 10.1.2.3 may be reached
            example.com with ["10.0.0.0/8"]: 10.1.2.3 may be reached
            example.com with ["10.0.0.0/8"]: 64:ff9b::a01:203 may be reached
            example.com with ["10.0.0.0/8"]: 192.168.0.1 is private
            example.com with ["10.1.2.3/8"]: 10.9.9.9 may be reached
            localhost with ["127.0.0.1"]: 127.0.0.1 may be reached
            localhost with ["127.0.0.1"]: 127.0.0.2 is loopback
            example.com with ["fd00::/8"]: fd12::1 may be reached
            git.corp.example with ["*.corp.example"]: 10.0.0.1 may be reached
            corp.example with ["*.corp.example"]: 10.0.0.1 is private
            evil.example with ["git.corp.example"]: 10.0.0.1 is private
        "#]]
        .assert_eq(&lines);
        for text in ["", "10.0.0.0/33", "host:80", "*", "10.0.0", "0x7f000001"] {
            assert!(text.parse::<Allowance>().is_err(), "{text}");
        }
    }

    proptest! {
        /// What the standard library knows to be no public address is none for us.
        #[test]
        fn nobody_else_knows_better(bits: u32) {
            let address = Ipv4Addr::from(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_broadcast() || address.is_documentation() || address.is_multicast()
                || address.is_unspecified();
            let host = Host::new("example.com", 443).unwrap();
            let ours = |address: IpAddr| Addresses::default().check(&host, address);
            prop_assert!(!special || ours(address.into()).is_err());
            // However it is wrapped, it is the same address, or none that can be reached.
            let plain = ours(address.into()).is_ok();
            prop_assert_eq!(ours(address.to_ipv6_mapped().into()).is_ok(), plain);
            let [a, b] = [(bits >> 16) as u16, bits as u16];
            let translated = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, a, b);
            prop_assert_eq!(ours(translated.into()).is_ok(), plain);
            for tunnel in [
                Ipv6Addr::new(0x2002, a, b, 0, 0, 0, 0, 0),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, a, b),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, a, b),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, a, b),
                Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, !a, !b),
            ] {
                prop_assert!(ours(tunnel.into()).is_err(), "{}", tunnel);
            }
        }

        #[test]
        fn of_the_newer_internet_only_one_eighth_is_public(bits: u128) {
            let address = Ipv6Addr::from(bits);
            let host = Host::new("example.com", 443).unwrap();
            let reached = Addresses::default().check(&host, address.into()).is_ok();
            let global = bits >> 125 == 1 || NAT64.contains(&address)
                || address.to_ipv4_mapped().is_some();
            prop_assert!(global || !reached);
        }
    }
}
