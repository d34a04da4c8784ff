//! `memory_write`, `memory_read`, `memory_list` and `memory_delete`.

use chassis::Caller;
use proto::tools::v1::Call;
use serde::Deserialize;
use serde_json::json;

use super::{Answer, Refusal, input, refused};
use crate::{
    error::parse,
    host::Host,
    memory::{self, Memory, Note, Scope, Shelf},
    store::{self, memories::Fence},
};

#[derive(Deserialize)]
struct Write {
    scope: Scope,
    name: String,
    description: String,
    #[serde(default)]
    r#type: String,
    body: String,
}

#[derive(Deserialize)]
struct Named {
    /// Where it is; without it, wherever it is found.
    scope: Option<Scope>,
    name: String,
}

#[derive(Deserialize)]
struct List {
    scope: Option<Scope>,
}

pub async fn write(host: &Host, caller: &Caller, call: &Call) -> Answer {
    let Write { scope, name, description, r#type, body } = input(call)?;
    let r#type = memory::type_or_default(scope, &r#type);
    let note = Note { name, description, r#type, body };
    memory::check(&note)
        .map_err(|(field, problem)| refused("schema", format!("invalid {field}: {problem}")))?;
    let shelf = shelf(caller, call, scope);
    match store::memories::write(&host.db, &shelf, &note, fence(call)?).await? {
        Some(_) => Ok(json!({"scope": scope, "name": note.name, "written": true})),
        None => {
            let most = memory::MOST;
            let text = format!("there are {most} {} memories already, delete one", scope.as_str());
            Err(refused("failed", text))
        }
    }
}

pub async fn read(host: &Host, caller: &Caller, call: &Call) -> Answer {
    let Named { scope, name } = input(call)?;
    for scope in scopes(scope) {
        let shelf = shelf(caller, call, scope);
        if let Some(memory) = store::memories::read(&host.db, &shelf, &name).await? {
            let Memory { name, description, r#type, body, updated_at } = memory;
            return Ok(json!({
                "scope": scope, "name": name, "description": description, "type": r#type,
                "body": body, "updated_at": updated_at.to_jiff().to_string(),
            }));
        }
    }
    Err(refused("failed", format!("there is no memory {name}; memory_list shows what there is")))
}

pub async fn list(host: &Host, caller: &Caller, call: &Call) -> Answer {
    let List { scope } = input(call)?;
    let mut lines = Vec::new();
    for scope in scopes(scope) {
        let shelf = shelf(caller, call, scope);
        let memories = store::memories::list(&host.db, &shelf, "", memory::MOST).await?;
        lines.extend(memories.into_iter().map(|memory| {
            let Memory { name, description, r#type, .. } = memory;
            json!({"scope": scope, "name": name, "description": description, "type": r#type})
        }));
    }
    Ok(json!({"memories": lines}))
}

pub async fn delete(host: &Host, caller: &Caller, call: &Call) -> Answer {
    let Named { scope, name } = input(call)?;
    let fence = fence(call)?;
    for scope in scopes(scope) {
        let shelf = shelf(caller, call, scope);
        if store::memories::delete(&host.db, &shelf, &name, fence).await? {
            return Ok(json!({"scope": scope, "name": name, "deleted": true}));
        }
    }
    Ok(json!({"name": name, "deleted": false}))
}

/// The nearer first: a project knows better than its user in general.
fn scopes(scope: Option<Scope>) -> Vec<Scope> {
    match scope {
        Some(scope) => vec![scope],
        None => vec![Scope::Project, Scope::User],
    }
}

/// A workspace is its own project.
fn shelf(caller: &Caller, call: &Call, scope: Scope) -> Shelf {
    let owner = match scope {
        Scope::User => caller.subject.clone(),
        Scope::Project => call.workspace_id.clone(),
    };
    Shelf { tenant: caller.tenant.clone(), scope, owner }
}

/// An owner that lost its session must not be able to write in its name.
fn fence(call: &Call) -> Result<Option<Fence>, Refusal> {
    let session_id = parse("session_id", &call.session_id)?;
    Ok(Some(Fence { session_id, epoch: call.epoch }))
}
