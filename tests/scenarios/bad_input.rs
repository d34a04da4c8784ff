use expect_test::expect;
use proto::session::v1::{
    CreateSessionRequest, GetSessionRequest, GetSnapshotRequest, GetTurnRequest, ListEventsRequest,
    ListMessagesRequest, ListSessionsRequest, SubmitTurnRequest, SubscribeRequest,
    subscribe_request::From,
};
use tests::{Session, World, explain, request_id, says};
use tonic::{IntoRequest, Request, Response, Status};

/// Well-formed, and nobody's.
const NOBODY: &str = "ses_06evr8d2ksw3x4qg9rjc10t5mm";
const NO_TURN: &str = "turn_06evr8d2ksw3x4qg9rjc10t5mm";

#[tokio::test]
async fn bad_input_is_refused_with_a_reason_and_changes_nothing() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    session.run("say Hello.").await;
    let before = (session.log().await, session.messages().await);

    let mut answers = Answers(String::new());
    reads(&session, &mut answers).await;
    creates(&session, &mut answers).await;
    submits(&session, &mut answers).await;
    // What differs from one run to the next, or with the number of facts in a turn.
    let end = format!("sequence {}", before.0.len());
    let answers = answers.0.replace(&session.id, "ses_…").replace(&end, "sequence …");
    expect![[r#"
        GetSession unknown id => NotFound REASON_SESSION_NOT_FOUND: session ses_06evr8d2ksw3x4qg9rjc10t5mm not found
        GetSnapshot unknown id => NotFound REASON_SESSION_NOT_FOUND: session ses_06evr8d2ksw3x4qg9rjc10t5mm not found
        ListMessages unknown id => NotFound REASON_SESSION_NOT_FOUND: session ses_06evr8d2ksw3x4qg9rjc10t5mm not found
        ListEvents unknown id => NotFound REASON_SESSION_NOT_FOUND: session ses_06evr8d2ksw3x4qg9rjc10t5mm not found
        Subscribe unknown id => NotFound REASON_SESSION_NOT_FOUND: session ses_06evr8d2ksw3x4qg9rjc10t5mm not found
        GetSession malformed id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        GetSnapshot malformed id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        ListMessages malformed id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        ListEvents malformed id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        Subscribe malformed id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        GetSession no id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        GetSnapshot no id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        ListMessages no id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        ListEvents no id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        Subscribe no id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        GetTurn unknown turn => NotFound REASON_TURN_NOT_FOUND: session ses_… has no turn turn_06evr8d2ksw3x4qg9rjc10t5mm
        GetTurn malformed turn => InvalidArgument REASON_INVALID_FIELD: invalid turn_id: expected turn_ and 26 characters
        ListSessions negative page => InvalidArgument REASON_INVALID_FIELD: invalid page_size: must not be negative
        GetSnapshot negative page => InvalidArgument REASON_INVALID_FIELD: invalid turns: must not be negative
        ListMessages negative page => InvalidArgument REASON_INVALID_FIELD: invalid page_size: must not be negative
        ListEvents negative page => InvalidArgument REASON_INVALID_FIELD: invalid page_size: must not be negative
        ListSessions foreign token => InvalidArgument REASON_INVALID_CURSOR: the cursor in page_token is not one of ours
        ListMessages foreign token => InvalidArgument REASON_INVALID_CURSOR: the cursor in page_token is not one of ours
        ListEvents cursor ahead => OutOfRange REASON_CURSOR_AHEAD: session ses_… ends at sequence …, before 1000000
        Subscribe cursor ahead => OutOfRange REASON_CURSOR_AHEAD: session ses_… ends at sequence …, before 1000000
        ListEvents negative cursor => InvalidArgument REASON_INVALID_FIELD: invalid after_sequence: must not be negative
        Subscribe negative cursor => InvalidArgument REASON_INVALID_FIELD: invalid after_sequence: must not be negative
        GetSession malformed x-request-id => InvalidArgument REASON_INVALID_METADATA: x-request-id is malformed
        CreateSession no request id => InvalidArgument REASON_INVALID_FIELD: invalid request_id: expected 1 to 100 characters of A-Z, a-z, 0-9, _ and -
        CreateSession long title => InvalidArgument REASON_INVALID_FIELD: invalid title: at most 200 characters
        CreateSession unknown agent => NotFound REASON_AGENT_NOT_FOUND: agent nobody not found
        CreateSession malformed agent => InvalidArgument REASON_INVALID_FIELD: invalid agent: expected 1 to 64 characters of a-z, 0-9 and -
        CreateSession malformed workspace => InvalidArgument REASON_INVALID_FIELD: invalid workspace_id: expected ws_ and 26 characters
        CreateSession malformed metadata => InvalidArgument REASON_INVALID_FIELD: invalid metadata_json: is not JSON: EOF while parsing an object at line 1 column 1
        CreateSession metadata no object => InvalidArgument REASON_INVALID_FIELD: invalid metadata_json: must be a JSON object
        CreateSession request id reused => AlreadyExists REASON_REQUEST_ID_REUSED: request id twice was used before for something else
        SubmitTurn unknown id => NotFound REASON_SESSION_NOT_FOUND: session ses_06evr8d2ksw3x4qg9rjc10t5mm not found
        SubmitTurn malformed id => InvalidArgument REASON_INVALID_FIELD: invalid session_id: expected ses_ and 26 characters
        SubmitTurn no request id => InvalidArgument REASON_INVALID_FIELD: invalid request_id: expected 1 to 100 characters of A-Z, a-z, 0-9, _ and -
        SubmitTurn malformed request id => InvalidArgument REASON_INVALID_FIELD: invalid request_id: expected 1 to 100 characters of A-Z, a-z, 0-9, _ and -
        SubmitTurn nothing said => InvalidArgument REASON_INVALID_FIELD: invalid parts: a message needs at least one part, or an agent or model to switch to
        SubmitTurn an empty part => InvalidArgument REASON_INVALID_FIELD: invalid parts: a part has no content
        SubmitTurn 101 parts => InvalidArgument REASON_INVALID_FIELD: invalid parts: at most 100 parts
        SubmitTurn over 1 MiB => InvalidArgument REASON_INVALID_FIELD: invalid parts: at most 1 MiB in all
        SubmitTurn over 4 MiB => InvalidArgument REASON_INVALID_FIELD: invalid message: decoded message length too large: found 4194353 bytes, the limit is: 4194304 bytes
        SubmitTurn NUL => InvalidArgument REASON_INVALID_FIELD: invalid parts: must not contain NUL
        SubmitTurn unknown agent => NotFound REASON_AGENT_NOT_FOUND: agent nobody not found
        SubmitTurn malformed metadata => InvalidArgument REASON_INVALID_FIELD: invalid metadata_json: is not JSON: EOF while parsing an object at line 1 column 1
        SubmitTurn unknown policy => InvalidArgument REASON_INVALID_FIELD: invalid run_policy: unknown value
        SubmitTurn a trigger => InvalidArgument REASON_INVALID_FIELD: invalid trigger: only the triggers service may set it
        SubmitTurn request id reused => AlreadyExists REASON_REQUEST_ID_REUSED: request id twice was used before for something else
        SubmitTurn malformed x-request-id => InvalidArgument REASON_INVALID_METADATA: x-request-id is malformed
    "#]].assert_eq(&answers);

    assert_eq!((session.log().await, session.messages().await), before);
}

#[tokio::test]
async fn a_repeated_submit_returns_the_original() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    let mut events = session.subscribe(From::Live(true)).await;
    let request = session.turn("say Once.");
    let mut turns = session.client.turns();
    let first = turns.submit_turn(request.clone()).await.unwrap().into_inner().turn.unwrap();
    events.until_ended(&first.turn_id).await;

    let before = session.log().await;
    let again = turns.submit_turn(request).await.unwrap().into_inner().turn.unwrap();
    assert_eq!((again.turn_id, again.message_id), (first.turn_id, first.message_id));
    assert_eq!(session.log().await, before);
    assert_eq!(session.messages().await.len(), 2);
}

