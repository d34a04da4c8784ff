use std::{
    error::Error as StdError,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use reqwest::{
    dns::{Addrs, Name, Resolving},
    redirect::{Attempt, Policy},
};
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};
use url::Url;

use super::address::{Addresses, Forbidden};
use crate::host::Host;

/// How long it may take to find out where a host is, and to be let in.
const RESOLVING: Duration = Duration::from_secs(10);
const CONNECTING: Duration = Duration::from_secs(10);

/// How many addresses of one host are tried.
const MOST_ADDRESSES: usize = 8;

/// How often a client of [`Outward::client`] lets itself be sent elsewhere.
const MOST_REDIRECTS: usize = 5;

/// The way to hosts that somebody else named: resolves a name once, looks at every address,
/// and connects to one of those and no other, so that an answer of the name's owner that
/// changes in between changes nothing.
#[derive(Clone)]
pub struct Outward {
    addresses: Arc<Addresses>,
    resolver: Arc<dyn Resolve>,
}

/// Says where a name is.
pub trait Resolve: Send + Sync {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the machine.
pub struct System;

impl Resolve for System {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let found =
            async move { Ok(lookup_host((name, 0)).await?.map(|found| found.ip()).collect()) };
        found.boxed()
    }
}

/// Why a host was not reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A check of ours said no.
    #[error("{host} may not be reached: {forbidden}")]
    Address { host: String, forbidden: Forbidden },
    #[error("{0} is no `http` or `https` URL with a host, and without a password")]
    Url(String),

    /// Nobody said no, but it cannot be done.
    #[error("{host} cannot be found: {problem}")]
    Unknown { host: String, problem: String },
    #[error("{host} cannot be reached: {problem}")]
    Unreachable { host: String, problem: String },
}

impl Refusal {
    /// Something was forbidden, and not only impossible.
    pub fn is_violation(&self) -> bool {
        matches!(self, Refusal::Address { .. } | Refusal::Url(_))
    }

    /// The refusal that made a request of [`Outward::client`] fail.
    pub fn of<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Refusal> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(refusal) = error.downcast_ref() {
                return Some(refusal);
            }
            next = error.source();
        }
        None
    }
}

impl Outward {
    pub fn new(addresses: Addresses) -> Outward {
        Outward::resolving(addresses, System)
    }

    pub fn resolving(addresses: Addresses, resolver: impl Resolve + 'static) -> Outward {
        Outward { addresses: Arc::new(addresses), resolver: Arc::new(resolver) }
    }

    /// The addresses of a host, each of which may be reached. One that may not is reason enough
    /// to believe nothing of what the name's owner says.
    pub async fn locate(&self, host: &Host) -> Result<Vec<SocketAddr>, Refusal> {
        let found = match host.literal() {
            Some(address) => vec![address],
            None => self.resolve(host).await?,
        };
        let check = |address| match self.addresses.check(host, address) {
            Ok(address) => Ok(SocketAddr::new(address, host.port)),
            Err(forbidden) => Err(Refusal::Address { host: host.name.clone(), forbidden }),
        };
        found.into_iter().map(check).collect()
    }

    async fn resolve(&self, host: &Host) -> Result<Vec<IpAddr>, Refusal> {
        let unknown = |problem: String| Refusal::Unknown { host: host.name.clone(), problem };
        let resolving = timeout(RESOLVING, self.resolver.resolve(&host.name)).await;
        let found = resolving.map_err(|_| unknown("the name server does not answer".into()))?;
        let mut found = found.map_err(|error| unknown(error.to_string()))?;
        // Checked are all that are used, and used are these.
        found.truncate(MOST_ADDRESSES);
        match found.is_empty() {
            true => Err(unknown("it has no address".into())),
            false => Ok(found),
        }
    }

    /// Connects to a host, at one of the addresses that were checked.
    pub async fn connect(&self, host: &Host) -> Result<TcpStream, Refusal> {
        let addresses = self.locate(host).await?;
        let mut problem = String::new();
        for address in addresses {
            match timeout(CONNECTING, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // What is small is mostly a question that somebody waits for.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => problem = error.to_string(),
                Err(_) => problem = "it does not answer".into(),
            }
        }
        Err(Refusal::Unreachable { host: host.name.clone(), problem })
    }

