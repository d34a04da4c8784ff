use std::{io, path::PathBuf};

use sha2::{Digest as _, Sha256};
use tokio::{
    fs::File,
    io::{AsyncSeekExt as _, AsyncWriteExt as _},
};

/// What a command prints, all of it up to a limit: in memory while it is little, and then in a
/// file that has no name and is gone with us.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    little: usize,
    most: u64,
    held: Vec<u8>,
    file: Option<File>,
    hasher: Sha256,
    bytes: u64,
}

/// What a spool holds in the end.
#[derive(Debug)]
pub struct Whole {
    /// Read from its beginning.
    pub file: File,
    pub bytes: u64,
    /// SHA-256, in hexadecimal.
    pub digest: String,
}

impl Spool {
    /// Keeps at most `most` bytes, and more than `little` in a file in `folder`.
    pub fn new(folder: PathBuf, little: usize, most: u64) -> Spool {
        Spool {
            folder,
            little,
            most,
            held: Vec::new(),
            file: None,
            hasher: Sha256::new(),
            bytes: 0,
        }
    }

    pub async fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = usize::try_from(self.most - self.bytes).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        if bytes.is_empty() {
            return Ok(());
        }
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        if self.file.is_none() && self.held.len() + bytes.len() <= self.little {
            self.held.extend_from_slice(bytes);
            return Ok(());
        }
        self.file().await?.write_all(bytes).await
    }

    /// The file, which what is held in memory moves to.
    async fn file(&mut self) -> io::Result<&mut File> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => File::from_std(tempfile::tempfile_in(&self.folder)?),
        };
        file.write_all(&std::mem::take(&mut self.held)).await?;
        Ok(self.file.insert(file))
    }

    pub async fn finish(mut self) -> io::Result<Whole> {
        let file = self.file().await?;
        file.flush().await?;
        file.rewind().await?;
        let file = self.file.take().ok_or(io::ErrorKind::NotFound)?;
        let digest = format!("{:x}", self.hasher.finalize());
        Ok(Whole { file, bytes: self.bytes, digest })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_is_kept_is_the_beginning_byte_for_byte(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
            little in 0usize..100,
            most in 0u64..400,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let folder = tempfile::tempdir().unwrap();
                let mut spool = Spool::new(folder.path().to_owned(), little, most);
                for piece in &pieces {
                    spool.push(piece).await.unwrap();
                }
                let mut whole = spool.finish().await.unwrap();
                let mut content = Vec::new();
                whole.file.read_to_end(&mut content).await.unwrap();
                let mut expected = pieces.concat();
                expected.truncate(most as usize);
                prop_assert_eq!(whole.bytes, expected.len() as u64);
                prop_assert_eq!(&whole.digest, &format!("{:x}", Sha256::digest(&expected)));
                prop_assert_eq!(content, expected);
                Ok(())
            })?;
        }
    }
}
