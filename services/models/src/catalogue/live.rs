//! The catalogue that holds now. A file that changes is read again without a restart; one
//! that is wrong changes nothing, and health and log say so.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use arc_swap::ArcSwap;
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{BUILT_IN, Catalogue};
use crate::provider::Providers;

/// A catalogue and the clients it asks for. A request keeps the one it began with.
pub struct Served {
    pub catalogue: Catalogue,
    pub providers: Providers,
}

pub struct Live {
    path: Option<PathBuf>,
    served: ArcSwap<Served>,
    state: Mutex<State>,
}

struct State {
    /// What the file said when it was last looked at, right or wrong.
    text: String,
    problem: Option<String>,
    reloads: u32,
}

/// How often the file is looked at. Kubernetes takes longer to bring a change here.
const LOOK: Duration = Duration::from_secs(2);

const MAX_BYTES: u64 = 4 * 1024 * 1024;

impl Live {
    /// Reads the file, or what is built in. Whoever starts with a wrong file hears it at once.
    pub fn open(path: Option<PathBuf>) -> anyhow::Result<Live> {
        let text = match &path {
            Some(path) => read(path)?,
            None => BUILT_IN.to_owned(),
        };
        let served = serve(&text).with_context(|| match &path {
            Some(path) => format!("cannot use the catalogue {}", path.display()),
            None => "cannot use the built-in catalogue".to_owned(),
        })?;
        let state = Mutex::new(State { text, problem: None, reloads: 0 });
        Ok(Live { path, served: ArcSwap::from_pointee(served), state })
    }

    pub fn now(&self) -> Arc<Served> {
        self.served.load_full()
    }

    /// Looks at the file again and again, and at once after a SIGHUP, until `stop`.
    pub async fn watch(self: Arc<Live>, stop: CancellationToken) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut hangups = signal(SignalKind::hangup())?;
        loop {
            let asked = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = hangups.recv() => true,
                () = sleep(LOOK) => false,
            };
            self.look(path, asked);
        }
    }

    /// Takes what the file says if it changed. A credential that was replaced without its
    /// catalogue is taken when somebody asks for it with a signal.
    fn look(&self, path: &Path, asked: bool) {
        let read = read(path);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match read {
            Ok(text) if text == state.text && state.problem.is_none() && !asked => return,
            Ok(text) => serve(&text).inspect(|_| state.text = text),
            Err(error) => Err(error),
        };
        match changed {
            Ok(served) => {
                let models = served.catalogue.everybody().models.len();
                self.served.store(Arc::new(served));
                state.problem = None;
                state.reloads += 1;
                info!(models, "the catalogue {} was read again", path.display());
            }
            Err(error) => {
                let problem = format!("{error:#}");
                if state.problem.as_ref() != Some(&problem) {
                    error!(error = %problem, "the catalogue {} is wrong, keeping the one before", path.display());
                }
                state.problem = Some(problem);
            }
        }
    }

    /// What `/health` says about it.
    pub fn explain(&self) -> serde_json::Value {
        let served = self.now();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "file": self.path.as_ref().map(|path| path.display().to_string()),
            "providers": served.catalogue.providers.len(),
            "models": served.catalogue.everybody().models.len(),
            "reloads": state.reloads,
            "problem": state.problem,
        })
    }
}

fn serve(text: &str) -> anyhow::Result<Served> {
    let catalogue: Catalogue = text.parse()?;
    let providers = Providers::of(&catalogue)?;
    Ok(Served { catalogue, providers })
}

fn read(path: &Path) -> anyhow::Result<String> {
    let cannot = || format!("cannot read the catalogue {}", path.display());
    let mut text = String::new();
    let file = fs::File::open(path).with_context(cannot)?;
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text).with_context(cannot)?;
    ensure!(read as u64 <= MAX_BYTES, "the catalogue {} is larger than 4 MiB", path.display());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_file_that_changes_is_taken_and_one_that_is_wrong_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("catalogue.json");
        fs::write(&path, BUILT_IN).unwrap();
        let live = Live::open(Some(path.clone())).unwrap();
        let names = || {
            live.now().catalogue.everybody().models.iter().map(|one| one.name()).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["scripted/demo", "scripted/small"]);

        fs::write(&path, BUILT_IN.replace("\"small\"", "\"tiny\"")).unwrap();
        live.look(&path, false);
        assert_eq!(names(), ["scripted/demo", "scripted/tiny"]);

        fs::write(&path, BUILT_IN.replace("\"cheap\"", "\"mighty\"")).unwrap();
        live.look(&path, false);
        assert_eq!(names(), ["scripted/demo", "scripted/tiny"]);
        let problem = live.explain()["problem"].clone();
        expect!["line 25, models[1].tier: unknown variant `mighty`, expected one of `cheap`, `balanced`, `strong`"]
            .assert_eq(problem.as_str().unwrap());

        // The same text as before the mistake is a change all the same.
        fs::write(&path, BUILT_IN.replace("\"small\"", "\"tiny\"")).unwrap();
        live.look(&path, false);
        assert_eq!(
            (live.explain()["problem"].is_null(), live.explain()["reloads"].as_u64()),
            (true, Some(2))
        );

        fs::remove_file(&path).unwrap();
        live.look(&path, false);
        assert!(
            live.explain()["problem"].as_str().unwrap().starts_with("cannot read the catalogue")
        );
        assert_eq!(names(), ["scripted/demo", "scripted/tiny"]);
    }
}