async fn reads(session: &Session, answers: &mut Answers) {
    let mut sessions = session.client.sessions();
    for (case, id) in [("unknown id", NOBODY), ("malformed id", "ses_1"), ("no id", "")] {
        let session_id = id.to_owned();
        let request = GetSessionRequest { session_id: session_id.clone() };
        answers.add("GetSession", case, sessions.get_session(request).await);
        let request = GetSnapshotRequest { session_id: session_id.clone(), turns: 0 };
        answers.add("GetSnapshot", case, sessions.get_snapshot(request).await);
        let request = ListMessagesRequest { session_id: session_id.clone(), ..Default::default() };
        answers.add("ListMessages", case, sessions.list_messages(request).await);
        let request = ListEventsRequest { session_id: session_id.clone(), ..Default::default() };
        answers.add("ListEvents", case, sessions.list_events(request).await);
        let request = SubscribeRequest { session_id, ..Default::default() };
        answers.add("Subscribe", case, session.client.streams().subscribe(request).await);
    }

    let session_id = session.id.clone();
    for (case, id) in [("unknown turn", NO_TURN), ("malformed turn", "turn-1")] {
        let request = GetTurnRequest { session_id: session_id.clone(), turn_id: id.into() };
        answers.add("GetTurn", case, session.client.turns().get_turn(request).await);
    }

    let negative = -1;
    let request = ListSessionsRequest { page_size: negative, ..Default::default() };
    answers.add("ListSessions", "negative page", sessions.list_sessions(request).await);
    let request = GetSnapshotRequest { session_id: session_id.clone(), turns: negative };
    answers.add("GetSnapshot", "negative page", sessions.get_snapshot(request).await);
    let request = ListMessagesRequest {
        session_id: session_id.clone(),
        page_size: negative,
        ..Default::default()
    };
    answers.add("ListMessages", "negative page", sessions.list_messages(request).await);
    let request = ListEventsRequest {
        session_id: session_id.clone(),
        page_size: negative,
        ..Default::default()
    };
    answers.add("ListEvents", "negative page", sessions.list_events(request).await);

    let foreign = "bm90IG91cnM".to_owned();
    let request = ListSessionsRequest { page_token: foreign.clone(), ..Default::default() };
    answers.add("ListSessions", "foreign token", sessions.list_sessions(request).await);
    let request = ListMessagesRequest {
        session_id: session_id.clone(),
        page_token: foreign,
        ..Default::default()
    };
    answers.add("ListMessages", "foreign token", sessions.list_messages(request).await);

    let ahead = 1_000_000;
    for (case, after_sequence) in [("cursor ahead", ahead), ("negative cursor", -1)] {
        let request = ListEventsRequest {
            session_id: session_id.clone(),
            after_sequence,
            ..Default::default()
        };
        answers.add("ListEvents", case, sessions.list_events(request).await);
        let request = SubscribeRequest {
            session_id: session_id.clone(),
            from: Some(From::AfterSequence(after_sequence)),
            ..Default::default()
        };
        answers.add("Subscribe", case, session.client.streams().subscribe(request).await);
    }

    let mut request = GetSessionRequest { session_id }.into_request();
    request.metadata_mut().insert("x-request-id", "not an id".parse().unwrap());
    answers.add("GetSession", "malformed x-request-id", sessions.get_session(request).await);
}

