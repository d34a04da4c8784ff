use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use expect_test::expect;
use proto::{event::v1::Payload, tools::v1::Call};
use serde_json::json;
use sqlx::PgPool;
use tokio::time::{sleep, timeout};

use crate::world::World;

#[sqlx::test(migrations = false)]
async fn a_command_runs_in_the_sandbox_and_says_so_first(db: PgPool) {
    let world = World::start(db).await;
    let call = world.bash("echo hello; echo oops >&2; pwd; exit 3");
    let ended = world.execute(call.clone()).await.unwrap();
    assert_eq!(ended.names(), ["sandbox.applied", "tool.progress"]);
    assert_eq!(ended.data(), json!({ "output": "hello\noops\n/workspace\n", "exit_code": 3 }));
    assert_eq!(ended.progress(), "hello\noops\n/workspace\n");
    for fact in &ended.facts {
        assert_eq!(fact.session_id, call.session_id);
        assert_eq!(fact.tool_call_id, call.tool_call_id);
        assert_eq!((fact.turn_id.as_str(), fact.step_id.as_str()), ("turn_1", "step_1"));
    }
    let Some(Payload::SandboxApplied(sandbox)) = &ended.facts[0].payload else { panic!() };
    assert_eq!((sandbox.tier.as_str(), sandbox.mode.as_str()), ("A", "strict"));
    // A control group is the one layer that only root, or somebody with a delegated one, has.
    assert!(sandbox.layers.iter().all(|layer| layer.applied || layer.name == "cgroup"));
    assert_eq!(sandbox.network, ["none"]);
    assert_eq!(sandbox.limits.unwrap().wall_ms, 120_000);
}

#[sqlx::test(migrations = false)]
async fn a_workspace_lasts_and_is_shared_with_nobody(db: PgPool) {
    let mut world = World::start(db).await;
    let first = world.bash("echo kept > note");
    world.execute(first.clone()).await.unwrap();
    let mut again = world.bash("cat note");
    again.workspace_id = first.workspace_id.clone();
    assert_eq!(world.execute(again.clone()).await.unwrap().data()["output"], "kept\n");

    let elsewhere = world.bash("ls; ls .. | head -30");
    let ended = world.execute(elsewhere).await.unwrap();
    assert!(!ended.data()["output"].as_str().unwrap().contains("ws_"));

    let path = world.workspaces.join("acme").join(&first.workspace_id);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);

    world.caller.tenant = "other".parse().unwrap();
    let mut stolen = world.bash("cat note");
    stolen.workspace_id = first.workspace_id;
    assert_eq!(world.execute(stolen).await.unwrap().data()["exit_code"], 1);
}

#[sqlx::test(migrations = false)]
async fn two_first_calls_make_one_workspace(db: PgPool) {
    let world = World::start(db).await;
    let first = world.bash("touch first; id -u; cat /proc/self/uid_map");
    let mut second = world.bash("touch second");
    second.workspace_id = first.workspace_id.clone();
    let (one, other) = tokio::join!(world.execute(first.clone()), world.execute(second));
    assert_eq!(
        (&one.unwrap().data()["exit_code"], &other.unwrap().data()["exit_code"]),
        (&json!(0), &json!(0))
    );
    let names = std::fs::read_dir(world.workspaces.join("acme").join(&first.workspace_id)).unwrap();
    assert_eq!(names.count(), 2);
    let all = std::fs::read_dir(world.workspaces.join("acme")).unwrap();
    let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name != ".locks").collect::<Vec<_>>(), [first.workspace_id]);
}

#[sqlx::test(migrations = false)]
async fn a_command_that_takes_too_long_is_ended(db: PgPool) {
    let world = World::start(db).await;
    let input = json!({ "command": "echo begun; sleep 60; echo done", "timeout_ms": 300 });
    let call = Call { input_json: input.to_string(), ..world.bash("") };
    let ended = world.execute(call).await.unwrap();
    assert_eq!(ended.error(), ("timeout", "ended after 300 ms; until then it printed:\nbegun\n"));
    let duration = ended.outcome.metadata.unwrap().duration_ms;
    assert!((300..5_000).contains(&duration), "{duration} ms");
}

