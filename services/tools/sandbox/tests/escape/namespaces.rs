//! Other mounts and other namespaces.

use nix::libc;

use crate::{
    attempt::{CAPABILITIES, Host, LANDLOCK, SECCOMP},
    program::{call, perl},
};

#[tokio::test]
async fn a_file_system_is_mounted() {
    let program = call(libc::SYS_mount, "'none', '/tmp', 'tmpfs', 0, 0");
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES, LANDLOCK]).await;
}

#[tokio::test]
async fn the_system_is_made_writable() {
    let arguments = format!(
        "'none', '/usr', 0, {}, 0",
        libc::MS_REMOUNT | libc::MS_BIND | libc::MS_NOSUID | libc::MS_NODEV
    );
    let program = call(libc::SYS_mount, &arguments);
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES, LANDLOCK]).await;
}

#[tokio::test]
async fn control_groups_are_mounted() {
    let program = call(libc::SYS_mount, "'none', '/tmp', 'cgroup2', 0, 0");
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES, LANDLOCK]).await;
}

#[tokio::test]
async fn a_mount_is_removed() {
    let program = call(libc::SYS_umount2, &format!("'/tmp', {}", libc::MNT_DETACH));
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES, LANDLOCK]).await;
}

#[tokio::test]
async fn the_root_is_swapped() {
    let program = perl(format!("chdir '/tmp'; call({}, '.', '.')", libc::SYS_pivot_root));
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES, LANDLOCK]).await;
}

#[tokio::test]
async fn the_root_is_changed() {
    let program = call(libc::SYS_chroot, "'/tmp'");
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES]).await;
}

#[tokio::test]
async fn a_file_system_is_opened() {
    let program = call(libc::SYS_fsopen, "'tmpfs', 0");
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES]).await;
}

#[tokio::test]
async fn a_tree_is_copied() {
    const OPEN_TREE_CLONE: i32 = 1;
    let arguments = format!("{}, '/tmp', {OPEN_TREE_CLONE}", libc::AT_FDCWD);
    let program = call(libc::SYS_open_tree, &arguments);
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES]).await;
}

#[tokio::test]
async fn a_user_namespace_is_nested() {
    let program = call(libc::SYS_unshare, &libc::CLONE_NEWUSER.to_string());
    Host::new().stops(&program, &[SECCOMP]).await;
}

#[tokio::test]
async fn a_mount_namespace_is_entered() {
    let program = call(libc::SYS_unshare, &libc::CLONE_NEWNS.to_string());
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES]).await;
}

#[tokio::test]
async fn a_net_namespace_is_entered() {
    let program = call(libc::SYS_unshare, &libc::CLONE_NEWNET.to_string());
    Host::new().stops(&program, &[SECCOMP, CAPABILITIES]).await;
}

#[tokio::test]
async fn a_child_is_born_into_a_user_namespace() {
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    let program = call(libc::SYS_clone, &format!("{flags}, 0, 0, 0, 0"));
    Host::new().stops(&program, &[SECCOMP]).await;
}

#[tokio::test]
async fn a_child_is_born_by_the_call_whose_flags_cannot_be_checked() {
    let arguments =
        format!("pack('Q11', {}, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88", libc::CLONE_NEWUSER);
    Host::new().stops(&call(libc::SYS_clone3, &arguments), &[SECCOMP]).await;
}

#[tokio::test]
async fn a_namespace_is_joined() {
    let script = format!(
        "open my $file, '<', '/proc/self/ns/net' or die; call({}, fileno $file, 0)",
        libc::SYS_setns
    );
    Host::new().stops(&perl(script), &[SECCOMP, CAPABILITIES]).await;
}
