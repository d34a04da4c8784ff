//! On a wire that does as it is told.

use std::{cell::RefCell, collections::VecDeque, future::poll_fn, rc::Rc};

use proptest::{collection::vec, prelude::*};

use super::*;

/// What a wire does with what it is given.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// Nothing yet, and at once when it is asked again.
    Wait,
    Take(usize),
    Fail,
}

/// Does what is in the script, and takes everything when that has ended.
struct Wire {
    script: VecDeque<Answer>,
    arrived: Arrived,
}

/// Every write by itself.
#[derive(Clone, Default)]
struct Arrived(Rc<RefCell<Vec<Vec<u8>>>>);

impl Arrived {
    fn writes(&self) -> Vec<Vec<u8>> {
        self.0.borrow().clone()
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.borrow().concat()
    }
}

impl Write for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.script.pop_front().unwrap_or(Answer::Take(usize::MAX)) {
            Answer::Wait => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Answer::Take(most) => {
                let taken = bytes.len().min(most);
                self.arrived.0.borrow_mut().push(bytes[..taken].to_vec());
                Poll::Ready(Ok(taken))
            }
            Answer::Fail => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn together(script: impl IntoIterator<Item = Answer>) -> (Together<Wire>, Arrived) {
    let (script, arrived) = (script.into_iter().collect(), Arrived::default());
    (Together::new(Wire { script, arrived: arrived.clone() }), arrived)
}

async fn write(together: &mut Together<Wire>, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (one, other) = rest.split_at(rest.len() / 2);
        let pieces = [io::IoSlice::new(one), io::IoSlice::new(other)];
        let write = |context: &mut Context<'_>| {
            Pin::new(&mut *together).poll_write_vectored(context, &pieces)
        };
        rest = &rest[poll_fn(write).await.unwrap()..];
    }
}

/// Asks once.
async fn begin_flush(together: &mut Together<Wire>) -> Poll<io::Result<()>> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *together).poll_flush(context))).await
}

async fn try_flush(together: &mut Together<Wire>) -> io::Result<()> {
    poll_fn(|context| Pin::new(&mut *together).poll_flush(context)).await
}

async fn flush(together: &mut Together<Wire>) {
    try_flush(together).await.unwrap();
}

#[tokio::test]
async fn what_comes_while_a_flush_waits_leaves_with_it() {
    let (mut together, arrived) = together([]);
    write(&mut together, b"headers ").await;
    assert!(begin_flush(&mut together).await.is_pending(), "others have their turn first");
    write(&mut together, b"message").await;
    flush(&mut together).await;
    flush(&mut together).await;
    assert_eq!(arrived.writes(), [b"headers message"]);

    write(&mut together, b"more").await;
    flush(&mut together).await;
    assert_eq!(arrived.writes()[1..], [b"more"]);
}

#[tokio::test]
async fn everything_leaves_before_the_connection_ends() {
    let (mut together, arrived) = together([Answer::Take(1000); 100]);
    let (small, large) = (vec![1; 10], vec![2; LARGE + 1]);
    for piece in [&small, &large, &small] {
        write(&mut together, piece).await;
    }
    poll_fn(|context| Pin::new(&mut together).poll_shutdown(context)).await.unwrap();
    assert!(arrived.bytes() == [small.clone(), large, small].concat());
}

#[tokio::test]
async fn who_flushes_hears_what_is_wrong_with_the_wire() {
    for (answer, kind) in
        [(Answer::Fail, io::ErrorKind::BrokenPipe), (Answer::Take(0), io::ErrorKind::WriteZero)]
    {
        let (mut together, arrived) = together([Answer::Take(3), Answer::Wait, answer]);
        write(&mut together, b"headers").await;
        assert_eq!(try_flush(&mut together).await.unwrap_err().kind(), kind);
        assert_eq!(arrived.bytes(), b"hea");
        flush(&mut together).await;
        assert_eq!(arrived.bytes(), b"headers");
    }
}

#[tokio::test]
async fn what_nobody_flushed_leaves_at_the_end_as_far_as_the_wire_takes_it() {
    for (script, expected) in [
        (vec![], "alert"),
        (vec![Answer::Take(3), Answer::Take(1)], "alert"),
        (vec![Answer::Take(3), Answer::Wait], "ale"),
        (vec![Answer::Take(3), Answer::Fail], "ale"),
        (vec![Answer::Take(0)], ""),
    ] {
        let (mut together, arrived) = together(script);
        write(&mut together, b"alert").await;
        assert_eq!(arrived.bytes(), b"");
        drop(together);
        assert_eq!(arrived.bytes(), expected.as_bytes());
    }
}

#[tokio::test]
async fn what_has_left_does_not_leave_again_at_the_end() {
    let (mut together, arrived) = together([Answer::Take(3), Answer::Wait]);
    write(&mut together, b"headers").await;
    for _ in 0..2 {
        assert!(begin_flush(&mut together).await.is_pending());
    }
    assert_eq!(arrived.bytes(), b"hea");
    drop(together);
    assert_eq!(arrived.writes(), [&b"hea"[..], b"ders"]);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Write(usize),
    BeginFlush,
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_usize..100).prop_map(Step::Write),
        1 => (LARGE - 50..LARGE + 50).prop_map(Step::Write),
        2 => Just(Step::BeginFlush),
        1 => Just(Step::Flush),
    ]
}

/// Of a wire that is slow and has nothing wrong with it.
fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        2 => Just(Answer::Wait),
        2 => (1_usize..100).prop_map(Answer::Take),
        1 => (1..2 * LARGE).prop_map(Answer::Take),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nothing_is_lost_or_repeated_or_changes_places_whatever_the_wire_takes(
        steps in vec(step(), 0..20),
        script in vec(answer(), 0..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut together, arrived) = together(script);
            let mut said = Vec::new();
            for step in steps {
                match step {
                    Step::Write(length) => {
                        let places = said.len()..said.len() + length;
                        let piece: Vec<_> = places.map(|place| (place % 251) as u8).collect();
                        write(&mut together, &piece).await;
                        said.extend(piece);
                    }
                    Step::BeginFlush => {
                        let begun = begin_flush(&mut together).await;
                        prop_assert!(!matches!(begun, Poll::Ready(Err(_))));
                    }
                    Step::Flush => {
                        flush(&mut together).await;
                        prop_assert!(arrived.bytes() == said);
                    }
                }
            }
            flush(&mut together).await;
            drop(together);
            prop_assert!(arrived.bytes() == said);
            Ok(())
        })?;
    }
}
