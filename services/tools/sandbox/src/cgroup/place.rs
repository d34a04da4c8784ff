use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
};

/// The names of our groups begin with this and the process id of the service.
pub const PREFIX: &str = "sandbox-";

/// Where version 2 has the service itself, because there a group has either processes or groups.
const SERVICE: &str = "sandbox.service";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One tree per kind of resource.
    One,
    Two,
}

/// The group in which those of sandboxes are made: the service's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub version: Version,
    pub memory: PathBuf,
    pub processes: PathBuf,
}

impl Place {
    /// Finds out where this process may make groups, and prepares that.
    pub fn find() -> Result<Place, String> {
        let read = |path| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let (groups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?);
        let place = match unified(&groups, &mounts).filter(|path| has_controllers(path)) {
            Some(path) => {
                delegate(&path).map_err(|error| format!("version 2: {error}"))?;
                Place { version: Version::Two, memory: path.clone(), processes: path }
            }
            None => separate(&groups, &mounts)
                .ok_or("no control groups for memory and processes are mounted")?,
        };
        place.sweep();
        Ok(place)
    }

    /// Removes what a service that was killed has left. A group with processes stays.
    fn sweep(&self) {
        for entry in [&self.memory, &self.processes].into_iter().flat_map(fs::read_dir).flatten() {
            let Ok(entry) = entry else { continue };
            let owner = entry.file_name().to_str().and_then(owner);
            if owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// The service that made a group.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

/// Lets groups below `path` have limits. The service moves into one of them, but nobody else:
/// a group with strangers in it is not ours to rearrange.
fn delegate(path: &Path) -> io::Result<()> {
    let names = fs::read_to_string(path.join("cgroup.subtree_control"))?;
    if offers(&names) {
        return Ok(());
    }
    let inhabitants = fs::read_to_string(path.join("cgroup.procs"))?;
    let own = process::id().to_string();
    if inhabitants.lines().any(|pid| pid != own) {
        return Err(io::Error::other(
            "the service shares its control group; give it one of its own to make use of them",
        ));
    }
    let service = path.join(SERVICE);
    match fs::create_dir(&service) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => fs::write(service.join("cgroup.procs"), "0")?,
    }
    fs::write(path.join("cgroup.subtree_control"), "+memory +pids")
}

fn has_controllers(path: &Path) -> bool {
    fs::read_to_string(path.join("cgroup.controllers")).is_ok_and(|names| offers(&names))
}

fn offers(names: &str) -> bool {
    ["memory", "pids"].iter().all(|wanted| names.split_whitespace().any(|name| name == *wanted))
}

/// The group of version 2 that this process is in, or was before it moved.
fn unified(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().filter_map(Mount::parse).find(|mount| mount.kind == "cgroup2")?;
    let path = mount.path(group)?;
    Some(if path.ends_with(SERVICE) { path.parent()?.into() } else { path })
}

/// The groups of version 1 that this process is in.
fn separate(groups: &str, mounts: &str) -> Option<Place> {
    let find = |controller: &str| {
        let group = groups.lines().find_map(|line| {
            let (_, line) = line.split_once(':')?;
            let (controllers, group) = line.split_once(':')?;
            controllers.split(',').any(|name| name == controller).then_some(group)
        })?;
        mounts
            .lines()
            .filter_map(Mount::parse)
            .find(|mount| {
                mount.kind == "cgroup" && mount.options.split(',').any(|name| name == controller)
            })?
            .path(group)
    };
    Some(Place { version: Version::One, memory: find("memory")?, processes: find("pids")? })
}

/// A line of mountinfo.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut kind = kind.split(' ');
        Some(Mount {
            root: place.next()?,
            point: place.next()?,
            kind: kind.next()?,
            options: kind.nth(1)?,
        })
    }

    /// Where a group is seen through this mount, which may show a part of the tree only.
    fn path(&self, group: &str) -> Option<PathBuf> {
        Some(Path::new(self.point).join(Path::new(group).strip_prefix(self.root).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEPARATE: &str = "\
        33 32 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        36 32 0:32 /pod /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids\n\
        38 32 0:34 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn version_1_has_a_tree_for_each() {
        let place = separate("8:pids:/pod/a\n4:memory:/x/y\n0::/\n", SEPARATE).unwrap();
        assert_eq!(place.memory, Path::new("/sys/fs/cgroup/memory/x/y"));
        assert_eq!(place.processes, Path::new("/sys/fs/cgroup/pids/a"));
    }

    #[test]
    fn version_2_has_one_tree_and_the_service_in_a_leaf() {
        let mounts = "25 30 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        for group in ["0::/system.slice/tools", "0::/system.slice/tools/sandbox.service"] {
            let path = unified(group, mounts).unwrap();
            assert_eq!(path, Path::new("/sys/fs/cgroup/system.slice/tools"));
        }
    }

    #[test]
    fn a_tree_that_is_not_in_sight_is_none() {
        assert_eq!(separate("8:pids:/elsewhere\n4:memory:/\n", SEPARATE), None);
        assert_eq!(separate("4:memory:/\n", SEPARATE), None);
        assert_eq!(unified("0::/\n", ""), None);
    }

    #[test]
    fn a_group_that_has_what_it_needs_is_used_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        delegate(folder.path()).unwrap();
        assert!(!folder.path().join(SERVICE).exists());
    }

    #[test]
    fn a_group_with_strangers_in_it_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.subtree_control"), "\n").unwrap();
        fs::write(folder.path().join("cgroup.procs"), "1\n").unwrap();
        assert!(delegate(folder.path()).is_err());
        assert!(!folder.path().join(SERVICE).exists());
    }

    #[test]
    fn only_our_own_names_have_an_owner() {
        assert_eq!(owner("sandbox-42-7"), Some(42));
        assert_eq!(owner("sandbox-42"), None);
        assert_eq!(owner(SERVICE), None);
        assert_eq!(owner("user-42-7"), None);
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd_to_be_read(groups in ".*", mounts in "[ -~\n]*") {
            let _ = (unified(&groups, &mounts), separate(&groups, &mounts));
        }
    }
}
