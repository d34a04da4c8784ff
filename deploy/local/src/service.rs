//! The four services, by name.

use std::{
    env,
    fmt::{self, Display},
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

/// A service of Windlass; each is a binary of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    Session,
    Tools,
    Models,
    Triggers,
}

impl Service {
    pub const ALL: [Service; 4] =
        [Service::Session, Service::Tools, Service::Models, Service::Triggers];

    pub fn name(self) -> &'static str {
        match self {
            Service::Session => "session",
            Service::Tools => "tools",
            Service::Models => "models",
            Service::Triggers => "triggers",
        }
    }

    /// The port the service listens on unless it is told another.
    pub fn port(self) -> u16 {
        match self {
            Service::Session => 50051,
            Service::Tools => 50052,
            Service::Models => 50053,
            Service::Triggers => 50054,
        }
    }

    /// The variable that tells the others where the service is.
    pub fn url_variable(self) -> String {
        format!("{}_URL", self.name().to_uppercase())
    }

    /// The built program: in `WINDLASS_BIN_DIR`, or beside the one that runs now.
    pub fn binary(self) -> Result<PathBuf> {
        let dir = match env::var_os("WINDLASS_BIN_DIR") {
            Some(dir) => PathBuf::from(dir),
            None => beside(&env::current_exe()?),
        };
        let binary = dir.join(self.name());
        ensure!(
            binary.exists(),
            "{} is not built: run `cargo build --workspace` first",
            binary.display()
        );
        Ok(binary)
    }
}

impl Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where cargo puts programs. Tests run one folder below, in `deps`.
fn beside(executable: &Path) -> PathBuf {
    let dir = executable.parent().unwrap_or(Path::new("."));
    match dir.file_name() {
        Some(name) if name == "deps" => dir.parent().unwrap_or(dir).to_owned(),
        _ => dir.to_owned(),
    }
}