async fn creates(session: &Session, answers: &mut Answers) {
    let good = || CreateSessionRequest { request_id: request_id(), ..Default::default() };
    for (case, request) in [
        ("no request id", CreateSessionRequest { request_id: String::new(), ..good() }),
        ("long title", CreateSessionRequest { title: "t".repeat(201), ..good() }),
        ("unknown agent", CreateSessionRequest { agent: "nobody".into(), ..good() }),
        ("malformed agent", CreateSessionRequest { agent: "No Body".into(), ..good() }),
        ("malformed workspace", CreateSessionRequest { workspace_id: "here".into(), ..good() }),
        ("malformed metadata", CreateSessionRequest { metadata_json: "{".into(), ..good() }),
        ("metadata no object", CreateSessionRequest { metadata_json: "[]".into(), ..good() }),
    ] {
        answers.add("CreateSession", case, session.client.sessions().create_session(request).await);
    }
    let first = CreateSessionRequest { request_id: "twice".into(), title: "One".into(), ..good() };
    let other = CreateSessionRequest { title: "Another".into(), ..first.clone() };
    let mut sessions = session.client.sessions();
    let created = sessions.create_session(first.clone()).await.unwrap().into_inner();
    let again = sessions.create_session(first.clone()).await.unwrap().into_inner();
    assert_eq!(created.session.unwrap().session_id, again.session.unwrap().session_id);
    answers.add("CreateSession", "request id reused", sessions.create_session(other).await);
}

