use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
};

use expect_test::expect;
use nix::unistd::{dup, geteuid};
use sandbox::{Exit, Profile, Program};
use tokio::{io::AsyncReadExt as _, net::TcpListener};

use crate::bench::Bench;

#[tokio::test]
async fn the_workspace_is_home_and_lasts() {
    let bench = Bench::new();
    assert_eq!(
        bench.output("echo kept > note; pwd; echo $HOME; id -un").await,
        "/workspace\n/workspace\nagent"
    );
    assert_eq!(bench.read("note"), "kept\n");
    assert_eq!(bench.output("cat note").await, "kept");
}

#[tokio::test]
async fn the_host_is_out_of_sight() {
    let bench = Bench::new();
    let secret = bench.folder.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let output = bench.fails(&format!("cat {}", secret.display())).await;
    assert!(output.contains("No such file"), "{output}");

    expect![[r#"
        bin
        dev
        etc
        proc
        tmp
        usr
        workspace"#]]
    .assert_eq(&bench.output("ls / | grep -v -e '^lib' -e '^sbin$'").await);
    assert_eq!(bench.output("ls /tmp /.host 2>&1 | grep -v host | wc -l").await, "1");
    assert_eq!(bench.output("cat /etc/passwd").await, "agent:x:1000:1000::/workspace:/bin/bash");
}

#[tokio::test]
async fn a_link_in_the_workspace_leads_nowhere() {
    let bench = Bench::new();
    let secret = bench.folder.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    std::os::unix::fs::symlink(&secret, bench.workspace.join("link")).unwrap();
    bench.fails("cat link").await;
    bench.fails("cat ../secret").await;
}

#[tokio::test]
async fn nothing_outside_the_workspace_can_be_written() {
    let bench = Bench::new();
    for place in ["/", "/usr", "/usr/bin", "/etc", "/dev", "/proc/sys/kernel/core_pattern", "/bin"]
    {
        let (exit, output) = bench.run(&format!("echo x > {place}/file || echo x > {place}")).await;
        assert_ne!(exit, Exit::Code(0), "{place}: {output}");
    }
    assert_eq!(bench.output("echo x > /tmp/file && cat /tmp/file").await, "x");
    bench.fails("cat /tmp/file").await;
}

#[tokio::test]
async fn there_is_no_network_but_its_own_loopback() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let bench = Bench::new();
    bench.fails(&format!("echo hello > /dev/tcp/127.0.0.1/{port}")).await;
    let output = bench.fails("echo hello > /dev/tcp/192.0.2.1/80").await;
    assert!(output.contains("unreachable"), "{output}");
    assert_eq!(bench.output("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo");
    assert_eq!(bench.output("cat /proc/net/route | tail -n +2 | wc -l").await, "0");
}

#[tokio::test]
async fn other_processes_are_out_of_sight() {
    let bench = Bench::new();
    let seen = bench.output("ls /proc | grep -c '^[0-9]'").await;
    assert!(seen.parse::<u32>().unwrap() <= 5, "{seen} processes");
    bench.fails(&format!("kill -0 {}", std::process::id())).await;
    // Pid 1 holds the control socket.
    bench.fails("ls /proc/1/fd/").await;
    bench.fails("cat /proc/1/mem").await;
    assert_eq!(bench.output("kill -9 1; echo alive").await, "alive");
}

#[tokio::test]
async fn the_environment_is_clean() {
    let bench = Bench::new();
    let env = BTreeMap::from([("GREETING".into(), "hello".into())]);
    let profile = Profile { env, ..Profile::default() };
    let (_, output) = bench.run_in(&profile, "env | grep -v -e ^_= -e ^SHLVL= | sort").await;
    expect![[r#"
        GREETING=hello
        HOME=/workspace
        LANG=C.UTF-8
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        PWD=/workspace
        TERM=dumb
    "#]]
    .assert_eq(&output);
    assert_eq!(
        bench.output("hostname 2>/dev/null || cat /proc/sys/kernel/hostname").await,
        "sandbox"
    );
}

#[tokio::test]
async fn no_file_is_inherited() {
    let bench = Bench::new();
    let _inheritable = dup(fs::File::open("/etc/hostname").unwrap()).unwrap();
    assert_eq!(bench.output("cd /proc/self/fd && echo *").await, "0 1 2 3");
    assert_eq!(bench.output("cat; readlink /proc/self/fd/0").await, "/dev/null");
}

#[tokio::test]
async fn setuid_programs_gain_nothing() {
    let bench = Bench::new();
    let program = bench.workspace.join("whoami");
    fs::copy("/usr/bin/id", &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(bench.output("./whoami -u; ./whoami -ru").await, "1000\n1000");
    assert_eq!(
        bench.output("grep -h -e ^CapBnd -e ^CapEff -e ^NoNew /proc/self/status").await,
        "CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1"
    );
    bench.fails("su -c true < /dev/null").await;
}

#[tokio::test]
async fn root_runs_commands_as_the_owner_of_the_workspace() {
    let bench = Bench::new();
    let outside = if geteuid().is_root() { 65_534 } else { geteuid().as_raw() };
    let map = bench.output("cat /proc/self/uid_map").await;
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["1000", &outside.to_string(), "1"]);
}

#[tokio::test]
async fn only_named_directories_of_the_host_are_shared() {
    let bench = Bench::new();
    let shared = bench.folder.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("book"), "words").unwrap();
    for path in [bench.folder.path(), &shared] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let profile = Profile { read_only: vec![shared.clone()], ..Profile::default() };
    let script = format!("cd {}; cat book; touch new", shared.display());
    let (exit, output) = bench.run_in(&profile, &script).await;
    assert!(output.starts_with("words") && output.contains("Read-only"), "{output}");
    assert_eq!(exit, Exit::Code(1));
}

#[tokio::test]
async fn output_and_errors_arrive_in_order() {
    let bench = Bench::new();
    let script = "for n in 1 2 3; do echo out $n; echo error $n >&2; done";
    let program = Program::new("sh", &["-c", script]);
    let mut child =
        bench.sandbox.spawn(&Profile::default(), &bench.workspace, &program).await.unwrap();
    let mut output = String::new();
    child.output.read_to_string(&mut output).await.unwrap();
    assert_eq!(output, "out 1\nerror 1\nout 2\nerror 2\nout 3\nerror 3\n");
}
