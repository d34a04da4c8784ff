//! Everybody that can be talked to.

use std::{
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::PermissionsExt as _,
            net::{SocketAddr, UnixListener},
        },
    },
};

use nix::libc;

use crate::{
    attempt::{CAPABILITIES, Host, LANDLOCK, NET, ROOT, SECCOMP},
    program::{perl, reached, shell},
};

#[tokio::test]
async fn a_service_of_the_host_is_called() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let program = shell(format!("echo hello > /dev/tcp/127.0.0.1/{port}"));
    Host::new().stops(&program, &[NET, LANDLOCK, SECCOMP]).await;
}

#[tokio::test]
async fn a_service_of_the_host_is_called_by_the_address_of_all_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let program = shell(format!("echo hello > /dev/tcp/0.0.0.0/{port}"));
    Host::new().stops(&program, &[NET, LANDLOCK, SECCOMP]).await;
}

#[tokio::test]
async fn a_service_of_the_host_is_called_over_version_6() {
    // A machine without it has nobody to call.
    let Ok(listener) = TcpListener::bind("[::1]:0") else { return };
    let port = listener.local_addr().unwrap().port();
    let program = shell(format!("echo hello > /dev/tcp/::1/{port}"));
    Host::new().stops(&program, &[NET, LANDLOCK, SECCOMP]).await;
}

/// Landlock does not look at UDP.
#[tokio::test]
async fn a_datagram_is_sent_to_the_host() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    // Sent twice, because it is the second that hears of nobody having taken the first.
    let script = format!("exec 3> /dev/udp/127.0.0.1/{port}; echo a >&3; sleep 0.1; echo b >&3");
    Host::new().stops(&shell(script), &[NET, SECCOMP]).await;
}

/// A way there is all that this machine is known to have.
#[tokio::test]
async fn the_metadata_of_the_cloud_is_asked_for() {
    let program = shell("exec 3> /dev/udp/169.254.169.254/80");
    Host::new().stops(&program, &[NET, SECCOMP]).await;
}

#[tokio::test]
async fn a_name_server_is_asked() {
    let program = shell("exec 3> /dev/udp/192.0.2.53/53");
    Host::new().stops(&program, &[NET, SECCOMP]).await;
}

#[tokio::test]
async fn an_abstract_socket_of_the_host_is_called() {
    let name = format!("escape-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let script = format!(
        r#"use Socket; socket my $socket, PF_UNIX, SOCK_STREAM, 0 or die $!;
         connect $socket, pack('S a*', 1, "\0{name}") or die $!"#
    );
    Host::new().stops(&perl(script), &[NET, LANDLOCK]).await;
}

/// Landlock does not look at sockets that have a path.
#[tokio::test]
async fn a_socket_of_the_host_is_called_by_its_path() {
    let host = Host::new();
    let path = host.folder.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "use Socket; socket my $socket, PF_UNIX, SOCK_STREAM, 0 or die $!;
         connect $socket, pack_sockaddr_un('{}') or die $!",
        path.display()
    );
    host.stops(&perl(script), &[ROOT, SECCOMP]).await;
}

async fn no_socket(family: i32, kind: i32, protocol: i32) {
    let program = reached(libc::SYS_socket, &format!("{family}, {kind}, {protocol}"));
    Host::new().stops(&program, &[SECCOMP]).await;
}

#[tokio::test]
async fn packets_are_made_by_hand() {
    let arguments = format!("{}, {}, {}", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP);
    let program = reached(libc::SYS_socket, &arguments);
    Host::new().stops(&program, &[CAPABILITIES, SECCOMP]).await;
}

#[tokio::test]
async fn frames_are_listened_to() {
    let program = reached(libc::SYS_socket, &format!("{}, {}, 0", libc::AF_PACKET, libc::SOCK_RAW));
    Host::new().stops(&program, &[CAPABILITIES, SECCOMP]).await;
}

#[tokio::test]
async fn the_hypervisor_is_called() {
    no_socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0).await;
}

#[tokio::test]
async fn the_ciphers_of_the_kernel_are_called() {
    no_socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0).await;
}

#[tokio::test]
async fn bluetooth_is_called() {
    no_socket(libc::AF_BLUETOOTH, libc::SOCK_RAW, 1).await;
}

#[tokio::test]
async fn a_rare_protocol_is_loaded() {
    no_socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP).await;
}

#[tokio::test]
async fn events_of_the_hardware_are_listened_to() {
    no_socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT).await;
}
