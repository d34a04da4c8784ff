use std::io;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// No first message of TLS is larger.
const LARGEST: usize = 64 * 1024;

/// What a client sent first, which is still to be sent on.
#[derive(Debug)]
pub struct Hello {
    pub bytes: Vec<u8>,
    /// Absent: it is not the first message of TLS.
    pub greeting: Option<Greeting>,
}

#[derive(Debug)]
pub struct Greeting {
    /// Whom the client wants to talk to.
    pub server_name: Option<String>,
}

/// Reads until it is known what the client wants.
pub async fn read(client: &mut (impl AsyncRead + Unpin)) -> io::Result<Hello> {
    let mut acceptor = Acceptor::default();
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let read = client.read(&mut chunk).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&chunk[..read]);
        let mut new = &chunk[..read];
        while !new.is_empty() {
            // Zero is that it has read more than it takes.
            let taken = acceptor.read_tls(&mut new);
            if bytes.len() > LARGEST || !taken.is_ok_and(|taken| taken > 0) {
                return Ok(Hello { bytes, greeting: None });
            }
            match acceptor.accept() {
                Ok(None) => (),
                Ok(Some(accepted)) => {
                    let server_name = accepted.client_hello().server_name().map(str::to_owned);
                    return Ok(Hello { bytes, greeting: Some(Greeting { server_name }) });
                }
                Err(_) => return Ok(Hello { bytes, greeting: None }),
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    pub fn hello(name: &'static str) -> Vec<u8> {
        chassis::tls::install_default();
        let config = ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    fn read_all(mut bytes: &[u8]) -> io::Result<Hello> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read(&mut bytes))
    }

    #[test]
    fn the_name_is_what_the_client_said() {
        let named = |name| {
            let bytes = hello(name);
            let read = read_all(&bytes).unwrap();
            assert_eq!(read.bytes, bytes);
            read.greeting.unwrap().server_name
        };
        assert_eq!(named("a.example").as_deref(), Some("a.example"));
        assert_eq!(named("192.0.2.1"), None);
        assert!(read_all(b"GET / HTTP/1.1\r\n\r\n").unwrap().greeting.is_none());
        assert!(read_all(b"SSH-2.0-x\r\n").unwrap().greeting.is_none());
        assert!(read_all(b"").is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_a_greeting_or_none(
            flips in prop::collection::vec((0usize..300, any::<u8>()), 0..8),
            noise in prop::collection::vec(any::<u8>(), 0..64),
            end in 0usize..400,
        ) {
            let mut bytes = hello("a.example");
            for (place, value) in flips {
                let length = bytes.len();
                bytes[place % length] = value;
            }
            bytes.truncate(end);
            bytes.extend(noise);
            // What was taken is sent on as it is, whatever it was.
            if let Ok(read) = read_all(&bytes) {
                prop_assert!(bytes.starts_with(&read.bytes));
            }
        }
    }
}
