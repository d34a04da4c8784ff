//! A wire that a test holds, cuts, or lets lose an answer.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// Stands between a process and a server, knows nothing of what they say, and passes it on
/// until it is told otherwise. Gone when dropped, with every connection through it.
pub struct Proxy {
    address: SocketAddr,
    wire: Arc<Wire>,
}

struct Wire {
    targets: Mutex<VecDeque<SocketAddr>>,
    state: watch::Sender<State>,
    trap: Mutex<Option<Trap>>,
    sprung: watch::Sender<usize>,
    /// How many pieces were held since the hold began.
    held: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    holds: bool,
    /// Servers with whom nobody gets to talk.
    held: Vec<SocketAddr>,
    /// How often everything that was connected was cut off.
    cuts: usize,
    /// Whether answers that a trap keeps back may go on.
    released: usize,
}

/// What happens to the connection that says certain words to the server.
struct Trap {
    words: Vec<u8>,
    then: Then,
}

/// The server has heard the words in every case.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    /// Its answer comes to nothing, and neither does anything after it.
    Cut,
    /// Its answer stays on the wire until it is released.
    Keep,
}

impl Proxy {
    /// Listens on a port of its own and passes on to `target`.
    pub async fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let wire = Arc::new(Wire {
            targets: Mutex::new(VecDeque::from([target])),
            state: watch::Sender::default(),
            trap: Mutex::default(),
            sprung: watch::Sender::default(),
            held: watch::Sender::default(),
        });
        tokio::spawn(wire.clone().accept(listener));
        Proxy { address, wire }
    }

    /// To the server that a URL names.
    pub async fn to_url(url: &str) -> Proxy {
        let authority = url.split("://").nth(1).unwrap().split(['/', '?']).next().unwrap();
        let host = authority.rsplit('@').next().unwrap();
        let mut found = tokio::net::lookup_host(host).await.unwrap();
        Proxy::to(found.next().unwrap()).await
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Passes on to somebody else from here on.
    pub fn redirect(&self, target: SocketAddr) {
        self.spread(&[target]);
    }

    /// Passes on to several, to one after the other; a connection that one of them does not take
    /// goes to the next.
    pub fn spread(&self, targets: &[SocketAddr]) {
        *self.wire.targets.lock().unwrap() = targets.iter().copied().collect();
    }

    /// Stops passing anything on; nobody is told.
    pub fn hold(&self) {
        self.wire.held.send_replace(0);
        self.wire.state.send_modify(|state| state.holds = true);
    }

    /// Stops passing anything on to one of several, and from it; nobody is told.
    pub fn hold_to(&self, target: SocketAddr) {
        self.wire.state.send_modify(|state| state.held.push(target));
    }

    /// Passes on what was held for one of several.
    pub fn resume_to(&self, target: SocketAddr) {
        self.wire.state.send_modify(|state| state.held.retain(|held| *held != target));
    }

    /// Returns when somebody said something that is held.
    pub async fn held(&self) {
        let mut held = self.wire.held.subscribe();
        held.wait_for(|held| *held > 0).await.unwrap();
    }

    /// Passes everything on that was held.
    pub fn resume(&self) {
        self.wire.state.send_modify(|state| state.holds = false);
    }

    /// Cuts all connections; new ones are welcome.
    pub fn cut(&self) {
        self.wire.state.send_modify(|state| state.cuts += 1);
    }

    /// The next time `words` are said to the server it hears them, and nobody hears its answer:
    /// the connection is cut when it comes.
    pub fn lose_answer_to(&self, words: impl AsRef<[u8]>) {
        self.set(words.as_ref(), Then::Cut);
    }

    /// The same, but the connection stays and the answer waits for [`Proxy::release`].
    pub fn keep_answer_to(&self, words: impl AsRef<[u8]>) {
        self.set(words.as_ref(), Then::Keep);
    }

    /// Lets the answers go on that were kept.
    pub fn release(&self) {
        self.wire.state.send_modify(|state| state.released += 1);
    }

    fn set(&self, words: &[u8], then: Then) {
        assert!(!words.is_empty(), "nobody says nothing");
        self.wire.sprung.send_replace(0);
        *self.wire.trap.lock().unwrap() = Some(Trap { words: words.to_owned(), then });
    }

    /// Returns when an answer was lost or kept since that was last asked for.
    pub async fn sprung(&self) {
        let mut sprung = self.wire.sprung.subscribe();
        sprung.wait_for(|sprung| *sprung > 0).await.unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.wire.state.send_modify(|state| state.held.clear());
        self.resume();
    }
}

