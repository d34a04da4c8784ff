//! Hosts that can be reached over a network, and which of them are meant by a grant. Decides
//! and touches nothing.

use std::{fmt, net::IpAddr};

use url::Url;

/// The longest name and the longest part of one that the domain name system knows.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A host and a port, in the one way to write them: names in lower case, international ones as
/// `xn--`, without a dot at the end; addresses as the kernel would understand them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    pub name: String,
    pub port: u16,
}

impl Host {
    pub fn new(name: &str, port: u16) -> Option<Host> {
        Some(Host { name: normalize(name)?, port })
    }

    pub fn of(url: &Url) -> Option<Host> {
        Host::new(url.host_str()?, url.port_or_known_default()?)
    }

    /// Of `host` or `host:port`, as they stand in the head of a request.
    pub fn of_authority(text: &str, usual_port: Option<u16>) -> Option<Host> {
        let (name, port) = split_port(text)?;
        Host::new(name, port.or(usual_port)?)
    }

    /// The address that it is, if it is one and not a name.
    pub fn literal(&self) -> Option<IpAddr> {
        literal(&self.name)
    }

    /// Whether it is one of `host`, `*.host` or `host:port`.
    pub fn is_in(&self, grant: &str) -> bool {
        Grant::new(grant).is_some_and(|grant| grant.covers(self))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// Hosts that somebody may reach: `host`, `*.host`, which is not `host` itself, and either with
/// a port. An address is meant only by itself, and by no wildcard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    name: String,
    below: bool,
    pub port: Option<u16>,
}

impl Grant {
    pub fn new(text: &str) -> Option<Grant> {
        let (below, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (name, port) = split_port(rest)?;
        let name = normalize(name)?;
        match below && literal(&name).is_some() {
            true => None,
            false => Some(Grant { name, below, port }),
        }
    }

    /// It means one address.
    pub fn is_literal(&self) -> bool {
        literal(&self.name).is_some()
    }

    pub fn covers(&self, host: &Host) -> bool {
        let named = match self.below {
            true => {
                let child = host.name.strip_suffix(&self.name);
                let child = child.is_some_and(|child| child.len() > 1 && child.ends_with('.'));
                child && host.literal().is_none()
            }
            false => host.name == self.name,
        };
        named && self.port.is_none_or(|port| port == host.port)
    }
}

/// As browsers read it: what looks like a number is an address, whatever its base and its dots.
fn normalize(name: &str) -> Option<String> {
    let name = match url::Host::parse(name).ok()? {
        url::Host::Domain(name) => name,
        url::Host::Ipv4(address) => return Some(address.to_string()),
        url::Host::Ipv6(address) => {
            return Some(match IpAddr::V6(address).to_canonical() {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("[{address}]"),
            });
        }
    };
    let name = name.strip_suffix('.').unwrap_or(&name).to_ascii_lowercase();
    let ordinary = |next: u8| next.is_ascii_alphanumeric() || matches!(next, b'-' | b'_');
    let label =
        |label: &str| (1..=LONGEST_LABEL).contains(&label.len()) && label.bytes().all(ordinary);
    (name.len() <= LONGEST_NAME && name.split('.').all(label)).then_some(name)
}

fn literal(name: &str) -> Option<IpAddr> {
    let inside = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inside.unwrap_or(name).parse().ok()
}

fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    match text.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => {
            // The number's own reader would take a sign.
            let digits = !port.is_empty() && port.bytes().all(|next| next.is_ascii_digit());
            let port = digits.then(|| port.parse().ok()).flatten().filter(|port| *port > 0)?;
            Some((name, Some(port)))
        }
        _ => Some((text, None)),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_host_is_compared_by_what_is_reached() {
        let mut lines = String::new();
        for (url, grants) in [
            ("https://Example.com/a", &["example.com", "*.example.com", "EXAMPLE.com:443"][..]),
            ("https://example.com.:8080", &["example.com.", "example.com:8080", "example.com:443"]),
            (
                "http://a.b.example.com",
                &["*.example.com", "example.com", "*.com", "*.b.example.com"],
            ),
            ("http://evilexample.com", &["*.example.com", "example.com"]),
            ("http://example.com@evil.net/", &["example.com", "evil.net"]),
            ("http://example.com%2eevil.net/", &["example.com", "example.com.evil.net"]),
            ("http://bücher.example/", &["bücher.example", "xn--bcher-kva.example", "*.example"]),
            ("http://ｅxample。com/", &["example.com"]),
            ("http://0x7f.1/", &["127.0.0.1", "*.0.0.1", "*.1", "localhost"]),
            ("http://2130706433/", &["127.0.0.1", "2130706433"]),
            ("http://[::1]:80/", &["[::1]", "[::1]:80", "[::1]:81", "::1"]),
            ("http://[::ffff:127.0.0.1]/", &["127.0.0.1", "[::ffff:7f00:1]", "[::1]"]),
            ("http://example.com", &["*", "*.", "", ":80", "example.com:x", "example.com:+80"]),
            ("http://a..example.com", &["*.example.com"]),
            ("http://a,b.example.com", &["*.example.com"]),
            ("data:text/plain,x", &["*"]),
        ] {
            let host = Host::of(&Url::parse(url).unwrap());
            lines += &format!("{url}: {}\n", host.as_ref().map_or("none".into(), Host::to_string));
            for grant in grants {
                let within = host.as_ref().is_some_and(|host| host.is_in(grant));
                lines += &format!("    {grant:?} {within}\n");
            }
        }
        expect![[r#"
            https://Example.com/a: example.com:443
                "example.com" true
                "*.example.com" false
                "EXAMPLE.com:443" true
            https://example.com.:8080: example.com:8080
                "example.com." true
                "example.com:8080" true
                "example.com:443" false
            http://a.b.example.com: a.b.example.com:80
                "*.example.com" true
                "example.com" false
                "*.com" true
                "*.b.example.com" true
            http://evilexample.com: evilexample.com:80
                "*.example.com" false
                "example.com" false
            http://example.com@evil.net/: evil.net:80
                "example.com" false
                "evil.net" true
            http://example.com%2eevil.net/: example.com.evil.net:80
                "example.com" false
                "example.com.evil.net" true
            http://bücher.example/: xn--bcher-kva.example:80
                "bücher.example" true
                "xn--bcher-kva.example" true
                "*.example" true
            http://ｅxample。com/: example.com:80
                "example.com" true
            http://0x7f.1/: 127.0.0.1:80
                "127.0.0.1" true
                "*.0.0.1" false
                "*.1" false
                "localhost" false
            http://2130706433/: 127.0.0.1:80
                "127.0.0.1" true
                "2130706433" true
            http://[::1]:80/: [::1]:80
                "[::1]" true
                "[::1]:80" true
                "[::1]:81" false
                "::1" false
            http://[::ffff:127.0.0.1]/: 127.0.0.1:80
                "127.0.0.1" true
                "[::ffff:7f00:1]" true
                "[::1]" false
            http://example.com: example.com:80
                "*" false
                "*." false
                "" false
                ":80" false
                "example.com:x" false
                "example.com:+80" false
            http://a..example.com: none
                "*.example.com" false
            http://a,b.example.com: none
                "*.example.com" false
            data:text/plain,x: none
                "*" false
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn the_head_of_a_request_names_one_host_or_none() {
        let read = |text| Host::of_authority(text, Some(80)).map(|host| host.to_string());
        assert_eq!(read("Example.com").as_deref(), Some("example.com:80"));
        assert_eq!(read("example.com:443").as_deref(), Some("example.com:443"));
        assert_eq!(read("[::1]:443").as_deref(), Some("[::1]:443"));
        for text in ["", ":80", "a:0", "a:65536", "a:", "a b", "user@a", "a/b", "a:80:80", "a\r\nb"]
        {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_one_host_or_none(text in r"[a-zA-Z0-9.:*\[\]%@/_\-é。 ]{0,20}") {
            if let Some(host) = Host::of_authority(&text, Some(80)) {
                // What was read once reads as the same again, and means itself.
                let again = Host::of_authority(&host.to_string(), None);
                prop_assert_eq!(again.as_ref(), Some(&host));
                prop_assert!(host.is_in(&host.to_string()) && host.is_in(&host.name));
            }
            let _ = Grant::new(&text);
        }

        #[test]
        fn a_wildcard_is_about_names_below_it(
            name in r"([a-z]{1,3}\.){0,3}[a-z]{1,3}", parent in r"([a-z]{1,3}\.){0,2}[a-z]{1,3}",
        ) {
            let host = Host::new(&name, 80).unwrap();
            let labels: Vec<_> = name.split('.').collect();
            let above: Vec<_> = parent.split('.').collect();
            let below = labels.len() > above.len() && labels.ends_with(&above);
            prop_assert_eq!(host.is_in(&format!("*.{parent}")), below);
        }

        #[test]
        fn an_address_is_meant_only_by_itself(bits: u32, other: u32) {
            let [host, another] = [bits, other].map(|bits| {
                Host::new(&bits.to_string(), 80).unwrap()
            });
            prop_assert_eq!(host.is_in(&another.name), bits == other);
            let (_, parent) = host.name.split_once('.').unwrap();
            let wildcard = format!("*.{parent}");
            prop_assert!(!host.is_in(&wildcard));
        }
    }
}
