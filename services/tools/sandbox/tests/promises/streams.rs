use std::time::Duration;

use sandbox::{Child, Exit, Input, Profile, Program, Signal, Size, Streams};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{sleep, timeout},
};

use crate::bench::Bench;

const SIZE: Size = Size { rows: 40, columns: 120 };

async fn start(bench: &Bench, script: &str, streams: Streams) -> Child {
    let (profile, program) = (Profile::default(), Program::bash(script));
    bench.sandbox.spawn_with(&profile, &bench.workspace, &program, streams).await.unwrap()
}

/// Everything up to the end, and how that was.
async fn finish(mut child: Child) -> (Exit, String, String) {
    let (mut output, mut errors) = (String::new(), String::new());
    let ending = async {
        child.output.read_to_string(&mut output).await.unwrap();
        if let Some(stream) = &mut child.errors {
            stream.read_to_string(&mut errors).await.unwrap();
        }
        child.wait().await.unwrap()
    };
    let exit = timeout(Duration::from_secs(30), ending).await.expect("the script ends");
    (exit, output, errors)
}

/// Reads until what was read has `wanted` in it.
async fn hear(child: &mut Child, wanted: &str) -> String {
    let mut heard = Vec::new();
    let hearing = async {
        while !String::from_utf8_lossy(&heard).contains(wanted) {
            let read = child.output.read_buf(&mut heard).await.unwrap();
            assert_ne!(read, 0, "the end instead of {wanted:?}: {heard:?}");
        }
    };
    timeout(Duration::from_secs(30), hearing).await.expect("it is said");
    String::from_utf8(heard).unwrap()
}

#[tokio::test]
async fn three_streams_are_kept_apart() {
    let bench = Bench::new();
    let script = "read line; echo got $line; echo wrong >&2; cat; echo over";
    let mut child = start(&bench, script, Streams::Piped).await;
    let mut input = child.input.take().unwrap();
    input.write_all(b"one\n").await.unwrap();
    assert_eq!(hear(&mut child, "one\n").await, "got one\n");
    input.write_all(b"two\n").await.unwrap();
    input.close().await.unwrap();
    let (exit, output, errors) = finish(child).await;
    assert_eq!((exit, output.as_str(), errors.as_str()), (Exit::Code(0), "two\nover\n", "wrong\n"));
}

#[tokio::test]
async fn more_input_than_a_pipe_holds_arrives() {
    let bench = Bench::new();
    let mut child = start(&bench, "wc -c", Streams::Piped).await;
    let mut input = child.input.take().unwrap();
    input.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
    input.close().await.unwrap();
    assert_eq!(finish(child).await.1, "1048576\n");
}

#[tokio::test]
async fn input_that_nobody_reads_is_an_error_and_no_harm() {
    let bench = Bench::new();
    let mut child = start(&bench, "exec <&-; echo closed; sleep 1000", Streams::Piped).await;
    hear(&mut child, "closed").await;
    // The init, which made the pipe, may let go of it a moment after the command does.
    let input = child.input.as_mut().unwrap();
    let refused = async {
        loop {
            match input.write_all(b"hello").await {
                Ok(()) => sleep(Duration::from_millis(1)).await,
                Err(error) => break error,
            }
        }
    };
    let error = timeout(Duration::from_secs(30), refused).await.expect("the pipe breaks");
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    child.kill().await.unwrap();
}

#[tokio::test]
async fn nothing_else_is_inherited_by_what_reads_a_pipe_or_sits_at_a_terminal() {
    let bench = Bench::new();
    for streams in [Streams::Piped, Streams::Terminal(SIZE)] {
        let child = start(&bench, "cd /proc/self/fd && echo *", streams).await;
        assert_eq!(finish(child).await.1.trim_end(), "0 1 2 3");
    }
}

#[tokio::test]
async fn a_terminal_is_one_and_leads_a_session_of_its_own() {
    let bench = Bench::new();
    let script = "test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo $TERM
        read -r _ _ _ _ group session _ < /proc/$$/stat
        [ $group = $$ ] && [ $session = $$ ] && echo leads; echo typed > /dev/tty";
    let child = start(&bench, script, Streams::Terminal(SIZE)).await;
    let (exit, output, _) = finish(child).await;
    let lines = ["/dev/pts/0", "40 120", "xterm-256color", "leads", "typed", ""];
    assert_eq!((exit, output), (Exit::Code(0), lines.join("\r\n")));
}

