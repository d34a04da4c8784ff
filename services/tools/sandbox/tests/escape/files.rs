//! Files of the host and of other workspaces.

use std::{fs, os::unix::fs::symlink};

use tempfile::NamedTempFile;

use crate::{
    attempt::{Host, LANDLOCK, ROOT, SECCOMP},
    program::{call, shell},
};

#[tokio::test]
async fn a_file_is_read_by_its_path() {
    let host = Host::new();
    host.stops(&shell(format!("cat {}", host.secret.display())), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_read_from_the_directory_above() {
    Host::new().stops(&shell("cat ../neighbour/secret"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_read_through_a_link_that_somebody_left_in_the_workspace() {
    let host = Host::new();
    symlink(&host.secret, host.workspace.join("link")).unwrap();
    host.stops(&shell("cat link"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_read_through_a_link_of_the_commands_own() {
    let host = Host::new();
    let script = format!("ln -sf {} link; cat link", host.secret.display());
    host.stops(&shell(script), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_given_a_second_name_in_the_workspace() {
    Host::new().stops(&shell("ln ../neighbour/secret stolen; cat stolen"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_read_through_the_root_in_proc() {
    let host = Host::new();
    let script = format!("cat /proc/self/root{}", host.secret.display());
    host.stops(&shell(script), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_read_through_the_working_directory_in_proc() {
    Host::new().stops(&shell("cat /proc/self/cwd/../neighbour/secret"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_workspace_of_somebody_else_is_listed() {
    Host::new().stops(&shell("ls ../neighbour | grep secret"), &[ROOT, LANDLOCK]).await;
}

/// Landlock does not hide that something exists.
#[tokio::test]
async fn a_file_is_known_to_exist() {
    Host::new().stops(&shell("stat ../neighbour/secret"), &[ROOT]).await;
}

#[tokio::test]
async fn the_accounts_of_the_host_are_read() {
    Host::new().stops(&shell("grep ^root: /etc/passwd"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn the_hardware_is_looked_at_in_sys() {
    let script = "cat /sys/devices/system/cpu/online";
    Host::new().stops(&shell(script), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn shared_memory_files_of_the_host_are_read() {
    let file = NamedTempFile::new_in("/dev/shm").unwrap();
    fs::write(&file, "secret").unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let script = format!("cat {}", file.path().display());
    Host::new().stops(&shell(script), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn temporary_files_of_the_host_are_listed() {
    let file = NamedTempFile::new_in("/tmp").unwrap();
    let name = file.path().file_name().unwrap().to_str().unwrap();
    Host::new().stops(&shell(format!("ls -a /tmp | grep {name}")), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_made_beside_the_workspace() {
    Host::new().stops(&shell("echo mine > ../beside"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_directory_is_made_beside_the_workspace() {
    Host::new().stops(&shell("mkdir ../beside"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_moved_out_of_the_workspace() {
    Host::new().stops(&shell("touch mine; mv -T mine ../mine"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_of_somebody_else_is_written() {
    Host::new().stops(&shell("echo mine >> ../neighbour/secret"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_of_somebody_else_is_emptied() {
    let host = Host::new();
    let script = format!("truncate -c -s 0 {0}; test -e {0}", host.secret.display());
    host.stops(&shell(script), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_of_somebody_else_is_removed() {
    Host::new().stops(&shell("rm ../neighbour/secret"), &[ROOT, LANDLOCK]).await;
}

/// Landlock does not look at modes.
#[tokio::test]
async fn a_workspace_of_somebody_else_is_opened_to_all() {
    Host::new().stops(&shell("chmod 777 ../neighbour"), &[ROOT]).await;
}

#[tokio::test]
async fn a_file_in_proc_is_written() {
    Host::new().stops(&shell("echo other > /proc/self/comm"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn the_command_line_of_the_kernel_is_read() {
    Host::new().stops(&shell("grep . /proc/cmdline"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn the_symbols_of_the_kernel_are_read() {
    Host::new().stops(&shell("grep -m1 . /proc/kallsyms"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_terminal_device_is_opened() {
    Host::new().stops(&shell("true <> /dev/ptmx"), &[ROOT, LANDLOCK]).await;
}

#[tokio::test]
async fn a_device_node_is_made() {
    use nix::libc::{AT_FDCWD, S_IFCHR, SYS_mknodat};
    // The one device that needs no capability. Others differ in the number only.
    let arguments = format!("{AT_FDCWD}, 'device', {S_IFCHR} | 0600, 0");
    Host::new().stops(&call(SYS_mknodat, &arguments), &[SECCOMP, LANDLOCK]).await;
}

#[tokio::test]
async fn a_file_is_named_by_a_handle() {
    use nix::libc::{AT_FDCWD, SYS_name_to_handle_at};
    let arguments =
        format!("{AT_FDCWD}, '/usr', pack('Ii', 128, 0) . ('x' x 128), pack('i', 0), 0");
    Host::new().stops(&call(SYS_name_to_handle_at, &arguments), &[SECCOMP]).await;
}

#[tokio::test]
async fn a_file_is_opened_by_a_handle() {
    use nix::libc::SYS_open_by_handle_at;
    let arguments = "-1, pack('Ii', 8, 1) . ('x' x 8), 0";
    Host::new().stops(&crate::program::reached(SYS_open_by_handle_at, arguments), &[SECCOMP]).await;
}
