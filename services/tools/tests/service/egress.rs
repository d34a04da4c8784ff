//! Commands that reach hosts, and those that try to without being allowed to.

use proto::{
    event::v1::Payload,
    tools::v1::{Call, Permissions, rule::Action},
};
use sqlx::PgPool;
use tokio::net::{TcpListener, UdpSocket};

use crate::{
    site::Site,
    web_fetch::{LOCAL, violations},
    world::{Ended, World, rule},
};

/// A command of an agent that was granted these hosts.
fn granted(world: &World, hosts: &[&str], command: &str) -> Call {
    let mut call = world.bash(command);
    call.permissions = Some(Permissions {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        rules: vec![rule("bash", "*", Action::Allow)],
        ..Permissions::default()
    });
    call
}

async fn run(world: &World, hosts: &[&str], command: &str) -> Ended {
    world.execute(granted(world, hosts, command)).await.unwrap()
}

fn output(ended: &Ended) -> String {
    ended.data()["output"].as_str().unwrap().to_owned()
}

fn refusals(ended: &Ended) -> Vec<String> {
    let violations = violations(ended).into_iter();
    violations.filter(|violation| violation.layer == "egress").map(|it| it.detail).collect()
}

/// The name of this machine is one that programs do not use a proxy for.
const CURL: &str = "curl -sS -m 20 --noproxy ''";

#[sqlx::test(migrations = false)]
async fn a_granted_host_is_reached_through_the_proxy(db: PgPool) {
    let world = World::with(db, LOCAL).await;
    let (site, encrypted) = (Site::start().await, Site::encrypted().await);
    site.html("/", "plain");
    encrypted.html("/", "encrypted");
    let command = format!(
        "{CURL} {}; echo; {CURL} -k https://localhost:{}/; echo; echo $http_proxy $HTTPS_PROXY",
        site.url("/"),
        encrypted.port
    );
    let ended = run(&world, &["localhost"], &command).await;
    assert_eq!(output(&ended), "plain\nencrypted\nhttp://127.0.0.1:3128 http://127.0.0.1:3128\n");
    let Some(Payload::SandboxApplied(applied)) = &ended.facts[0].payload else { panic!() };
    assert_eq!((applied.tier.as_str(), &applied.network[..]), ("A", &["localhost".into()][..]));
    let metadata = ended.outcome.metadata.as_ref().unwrap();
    let reached: Vec<_> = metadata.reached.iter().map(|it| (it.host.as_str(), it.port)).collect();
    let mut expected = [site.port, encrypted.port].map(|port| ("localhost", i32::from(port)));
    expected.sort();
    assert_eq!(reached, expected);
    assert!(metadata.reached.iter().all(|it| it.address == "127.0.0.1" && it.received_bytes > 0));
    assert!(refusals(&ended).is_empty());
}

#[sqlx::test(migrations = false)]
async fn a_command_without_grants_has_no_proxy(db: PgPool) {
    let world = World::with(db, LOCAL).await;
    let site = Site::start().await;
    site.html("/", "secret");
    let url = site.url("/");
    let command = format!(
        "env | grep -ic proxy; {CURL} {url}; {CURL} -x http://127.0.0.1:3128 {url}; echo $?"
    );
    let ended = run(&world, &[], &command).await;
    let printed = output(&ended);
    assert!(printed.starts_with("0\n") && printed.ends_with("7\n"), "{printed}");
    assert!(site.heard().is_empty());
    let Some(Payload::SandboxApplied(applied)) = &ended.facts[0].payload else { panic!() };
    assert_eq!(applied.network, ["none"]);
}

#[sqlx::test(migrations = false)]
async fn what_was_not_granted_is_refused_and_on_record(db: PgPool) {
    let world = World::with(db, LOCAL).await;
    let (site, encrypted) = (Site::start().await, Site::encrypted().await);
    site.html("/", "secret");
    encrypted.html("/", "secret");
    let (plain, tls) = (site.port, encrypted.port);
    let server_name = format!(
        "echo | openssl s_client -proxy 127.0.0.1:3128 -connect localhost:{tls} -servername other.example 2>&1 | grep -o 'unrecognized name'"
    );
    let refused_name = format!("a connection to localhost:{tls} asks for another host by TLS");
    for (command, refusal) in [
        (format!("{CURL} http://other.example/"), "other.example:80 was not granted".to_owned()),
        (format!("{CURL} https://other.example/"), "other.example:443 was not granted".into()),
        (format!("{CURL} http://127.1:{plain}/"), format!("127.0.0.1:{plain} was not granted")),
        (
            format!("{CURL} -H 'host: other.example' http://localhost:{plain}/"),
            format!("a request to localhost:{plain} names another host in its header"),
        ),
        (server_name, refused_name),
    ] {
        let ended = run(&world, &["localhost"], &command).await;
        assert_eq!(refusals(&ended), [refusal], "{command}: {}", output(&ended));
        assert!(!output(&ended).contains("secret"));
    }
    assert!(site.heard().is_empty() && encrypted.heard().is_empty());

    // The address of what was granted is checked as well.
    let world = World::start(world.database()).await;
    let ended = run(&world, &["localhost"], &format!("{CURL} http://localhost:{plain}/")).await;
    let [refusal] = &refusals(&ended)[..] else { panic!("{:?}", ended.facts) };
    assert!(refusal.starts_with("localhost may not be reached: "), "{refusal}");
    assert!(site.heard().is_empty());
}

/// A grant opens one door and no other: everything else is as closed as without it.
#[sqlx::test(migrations = false)]
async fn nothing_goes_past_the_proxy(db: PgPool) {
    let world = World::with(db, LOCAL).await;
    let site = Site::start().await;
    site.html("/", "secret");
    let (listener, datagrams) = (
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        UdpSocket::bind("127.0.0.1:0").await.unwrap(),
    );
    let tcp = listener.local_addr().unwrap().port();
    let udp = datagrams.local_addr().unwrap().port();
    for command in [
        format!("curl -sS -m 5 --noproxy '*' {}", site.url("/")),
        format!("echo hello > /dev/tcp/127.0.0.1/{tcp}"),
        "exec 3<> /dev/tcp/192.0.2.1/443".to_owned(),
        "exec 3> /dev/udp/192.0.2.53/53 && echo x >&3".to_owned(),
        "exec 3> /dev/udp/169.254.169.254/80 && echo x >&3".to_owned(),
        "getent hosts localhost.example".to_owned(),
        "perl -e 'socket(my $s, 2, 3, 1) or die $!'".to_owned(),
    ] {
        let ended = run(&world, &["localhost", "192.0.2.1", "169.254.169.254"], &command).await;
        assert_ne!(ended.data()["exit_code"], 0, "{command}: {}", output(&ended));
    }
    run(&world, &["localhost"], &format!("echo x > /dev/udp/127.0.0.1/{udp}")).await;
    let mut buffer = [0; 8];
    assert!(datagrams.try_recv(&mut buffer).is_err());
    assert!(site.heard().is_empty());
    // The same through the door.
    let ended = run(&world, &["localhost"], &format!("{CURL} {}", site.url("/"))).await;
    assert_eq!(output(&ended), "secret");
}
