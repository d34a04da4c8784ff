use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use proto::tools::v1 as pb;
use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncSeekExt as _, sync::watch, task::spawn_blocking};
use tracing::error;

use crate::{
    spool::Whole,
    store::processes::{Stream, Stretch},
};

/// How much one read returns at most.
const PIECE: usize = 64 * 1024;

/// How often streams may take turns before nobody keeps track: each turn is kept in memory,
/// and in the row of the process.
const MOST_STRETCHES: usize = 4096;

/// What a process has printed, without secrets: all of it up to a limit, in a file that has no
/// name and is gone with us. One writes, anybody reads from anywhere and waits for more.
#[derive(Debug)]
pub struct Journal {
    file: Arc<File>,
    stretches: Mutex<Vec<Stretch>>,
    state: watch::Sender<State>,
}

/// How far a journal has come.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// How much was printed, and how much of it can be read.
    pub total: u64,
    pub kept: u64,
    /// The process is over, and this is what became of it.
    pub over: Option<Arc<pb::Process>>,
}

impl Journal {
    pub fn new(folder: &Path) -> io::Result<Journal> {
        Ok(Journal {
            file: Arc::new(tempfile::tempfile_in(folder)?),
            stretches: Mutex::default(),
            state: watch::Sender::default(),
        })
    }

    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Hears of every change.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub fn close(&self, ended: pb::Process) {
        self.state.send_modify(|state| state.over = Some(Arc::new(ended)));
    }

    pub fn stretches(&self) -> Vec<Stretch> {
        self.stretches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A piece of one stream from `offset` on; nothing where nothing is kept.
    pub async fn read(&self, offset: u64) -> io::Result<(Stream, Vec<u8>)> {
        let kept = self.state.borrow().kept;
        let (stream, end) = stretch_at(&self.stretches(), offset);
        let end = end.min(kept).max(offset);
        let length = usize::try_from(end - offset).unwrap_or(PIECE).min(PIECE);
        let file = self.file.clone();
        let read = spawn_blocking(move || {
            let mut piece = vec![0; length];
            file.read_exact_at(&mut piece, offset).map(|()| piece)
        });
        Ok((stream, read.await??))
    }

    fn turn(&self, offset: u64, stream: Stream) {
        let mut stretches = self.stretches.lock().unwrap_or_else(PoisonError::into_inner);
        match stretches.last() {
            Some(Stretch(_, last)) if *last == stream || *last == Stream::Mixed => (),
            _ if stretches.len() + 1 < MOST_STRETCHES => stretches.push(Stretch(offset, stream)),
            _ => stretches.push(Stretch(offset, Stream::Mixed)),
        }
    }
}

/// Of which stream the output is at an offset, and where that ends.
pub fn stretch_at(stretches: &[Stretch], offset: u64) -> (Stream, u64) {
    let after = stretches.partition_point(|Stretch(start, _)| *start <= offset);
    let stream = after.checked_sub(1).and_then(|index| stretches.get(index));
    let stream = stream.map_or(Stream::Mixed, |Stretch(_, stream)| *stream);
    (stream, stretches.get(after).map_or(u64::MAX, |Stretch(start, _)| *start))
}

/// The one who writes a journal.
pub struct Writer {
    journal: Arc<Journal>,
    hasher: Sha256,
    /// How much may be kept. Less when the disk is full: that must not keep a process from
    /// printing.
    most: u64,
}

impl Writer {
    pub fn new(journal: Arc<Journal>, most: u64) -> Writer {
        Writer { journal, hasher: Sha256::new(), most }
    }

    /// Appends what was printed and returns where that begins.
    pub async fn push(&mut self, stream: Stream, bytes: &[u8]) -> u64 {
        let State { total, kept, .. } = self.journal.state();
        if bytes.is_empty() {
            return total;
        }
        let room = usize::try_from(self.most.saturating_sub(kept)).unwrap_or(usize::MAX);
        let stored = bytes[..bytes.len().min(room)].to_vec();
        let mut more = stored.len() as u64;
        if more > 0 {
            self.journal.turn(kept, stream);
            let (file, data) = (self.journal.file.clone(), stored.clone());
            let written = spawn_blocking(move || file.write_all_at(&data, kept)).await;
            match written.map_err(io::Error::other).flatten() {
                Ok(()) => self.hasher.update(&stored),
                Err(error) => {
                    error!(%error, "the output of a process cannot be kept");
                    (self.most, more) = (kept, 0);
                }
            }
        }
        self.journal.state.send_modify(|state| {
            state.total += bytes.len() as u64;
            state.kept += more;
        });
        total
    }

    /// What is kept in the end.
    pub async fn finish(self) -> io::Result<Whole> {
        let mut file = tokio::fs::File::from_std(self.journal.file.try_clone()?);
        file.rewind().await?;
        let digest = format!("{:x}", self.hasher.finalize());
        Ok(Whole { file, bytes: self.journal.state().kept, digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(most: u64) -> (Arc<Journal>, Writer) {
        let folder = tempfile::tempdir().unwrap();
        let journal = Arc::new(Journal::new(folder.path()).unwrap());
        (journal.clone(), Writer::new(journal, most))
    }

    #[tokio::test]
    async fn a_piece_is_of_one_stream() {
        let (journal, mut writer) = journal(1000);
        for (stream, text) in [
            (Stream::Stdout, "one "),
            (Stream::Stdout, "two "),
            (Stream::Stderr, "three "),
            (Stream::Stdout, "four"),
        ] {
            writer.push(stream, text.as_bytes()).await;
        }
        let read = |offset| {
            let journal = journal.clone();
            async move { journal.read(offset).await.unwrap() }
        };
        assert_eq!(read(0).await, (Stream::Stdout, b"one two ".to_vec()));
        assert_eq!(read(4).await, (Stream::Stdout, b"two ".to_vec()));
        assert_eq!(read(9).await, (Stream::Stderr, b"hree ".to_vec()));
        assert_eq!(read(14).await, (Stream::Stdout, b"four".to_vec()));
        assert_eq!(read(18).await, (Stream::Stdout, vec![]));
    }

    #[tokio::test]
    async fn no_more_is_kept_than_may_be() {
        let (journal, mut writer) = journal(6);
        for _ in 0..3 {
            writer.push(Stream::Pty, b"1234").await;
        }
        assert_eq!((journal.state().total, journal.state().kept), (12, 6));
        assert_eq!(journal.read(0).await.unwrap().1, b"123412");
        let whole = writer.finish().await.unwrap();
        assert_eq!(whole.digest, format!("{:x}", Sha256::digest(b"123412")));
        assert_eq!(whole.bytes, 6);
    }

    #[tokio::test]
    async fn streams_that_take_turns_for_ever_are_not_told_apart() {
        let (journal, mut writer) = journal(u64::MAX);
        for _ in 0..MOST_STRETCHES {
            writer.push(Stream::Stdout, b"1").await;
            writer.push(Stream::Stderr, b"2").await;
        }
        assert_eq!(journal.stretches().len(), MOST_STRETCHES);
        assert_eq!(journal.read(0).await.unwrap(), (Stream::Stdout, b"1".to_vec()));
        let (stream, rest) = journal.read(MOST_STRETCHES as u64).await.unwrap();
        assert_eq!((stream, rest.len()), (Stream::Mixed, MOST_STRETCHES));
    }
}
