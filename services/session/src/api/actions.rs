//! What people are asked, and what they answer.

use jiff::Timestamp;
use proto::{
    event::v1::{self as facts, ActionResolved},
    session::v1::{self as pb, respond_action_request::Decision},
};
use tonic::{Request, Response, Status};

use super::{Api, check, convert, stamp};
use crate::{
    error::{Error, Result, parse},
    ids::ActionId,
    store::{
        self,
        actions::{Action, Answer, Cursor},
    },
};

pub async fn list(
    api: &Api,
    request: Request<pb::ListActionsRequest>,
) -> Result<Response<pb::ListActionsResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let session_id = match request.session_id.as_str() {
        "" => None,
        text => Some(parse("session_id", text)?),
    };
    if let Some(id) = session_id {
        store::sessions::get(&api.host.db, &caller.tenant, id).await?;
    }
    let limit = check::count("page_size", request.page_size, 50, 200)?;
    let after = match request.page_token.as_str() {
        "" => None,
        token => Some(cursor(token).ok_or(Error::InvalidCursor("page_token"))?),
    };
    let mut actions = store::actions::list(
        &api.host.db,
        &caller.tenant,
        session_id,
        request.include_resolved,
        after,
        limit + 1,
    )
    .await?;
    let more = actions.len() as i64 > limit;
    actions.truncate(limit as usize);
    let next_page_token = match actions.last() {
        Some(last) if more => {
            format!("{}-{}", last.created_at.to_jiff().as_microsecond(), last.id)
        }
        _ => String::new(),
    };
    let actions = actions.into_iter().map(encode).collect();
    Ok(Response::new(pb::ListActionsResponse { actions, next_page_token }))
}

pub async fn respond(
    api: &Api,
    request: Request<pb::RespondActionRequest>,
) -> Result<Response<pb::RespondActionResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let comment = check::text("comment", &request.comment, 2000)?;
    let (status, decision, rule) = match Decision::try_from(request.decision) {
        Ok(Decision::Once) => ("approved", "once", None),
        Ok(Decision::Session) => ("approved", "session", Some("session")),
        Ok(Decision::Project) => ("approved", "project", Some("project")),
        Ok(Decision::Reject) => ("rejected", "reject", None),
        Ok(Decision::Unspecified) | Err(_) => {
            return Err(check::invalid("decision", "is missing or unknown").into());
        }
    };
    let resolution = ActionResolved {
        status: status.to_owned(),
        decision: decision.to_owned(),
        subject: caller.subject.clone(),
        answers: vec![],
        comment: comment.to_owned(),
    };
    let answer = Answer {
        tenant: &caller.tenant,
        session_id: parse("session_id", &request.session_id)?,
        action_id: parse("action_id", &request.action_id)?,
        kind: "approval",
        resolution: &resolution,
        rule,
    };
    let action = resolve(api, answer).await?;
    Ok(Response::new(pb::RespondActionResponse { action: Some(action) }))
}

pub async fn answer(
    api: &Api,
    request: Request<pb::AnswerQuestionRequest>,
) -> Result<Response<pb::AnswerQuestionResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let session_id = parse("session_id", &request.session_id)?;
    let action_id = parse("action_id", &request.action_id)?;
    let asked = store::actions::get(&api.host.db, &caller.tenant, session_id, action_id).await?;
    // One that is not a question is refused below, together with one that was answered.
    if asked.request.kind == "question" && asked.status == "open" {
        fits(action_id, &asked.request.questions, &request.answers)?;
    }
    let resolution = ActionResolved {
        status: "answered".to_owned(),
        decision: String::new(),
        subject: caller.subject.clone(),
        answers: request.answers,
        comment: String::new(),
    };
    let (tenant, kind) = (&caller.tenant, "question");
    let answer =
        Answer { tenant, session_id, action_id, kind, resolution: &resolution, rule: None };
    let action = resolve(api, answer).await?;
    Ok(Response::new(pb::AnswerQuestionResponse { action: Some(action) }))
}