async fn submits(session: &Session, answers: &mut Answers) {
    let good = || session.turn("say Never said.");
    let text = |size: usize| vec![says(&"x".repeat(size))];
    for (case, request) in [
        ("unknown id", SubmitTurnRequest { session_id: NOBODY.into(), ..good() }),
        ("malformed id", SubmitTurnRequest { session_id: "ses_1".into(), ..good() }),
        ("no request id", SubmitTurnRequest { request_id: String::new(), ..good() }),
        ("malformed request id", SubmitTurnRequest { request_id: "a b".into(), ..good() }),
        ("nothing said", SubmitTurnRequest { parts: vec![], ..good() }),
        ("an empty part", SubmitTurnRequest { parts: vec![Default::default()], ..good() }),
        ("101 parts", SubmitTurnRequest { parts: vec![says("x"); 101], ..good() }),
        ("over 1 MiB", SubmitTurnRequest { parts: text((1 << 20) + 1), ..good() }),
        (
            "over 4 MiB",
            SubmitTurnRequest { request_id: "large".into(), parts: text(4 << 20), ..good() },
        ),
        ("NUL", SubmitTurnRequest { parts: vec![says("a\0b")], ..good() }),
        ("unknown agent", SubmitTurnRequest { agent: "nobody".into(), ..good() }),
        ("malformed metadata", SubmitTurnRequest { metadata_json: "{".into(), ..good() }),
        ("unknown policy", SubmitTurnRequest { run_policy: 99, ..good() }),
        ("a trigger", SubmitTurnRequest { trigger: Some(Default::default()), ..good() }),
    ] {
        answers.add("SubmitTurn", case, session.client.turns().submit_turn(request).await);
    }

    // In a session of its own: the first of the two is good, and runs.
    let other = session.client.create_session().await;
    let first = SubmitTurnRequest { request_id: "twice".into(), ..other.turn("say One.") };
    let mut turns = session.client.turns();
    turns.submit_turn(first.clone()).await.unwrap();
    let second = SubmitTurnRequest { parts: vec![says("Another.")], ..first };
    answers.add("SubmitTurn", "request id reused", turns.submit_turn(second).await);
    assert_eq!(other.messages().await.iter().filter(|message| message.role == 1).count(), 1);

    let mut request = Request::new(good());
    request.metadata_mut().insert("x-request-id", "not an id".parse().unwrap());
    answers.add("SubmitTurn", "malformed x-request-id", turns.submit_turn(request).await);
}

/// One line per call that should have failed.
struct Answers(String);

impl Answers {
    fn add<T>(&mut self, rpc: &str, case: &str, answer: Result<Response<T>, Status>) {
        let answer = answer.map_or_else(|status| explain(&status), |_| "OK".to_owned());
        self.0 += &format!("{rpc} {case} => {answer}\n");
    }
}
