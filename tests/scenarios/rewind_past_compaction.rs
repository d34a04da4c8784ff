use proto::session::v1::{ListMessagesRequest, Message, message::Role};
use tests::{Session, World, text_of};

use crate::compaction::{completed, requested};

/// Everything there is, hidden or not.
async fn all(session: &Session) -> Vec<Message> {
    let request = ListMessagesRequest {
        session_id: session.id.clone(),
        include_hidden: true,
        ..ListMessagesRequest::default()
    };
    session.client.sessions().list_messages(request).await.unwrap().into_inner().messages
}

#[tokio::test]
async fn rewind_past_compaction() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    for word in ["One.", "Two.", "Three."] {
        session.run(&format!("say {word}")).await;
    }
    let marker = completed(&session.compact().await).message_id;
    assert_eq!(requested(&session.run("say Four.").await).messages, 2);
    let before = session.messages().await;
    let asked = before.iter().filter(|one| one.role() == Role::User && !one.synthetic);
    let second = asked.clone().nth(1).unwrap().message_id.clone();

    // A message that was summarized is one to go back to, and the marker goes with the rest.
    let hidden = session.rewind(&second).await.unwrap();
    assert_eq!(hidden as usize, before.len() - 2);
    assert_eq!(session.messages().await, before[..2]);
    let kept = all(&session).await;
    assert_eq!(kept.len(), before.len(), "something is deleted");
    let hides = kept.iter().find(|one| one.message_id == marker).unwrap().hide_time;
    assert!(hides.is_some());

    // Undone, the summary stands for what it summarized again: itself, two messages and this.
    session.unrewind().await.unwrap();
    assert_eq!(session.messages().await, before);
    let seen = session.run("say Five.").await;
    assert_eq!((text_of(&seen).as_str(), requested(&seen).messages), ("Five.", 4));

    // Without it the model sees what was really said: a question, its answer, and this.
    session.rewind(&second).await.unwrap();
    let seen = session.run("say Otherwise.").await;
    assert_eq!((text_of(&seen).as_str(), requested(&seen).messages), ("Otherwise.", 3));
}
