use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    os::fd::AsRawFd as _,
};

use nix::{
    libc,
    sched::{CloneFlags, unshare},
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket},
};

use crate::profile::PROXY_PORT;

/// Enters a network that has nothing but a loopback of its own, which is switched on so that a
/// command can talk to a server it started itself.
pub fn enter() -> nix::Result<String> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    raise_loopback()?;
    Ok("loopback only".into())
}

/// Opens the door for a proxy. Nothing of it stays here: whoever serves it is outside, and so
/// are the connections that it makes.
pub fn listen() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT))
}

/// Asks the kernel over netlink to set the flag `IFF_UP` on interface 1.
fn raise_loopback() -> nix::Result<()> {
    const LOOPBACK: i32 = 1;
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;

    let mut message = Vec::with_capacity(32);
    // struct nlmsghdr
    message.extend(32u32.to_ne_bytes());
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
    message.extend([0; 8]);
    // struct ifinfomsg
    message.extend([0; 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend((libc::IFF_UP as u32).to_ne_bytes());
    message.extend((libc::IFF_UP as u32).to_ne_bytes());
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;

    // struct nlmsghdr and the negated errno of the answer
    let mut answer = [0; 256];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    match answer[..length].get(16..).and_then(|rest| rest.first_chunk()) {
        Some([0, 0, 0, 0]) => Ok(()),
        Some(errno) => Err(nix::Error::from_raw(-i32::from_ne_bytes(*errno))),
        None => Err(nix::Error::EPROTO),
    }
}
