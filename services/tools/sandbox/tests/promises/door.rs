//! The door for a proxy, which is all that a command may ever have of a network.

use std::{io::Read as _, net::TcpListener, thread};

use sandbox::{Exit, Layer, PROXY_PORT, Profile, Tier};

use crate::bench::Bench;

fn with_door(profile: Profile) -> Profile {
    Profile { proxy: true, ..profile }
}

#[tokio::test]
async fn what_a_command_says_at_its_door_is_heard_outside() {
    let bench = Bench::new();
    let script = format!("echo hello > /dev/tcp/127.0.0.1/{PROXY_PORT}");
    let mut child = bench.start(&with_door(Profile::default()), &script).await.unwrap();
    let door = child.proxy.take().expect("the door is handed over");
    let hearing = thread::spawn(move || {
        let mut said = String::new();
        door.accept().unwrap().0.read_to_string(&mut said).unwrap();
        said
    });
    assert_eq!(child.wait().await.unwrap(), Exit::Code(0));
    assert_eq!(hearing.join().unwrap(), "hello\n");
}

#[tokio::test]
async fn a_door_is_there_only_if_asked_for() {
    let bench = Bench::new();
    let script = format!("echo hello > /dev/tcp/127.0.0.1/{PROXY_PORT}");
    let mut child = bench.start(&Profile::default(), &script).await.unwrap();
    assert!(child.proxy.is_none());
    assert_eq!(child.wait().await.unwrap(), Exit::Code(1));
}

/// Beside the door there is nothing: what listens on the same port of the host is not it, and
/// nothing of it is left in the hands of the command.
#[tokio::test]
async fn a_door_leads_to_its_own_sandbox_only() {
    let bench = Bench::new();
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    let script = format!(
        "ls -l /proc/self/fd /proc/1/fd 2>&1 | grep socket && exit 9; \
         ! echo x > /dev/tcp/127.0.0.1/{port}; ! echo x > /dev/tcp/192.0.2.1/80"
    );
    let profile = with_door(Profile::default());
    let mut children = Vec::new();
    for _ in 0..2 {
        children.push(bench.start(&profile, &script).await.unwrap());
    }
    for child in &mut children {
        assert_eq!(child.wait().await.unwrap(), Exit::Code(0));
        let door = child.proxy.take().unwrap();
        door.set_nonblocking(true).unwrap();
        assert!(door.accept().is_err(), "nobody called");
    }
    elsewhere.set_nonblocking(true).unwrap();
    assert!(elsewhere.accept().is_err(), "nobody called");
}

/// A door in the host's own network would be everybody's.
#[tokio::test]
async fn there_is_no_door_without_a_network_of_its_own() {
    let bench = Bench::new();
    let profile = Profile::at_least(Tier::C).without(&[Layer::NetNamespace]);
    let mut child = bench.start(&with_door(profile), "true").await.unwrap();
    assert!(child.proxy.is_none());
    assert_eq!(child.wait().await.unwrap(), Exit::Code(0));
}