pub async fn reject(
    api: &Api,
    request: Request<pb::RejectQuestionRequest>,
) -> Result<Response<pb::RejectQuestionResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let comment = check::text("comment", &request.comment, 2000)?;
    let resolution = ActionResolved {
        status: "rejected".to_owned(),
        decision: "reject".to_owned(),
        subject: caller.subject.clone(),
        answers: vec![],
        comment: comment.to_owned(),
    };
    let answer = Answer {
        tenant: &caller.tenant,
        session_id: parse("session_id", &request.session_id)?,
        action_id: parse("action_id", &request.action_id)?,
        kind: "question",
        resolution: &resolution,
        rule: None,
    };
    let action = resolve(api, answer).await?;
    Ok(Response::new(pb::RejectQuestionResponse { action: Some(action) }))
}

async fn resolve(api: &Api, answer: Answer<'_>) -> Result<pb::Action> {
    let (tenant, session_id, action_id) = (answer.tenant, answer.session_id, answer.action_id);
    let resolved = store::actions::resolve(&api.host.db, answer, &stamp(api.host.replica)).await;
    let get = store::actions::get(&api.host.db, tenant, session_id, action_id);
    match resolved {
        Ok(resolved) => {
            api.host.bus.publish(tenant, session_id, resolved.events, resolved.ready);
            Ok(encode(get.await?))
        }
        // Say what it is, not only that it is.
        Err(Error::ActionResolved { .. }) => {
            Err(Error::ActionResolved { action_id, status: get.await?.status })
        }
        Err(error) => Err(error),
    }
}

/// How much may be said beside the options.
const MAX_TEXT: usize = 10_000;

/// Whether every question has an answer that it takes.
fn fits(
    action_id: ActionId,
    questions: &[facts::Question],
    answers: &[facts::Answer],
) -> Result<()> {
    let wrong =
        |problem: String| Err(Error::ActionWrongAnswer { action_id, allowed: "answers", problem });
    if questions.len() != answers.len() {
        return wrong(format!("{} questions, {} answers", questions.len(), answers.len()));
    }
    for (number, (question, answer)) in questions.iter().zip(answers).enumerate() {
        let number = number + 1;
        let known = |value: &String| question.options.iter().any(|option| option.value == *value);
        if let Some(value) = answer.values.iter().find(|value| !known(value)) {
            return wrong(format!("question {number} has no option {value:?}"));
        }
        if answer.values.len() > 1 && !question.multi_select {
            return wrong(format!("question {number} takes one option"));
        }
        if answer.values.len() > question.options.len() {
            return wrong(format!("question {number} takes each option once"));
        }
        if !answer.text.is_empty() && !question.free_text && !question.options.is_empty() {
            return wrong(format!("question {number} takes no free text"));
        }
        if answer.text.chars().count() > MAX_TEXT || answer.text.contains('\0') {
            return wrong(format!("the text of answer {number} is too long or contains NUL"));
        }
        if answer.values.is_empty() && answer.text.is_empty() {
            return wrong(format!("question {number} is not answered"));
        }
    }
    Ok(())
}

fn encode(action: Action) -> pb::Action {
    pb::Action {
        action_id: action.id.to_string(),
        session_id: action.session_id.to_string(),
        turn_id: action.turn_id.to_string(),
        tool_call_id: action.tool_call_id.to_string(),
        status: action.status,
        request: Some(action.request.0),
        resolution: action.resolution.map(|resolution| resolution.0),
        create_time: convert::timestamp(action.created_at),
    }
}

fn cursor(token: &str) -> Option<Cursor> {
    let (micros, id) = token.split_once('-')?;
    let created_at = Timestamp::from_microsecond(micros.parse().ok()?).ok()?;
    Some(Cursor { created_at, id: id.parse().ok()? })
}