impl Wire {
    async fn accept(self: Arc<Wire>, listener: TcpListener) {
        loop {
            let Ok((client, _)) = listener.accept().await else { return };
            tokio::spawn(self.clone().join(client));
        }
    }

    async fn join(self: Arc<Wire>, client: TcpStream) {
        let mut state = self.state.subscribe();
        let cuts = state.borrow_and_update().cuts;
        let Some((server, target)) = self.connect().await else { return };
        client.set_nodelay(true).ok();
        server.set_nodelay(true).ok();
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        // What a trap makes of the answers on this connection.
        let doom = Mutex::default();
        tokio::select! {
            _ = state.wait_for(|state| state.cuts > cuts) => {}
            _ = self.ask(target, from_client, to_server, &doom) => {}
            _ = self.answer(target, from_server, to_client, &doom) => {}
        }
    }

    /// A connection to the first who takes one, and who that is.
    async fn connect(&self) -> Option<(TcpStream, SocketAddr)> {
        let targets = {
            let mut targets = self.targets.lock().unwrap();
            targets.rotate_left(1);
            targets.clone()
        };
        for target in targets {
            if let Ok(server) = TcpStream::connect(target).await {
                return Some((server, target));
            }
        }
        None
    }

    async fn ask(
        &self,
        target: SocketAddr,
        mut client: OwnedReadHalf,
        mut server: OwnedWriteHalf,
        doom: &Mutex<Option<Then>>,
    ) -> io::Result<()> {
        let mut heard = VecDeque::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = client.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            self.flows(target).await;
            if let Some(then) = self.hears(&mut heard, &buffer[..read]) {
                *doom.lock().unwrap() = Some(then);
            }
            server.write_all(&buffer[..read]).await?;
        }
    }

    async fn answer(
        &self,
        target: SocketAddr,
        mut server: OwnedReadHalf,
        mut client: OwnedWriteHalf,
        doom: &Mutex<Option<Then>>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = server.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            self.flows(target).await;
            let then = doom.lock().unwrap().take();
            if let Some(then) = then {
                let mut state = self.state.subscribe();
                let released = state.borrow_and_update().released;
                self.sprung.send_modify(|sprung| *sprung += 1);
                match then {
                    Then::Cut => return Ok(()),
                    Then::Keep => {
                        let _ = state.wait_for(|state| state.released > released).await;
                    }
                }
            }
            client.write_all(&buffer[..read]).await?;
        }
    }

    /// Returns when nothing is held that is said to this server or by it.
    async fn flows(&self, target: SocketAddr) {
        let mut state = self.state.subscribe();
        let holds = |state: &State| state.holds || state.held.contains(&target);
        if holds(&state.borrow()) {
            self.held.send_modify(|held| *held += 1);
        }
        let _ = state.wait_for(|state| !holds(state)).await;
    }

    /// Whether the trap's words end in what was said just now, however it was cut into pieces.
    fn hears(&self, heard: &mut VecDeque<u8>, said: &[u8]) -> Option<Then> {
        let mut trap = self.trap.lock().unwrap();
        let armed = trap.as_ref()?;
        heard.extend(said);
        let all = heard.make_contiguous();
        let found = all.windows(armed.words.len()).any(|window| window == armed.words);
        heard.drain(..heard.len().saturating_sub(armed.words.len() - 1));
        found.then(|| trap.take())?.map(|trap| trap.then)
    }
}
