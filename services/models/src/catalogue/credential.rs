//! Credentials by reference: the file names them and never holds them.

use std::{env, fs, io::Read as _, path::PathBuf};

use secrecy::SecretString;
use serde::Deserialize;

/// Where a credential is. Exactly one of the three.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reference {
    /// A variable of our environment.
    Env(String),
    /// A file, without the white space around it.
    File(PathBuf),
    /// A key of a Kubernetes secret, by the directory it is mounted at.
    SecretMount { directory: PathBuf, key: String },
}

/// No credential is longer, so whatever is does not belong here.
const MAX_BYTES: u64 = 16 * 1024;

impl Reference {
    /// Looks it up. What is wrong never quotes what was found.
    pub fn resolve(&self) -> Result<SecretString, String> {
        let text = match self {
            Reference::Env(name) => {
                env::var(name).map_err(|_| format!("the variable {name} is not set"))?
            }
            Reference::File(path) => read(path)?,
            Reference::SecretMount { directory, key } => read(&directory.join(key))?,
        };
        match text.trim() {
            "" => Err("what it refers to is empty".to_owned()),
            text if !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Err("what it refers to is not a credential: it has spaces or controls".to_owned())
            }
            text => Ok(SecretString::from(text)),
        }
    }
}

fn read(path: &PathBuf) -> Result<String, String> {
    let cannot = |error| format!("cannot read {}: {error}", path.display());
    let mut text = String::new();
    let file = fs::File::open(path).map_err(cannot)?;
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(cannot)?;
    Ok(text)
}
