use chassis::Caller;
use proto::session::v1::{self as pb, memory_service_server::MemoryService};
use tonic::{Request, Response, Status};

use super::{Api, check, convert};
use crate::{
    error::{Error, Result},
    memory::{self, Memory, Note, Scope, Shelf},
    store,
};

#[tonic::async_trait]
impl MemoryService for Api {
    async fn write_memory(
        &self,
        request: Request<pb::WriteMemoryRequest>,
    ) -> Result<Response<pb::WriteMemoryResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let memory = request.into_inner().memory;
        let memory = memory.ok_or_else(|| check::invalid("memory", "is missing"))?;
        let shelf = shelf(&caller, &memory.scope, &memory.project)?;
        let note = Note {
            name: memory.name,
            description: memory.description,
            r#type: memory::type_or_default(shelf.scope, &memory.r#type),
            body: memory.body,
        };
        memory::check(&note).map_err(|(field, problem)| Error::Invalid { field, problem })?;
        let written = store::memories::write(&self.host.db, &shelf, &note, None).await?;
        let updated_at = written.ok_or_else(full)?;
        let Note { name, description, r#type, body } = note;
        let memory = encode(&shelf, Memory { name, description, r#type, body, updated_at });
        Ok(Response::new(pb::WriteMemoryResponse { memory: Some(memory) }))
    }

    async fn read_memory(
        &self,
        request: Request<pb::ReadMemoryRequest>,
    ) -> Result<Response<pb::ReadMemoryResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let shelf = shelf(&caller, &request.scope, &request.project)?;
        let name = name(&request.name)?;
        let found = store::memories::read(&self.host.db, &shelf, name).await?;
        let memory = found.ok_or_else(|| Error::MemoryNotFound {
            scope: shelf.scope.as_str(),
            name: name.to_owned(),
        })?;
        Ok(Response::new(pb::ReadMemoryResponse { memory: Some(encode(&shelf, memory)) }))
    }

    async fn list_memories(
        &self,
        request: Request<pb::ListMemoriesRequest>,
    ) -> Result<Response<pb::ListMemoriesResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let shelf = shelf(&caller, &request.scope, &request.project)?;
        let limit = check::count("page_size", request.page_size, 100, 500)?;
        let after = request.page_token.as_str();
        if !after.is_empty() && !memory::is_name(after) {
            return Err(Error::InvalidCursor("page_token").into());
        }
        let mut memories = store::memories::list(&self.host.db, &shelf, after, limit + 1).await?;
        let more = memories.len() as i64 > limit;
        memories.truncate(limit as usize);
        let next_page_token = match memories.last() {
            Some(last) if more => last.name.clone(),
            _ => String::new(),
        };
        let memories = memories.into_iter().map(|memory| encode(&shelf, memory)).collect();
        Ok(Response::new(pb::ListMemoriesResponse { memories, next_page_token }))
    }

    async fn delete_memory(
        &self,
        request: Request<pb::DeleteMemoryRequest>,
    ) -> Result<Response<pb::DeleteMemoryResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let shelf = shelf(&caller, &request.scope, &request.project)?;
        let name = name(&request.name)?;
        store::memories::delete(&self.host.db, &shelf, name, None).await?;
        Ok(Response::new(pb::DeleteMemoryResponse {}))
    }
}

/// Whose memories a call is about.
fn shelf(caller: &Caller, scope: &str, project: &str) -> Result<Shelf> {
    let scope = Scope::parse(scope)
        .ok_or_else(|| check::invalid("scope", "expected `user` or `project`"))?;
    let project = check::text("project", project, 100)?;
    let owner = match (scope, project) {
        (Scope::User, "") => caller.subject.clone(),
        (Scope::User, _) => return Err(check::invalid("project", "user memories have none")),
        (Scope::Project, "") => return Err(check::invalid("project", "is missing")),
        (Scope::Project, project) => project.to_owned(),
    };
    Ok(Shelf { tenant: caller.tenant.clone(), scope, owner })
}

fn name(text: &str) -> Result<&str> {
    match memory::is_name(text) {
        true => Ok(text),
        false => {
            Err(check::invalid("name", "expected kebab-case, 1 to 64 characters of a-z, 0-9 and -"))
        }
    }
}

fn full() -> Error {
    let most = memory::MOST;
    check::invalid("memory", format!("there are {most} in this scope already, delete one first"))
}

fn encode(shelf: &Shelf, memory: Memory) -> pb::Memory {
    pb::Memory {
        scope: shelf.scope.as_str().to_owned(),
        project: match shelf.scope {
            Scope::User => String::new(),
            Scope::Project => shelf.owner.clone(),
        },
        name: memory.name,
        description: memory.description,
        r#type: memory.r#type,
        body: memory.body,
        update_time: convert::timestamp(memory.updated_at),
    }
}