#[sqlx::test(migrations = false)]
async fn signals_look_as_in_a_shell(db: PgPool) {
    let world = World::start(db).await;
    let ended = world.execute(world.bash("kill -SEGV $$")).await.unwrap();
    assert_eq!(ended.data(), json!({ "output": "", "exit_code": 139, "signal": 11 }));
}

#[sqlx::test(migrations = false)]
async fn dropping_the_stream_ends_everything_the_command_started(db: PgPool) {
    let world = World::start(db).await;
    let call = world
        .bash("(setsid bash -c 'while :; do echo beat >> beats; sleep 0.02; done' &); sleep 1000");
    let answers = world.begin(call.clone()).await.unwrap();
    let beating = async {
        while world.read(&call, "beats").is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), beating).await.expect("a heart that beats");
    drop(answers);

    let still = async {
        loop {
            let before = world.read(&call, "beats");
            sleep(Duration::from_millis(200)).await;
            if world.read(&call, "beats") == before {
                break;
            }
        }
    };
    timeout(Duration::from_secs(5), still).await.expect("the tree is gone");
}

#[sqlx::test(migrations = false)]
async fn long_output_is_cut_in_the_middle(db: PgPool) {
    let world = World::start(db).await;
    let script = "echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last";
    let ended = world.execute(world.bash(script)).await.unwrap();
    let output = ended.data()["output"].as_str().unwrap().to_owned();
    assert!(output.starts_with("first\nxxx") && output.ends_with("xxx\nlast\n"));
    assert!(output.contains("\n\n[4967244 bytes omitted]\n\n"), "{}", &output[16_300..16_500]);
    assert!(output.len() < 33_000);
    assert!(ended.progress().len() <= 32 * 1024);
    assert_eq!(ended.names().last(), Some(&"output.spilled"));
    let metadata = ended.outcome.metadata.unwrap();
    assert!(metadata.truncated);
    assert_eq!(metadata.output_bytes, 5_000_012);
    assert_eq!(metadata.output_path, format!("/outputs/{}", metadata.output_ref));
}

#[sqlx::test(migrations = false)]
async fn of_more_than_is_kept_the_beginning_is_kept(db: PgPool) {
    let world = World::with(db, &["--output-bytes", "1000000"]).await;
    let ended = world.execute(world.bash("head -c 5000000 /dev/zero")).await.unwrap();
    assert_eq!(ended.names()[2..], ["output.spilled", "output.truncated"]);
    let Some(Payload::OutputTruncated(cut)) = &ended.facts[3].payload else { panic!() };
    assert_eq!((cut.total_bytes, cut.kept_bytes), (5_000_000, 1_000_000));
}

#[sqlx::test(migrations = false)]
async fn secrets_of_the_host_are_not_shown(db: PgPool) {
    let secrets = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secrets.path(), "correct-horse\n").unwrap();
    let world = World::with(db, &["--redact-file", secrets.path().to_str().unwrap()]).await;
    let script = "printf 'key=corr'; sleep 0.2; echo 'ect-horse!'";
    let ended = world.execute(world.bash(script)).await.unwrap();
    assert_eq!(ended.data()["output"], "key=[redacted]!\n");
    assert_eq!(ended.progress(), "key=[redacted]!\n");
}

#[sqlx::test(migrations = false)]
async fn output_that_is_no_text_becomes_text(db: PgPool) {
    let world = World::start(db).await;
    let ended = world.execute(world.bash(r"printf 'a\0b\xffc\xc3'")).await.unwrap();
    assert_eq!(ended.data()["output"], "a\u{fffd}b\u{fffd}c\u{fffd}");
    assert_eq!(ended.progress(), "a\u{fffd}b\u{fffd}c\u{fffd}");
}

#[sqlx::test(migrations = false)]
async fn progress_arrives_while_the_command_runs(db: PgPool) {
    let world = World::start(db).await;
    let call = world.bash("for n in 1 2 3; do echo $n; sleep 0.3; done");
    let ended = world.execute(call).await.unwrap();
    let progress: Vec<_> =
        ended.names().into_iter().filter(|name| *name == "tool.progress").collect();
    assert_eq!(progress.len(), 3);
    expect!["1\n2\n3\n"].assert_eq(&ended.progress());
}