    /// Whether a URL is one that can be asked for. Of a URL with an address instead of a name
    /// this is the only check, because a client resolves no address: whoever uses
    /// [`Outward::client`] with a URL of somebody else asks here first.
    pub fn check(&self, url: &Url) -> Result<Host, Refusal> {
        let refused = || Refusal::Url(shown(url));
        let plain = url.username().is_empty() && url.password().is_none();
        if !matches!(url.scheme(), "http" | "https") || !plain {
            return Err(refused());
        }
        let host = Host::of(url).ok_or_else(refused)?;
        if let Some(address) = host.literal() {
            let forbidden = |forbidden| Refusal::Address { host: host.name.clone(), forbidden };
            self.addresses.check(&host, address).map_err(forbidden)?;
        }
        Ok(host)
    }

    /// A client that connects to checked addresses only, and goes where it is sent only after
    /// asking [`Outward::check`].
    pub fn client(&self) -> reqwest::Result<reqwest::Client> {
        let outward = self.clone();
        let redirect = Policy::custom(move |attempt: Attempt<'_>| {
            if attempt.previous().len() > MOST_REDIRECTS {
                return attempt.error("too many redirects");
            }
            match outward.check(attempt.url()) {
                Ok(_) => attempt.follow(),
                Err(refusal) => attempt.error(refusal),
            }
        });
        self.builder().redirect(redirect).build()
    }

    /// Such a client that is yet to be told what to do when it is sent elsewhere.
    pub fn builder(&self) -> reqwest::ClientBuilder {
        chassis::tls::install_default();
        reqwest::Client::builder()
            .dns_resolver(Arc::new(self.clone()))
            // What a proxy of the machine's would connect to, nobody here could check.
            .no_proxy()
            .referer(false)
            .connect_timeout(RESOLVING + CONNECTING)
    }
}

impl reqwest::dns::Resolve for Outward {
    fn resolve(&self, name: Name) -> Resolving {
        let outward = self.clone();
        let resolving = async move {
            // A port of our own is replaced by that of the URL.
            let host = Host::new(name.as_str(), 0).ok_or("no name of a host")?;
            let found = outward.locate(&host).await?;
            Ok::<_, Box<dyn StdError + Send + Sync>>(Box::new(found.into_iter()) as Addrs)
        };
        resolving.boxed()
    }
}