#[tokio::test]
async fn keys_of_a_terminal_do_what_they_do() {
    let bench = Bench::new();
    let script = "trap 'go=on; echo interrupted' INT; echo ready
        until [ $go ]; do sleep 0.01; done; cat; echo over";
    let mut child = start(&bench, script, Streams::Terminal(SIZE)).await;
    let mut input = child.input.take().unwrap();
    hear(&mut child, "ready").await;
    input.write_all(b"\x03").await.unwrap();
    hear(&mut child, "interrupted").await;
    input.write_all(b"hello\n").await.unwrap();
    hear(&mut child, "hello\r\nhello").await;
    input.close().await.unwrap();
    let (exit, output, _) = finish(child).await;
    assert_eq!((exit, output.contains("over")), (Exit::Code(0), true), "{output}");
}

#[tokio::test]
async fn a_terminal_is_resized_and_says_so() {
    let bench = Bench::new();
    let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done";
    let mut child = start(&bench, script, Streams::Terminal(SIZE)).await;
    hear(&mut child, "ready").await;
    assert!(child.resize(Size { rows: 7, columns: 9 }).unwrap());
    assert_eq!(finish(child).await.1.trim(), "7 9");

    let piped = start(&bench, "true", Streams::Piped).await;
    assert!(!piped.resize(SIZE).unwrap());
}

#[tokio::test]
async fn no_terminal_of_the_host_is_in_sight() {
    let bench = Bench::new();
    let child = start(&bench, "ls /dev/pts", Streams::Terminal(SIZE)).await;
    assert_eq!(finish(child).await.1, "0  ptmx\r\n");
    bench.fails("ls /dev/pts").await;
    bench.fails("echo x > /dev/tty").await;
}

#[tokio::test]
async fn terminals_cannot_be_used_up() {
    let bench = Bench::new();
    let script = r#"perl -e 'my @all; while (open my $one, "+<", "/dev/ptmx") { push @all, $one }
        print scalar @all'"#;
    let child = start(&bench, script, Streams::Terminal(SIZE)).await;
    assert_eq!(finish(child).await.1, "15");
}

#[tokio::test]
async fn nothing_can_be_typed_into_a_terminal_of_its_own() {
    let bench = Bench::new();
    let script =
        r#"perl -e 'my $key = "x"; print syscall(16, 0, 0x5412, $key) == -1 ? $! + 0 : 0'"#;
    let child = start(&bench, script, Streams::Terminal(SIZE)).await;
    assert_eq!(finish(child).await.1, "1");
}

#[tokio::test]
async fn a_signal_reaches_the_command() {
    let bench = Bench::new();
    for (signal, name) in [
        (Signal::Int, "INT"),
        (Signal::Term, "TERM"),
        (Signal::Hup, "HUP"),
        (Signal::Usr1, "USR1"),
        (Signal::Usr2, "USR2"),
    ] {
        let idle = "while :; do sleep 0.01; done";
        let script = format!("trap 'echo {name}; exit 3' {name}; echo ready; {idle}");
        for streams in [Streams::Merged, Streams::Piped, Streams::Terminal(SIZE)] {
            let mut child = start(&bench, &script, streams).await;
            hear(&mut child, "ready").await;
            child.signal(signal).await.unwrap();
            let (exit, output, _) = finish(child).await;
            assert_eq!((exit, output.trim().ends_with(name)), (Exit::Code(3), true), "{output}");
        }
    }
}

#[tokio::test]
async fn a_signal_reaches_what_the_command_started() {
    let bench = Bench::new();
    let script = r#"trap : USR1
        bash -c 'trap "echo child; exit" USR1; echo ready; while :; do sleep 0.01; done' &
        wait; wait; echo parent"#;
    let mut child = start(&bench, script, Streams::Piped).await;
    hear(&mut child, "ready").await;
    child.signal(Signal::Usr1).await.unwrap();
    let (exit, output, _) = finish(child).await;
    assert_eq!((exit, output.as_str()), (Exit::Code(0), "child\nparent\n"));
}

#[tokio::test]
async fn a_signal_that_kills_is_reported_and_one_for_the_dead_is_nothing() {
    let bench = Bench::new();
    let mut child = start(&bench, "trap '' TERM; echo ready; sleep 1000", Streams::Merged).await;
    hear(&mut child, "ready").await;
    child.signal(Signal::Kill).await.unwrap();
    assert_eq!(child.wait().await.unwrap(), Exit::Signal(9));
    child.signal(Signal::Term).await.unwrap();
}

#[tokio::test]
async fn a_wait_that_is_given_up_can_be_begun_again() {
    let bench = Bench::new();
    let mut child = start(&bench, "read line; exit 5", Streams::Piped).await;
    for _ in 0..3 {
        assert!(timeout(Duration::from_millis(20), child.wait()).await.is_err());
    }
    drop::<Option<Input>>(child.input.take());
    assert_eq!(child.wait().await.unwrap(), Exit::Code(5));
}