/// What an error came from in the end, which says more than what was tried.
pub fn cause(error: &(dyn StdError + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// A URL as far as it may be told: neither a password nor what may be a token.
fn shown(url: &Url) -> String {
    format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default())
}

#[cfg(test)]
pub mod tests {
    use std::{
        collections::HashMap,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// A name server of the test's own: each time a name is asked for, its next answer, and the
    /// last one from then on.
    #[derive(Default)]
    pub struct Names {
        answers: HashMap<String, Vec<Vec<IpAddr>>>,
        asked: AtomicUsize,
    }

    impl Names {
        pub fn new(names: &[(&str, &[&[&str]])]) -> Names {
            let parse = |address: &&str| address.parse().unwrap();
            let answers = names.iter().map(|(name, answers)| {
                let answers = answers.iter().map(|answer| answer.iter().map(parse).collect());
                ((*name).to_owned(), answers.collect())
            });
            Names { answers: answers.collect(), asked: AtomicUsize::new(0) }
        }
    }

    impl Resolve for Names {
        fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
            let turn = self.asked.fetch_add(1, Ordering::SeqCst);
            let answers = self.answers.get(name);
            let answer = answers.and_then(|all| all.get(turn).or(all.last())).cloned();
            async move { answer.ok_or_else(|| io::ErrorKind::NotFound.into()) }.boxed()
        }
    }

    pub fn addresses(allowances: &[&str]) -> Addresses {
        Addresses::new(allowances.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn host(text: &str) -> Host {
        Host::of_authority(text, None).unwrap()
    }

    #[tokio::test]
    async fn one_bad_address_spoils_a_name() {
        let names = Names::new(&[
            ("good.example", &[&["93.184.215.14", "2606:2800::1"]]),
            ("mixed.example", &[&["93.184.215.14", "10.0.0.1"]]),
            ("mapped.example", &[&["::ffff:169.254.169.254"]]),
            ("empty.example", &[&[]]),
        ]);
        let outward = Outward::resolving(Addresses::default(), names);
        let found = outward.locate(&host("good.example:443")).await.unwrap();
        assert_eq!(
            found,
            ["93.184.215.14:443", "[2606:2800::1]:443"].map(|it| it.parse().unwrap())
        );
        for (name, problem) in [
            ("mixed.example", "may not be reached: 10.0.0.1 is private"),
            (
                "mapped.example",
                "may not be reached: 169.254.169.254 is link-local, where clouds keep metadata",
            ),
            ("empty.example", "cannot be found: it has no address"),
            ("absent.example", "cannot be found: entity not found"),
            ("127.0.0.1", "may not be reached: 127.0.0.1 is loopback"),
        ] {
            let refusal = outward.locate(&host(&format!("{name}:80"))).await.unwrap_err();
            assert_eq!(refusal.to_string(), format!("{name} {problem}"));
        }
    }

    /// A server that answers every request in the same way.
    async fn server(answer: String) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // Whoever is answered before they have asked does not listen.
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        port
    }

    const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";

    #[tokio::test]
    async fn a_client_connects_to_what_was_checked() {
        let port = server(FINE.into()).await;
        let url = format!("http://name.example:{port}/");
        for (allowances, reached) in [(&["127.0.0.1"][..], true), (&[], false)] {
            let names = Names::new(&[("name.example", &[&["127.0.0.1"]])]);
            let outward = Outward::resolving(addresses(allowances), names);
            let answer = outward.client().unwrap().get(&url).send().await;
            match reached {
                true => assert_eq!(answer.unwrap().text().await.unwrap(), "ok"),
                false => {
                    let error = answer.unwrap_err();
                    let refusal = Refusal::of(&error).expect("it says why");
                    assert!(refusal.is_violation());
                    let expected = "name.example may not be reached: 127.0.0.1 is loopback";
                    assert_eq!(refusal.to_string(), expected);
                }
            }
        }
    }

    #[tokio::test]
    async fn a_client_is_not_sent_where_it_may_not_go() {
        let secret = server(FINE.into()).await;
        for (allowances, reached) in [(&["name.example"][..], false), (&["127.0.0.1"], true)] {
            let location = format!("http://0x7f.1:{secret}/");
            let moved = format!(
                "HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            let port = server(moved).await;
            let names = Names::new(&[("name.example", &[&["127.0.0.1"]])]);
            let outward = Outward::resolving(addresses(allowances), names);
            let url = format!("http://name.example:{port}/");
            let answer = outward.client().unwrap().get(&url).send().await;
            assert_eq!(answer.is_ok(), reached);
            if let Err(error) = answer {
                let refusal = Refusal::of(&error).expect("it says why").to_string();
                assert_eq!(refusal, "127.0.0.1 may not be reached: 127.0.0.1 is loopback");
            }
        }
    }

    #[test]
    fn a_url_is_looked_at_before_it_is_used() {
        let outward = Outward::new(Addresses::default());
        let check = |url: &str| match outward.check(&Url::parse(url).unwrap()) {
            Ok(host) => host.to_string(),
            Err(refusal) => refusal.to_string(),
        };
        assert_eq!(check("https://example.com/a?b"), "example.com:443");
        assert_eq!(
            check("http://2130706433/"),
            "127.0.0.1 may not be reached: 127.0.0.1 is loopback"
        );
        assert_eq!(
            check("http://[::1]/"),
            "[::1] may not be reached: ::1 is loopback, unspecified or reserved"
        );
        for url in ["ftp://example.com/", "https://user:pass@example.com/?token", "file:///etc"] {
            let refusal = check(url);
            assert!(refusal.ends_with("with a host, and without a password"), "{refusal}");
            assert!(!refusal.contains("pass@") && !refusal.contains("token"), "{refusal}");
        }
    }
}
