//! The MCP servers of a tenant's projects.

use chassis::Tenant;
use proto::tools::v1::{self as pb, mcp_server::Transport};
use sqlx::PgPool;
use url::Url;

use super::invalid;
use crate::{
    error::{Error, Result},
    mcp::{Address, Server, Servers, State, is_server_id},
    secrets,
    store::{self, mcp_servers::MOST},
};

/// Limits that the contract promises.
const LONGEST_PROJECT: usize = 200;
const LONGEST_COMMAND: usize = 4_000;
const LONGEST_URL: usize = 2_000;
const MOST_SECRETS: usize = 20;
const LONGEST_SECRET_KEY: usize = 100;
const LARGEST_PAGE: i32 = 200;
const USUAL_PAGE: i32 = 50;

pub async fn put(
    db: &PgPool,
    servers: &Servers,
    tenant: &Tenant,
    request: pb::PutMcpServerRequest,
) -> Result<pb::PutMcpServerResponse> {
    let project = project(request.project)?;
    let server = request.mcp_server.ok_or_else(|| invalid("mcp_server", "is missing"))?;
    let server = decode(server)?;
    if !store::mcp_servers::put(db, tenant, &project, &server).await? {
        let problem = format!("there are {MOST} MCP servers already, delete one");
        return Err(invalid("mcp_server.mcp_server_id", problem));
    }
    servers.changed(tenant).await;
    let state = servers.state(tenant, &server);
    Ok(pb::PutMcpServerResponse { mcp_server: Some(encode(server, state)) })
}

pub async fn list(
    db: &PgPool,
    servers: &Servers,
    tenant: &Tenant,
    request: pb::ListMcpServersRequest,
) -> Result<pb::ListMcpServersResponse> {
    let project = project(request.project)?;
    let size = match request.page_size {
        0 => USUAL_PAGE,
        size @ 1..=LARGEST_PAGE => size,
        _ => return Err(invalid("page_size", "is not between 0 and 200")),
    } as usize;
    let after = request.page_token;
    if !after.is_empty() && !is_server_id(&after) {
        return Err(Error::InvalidCursor);
    }
    let mut found = store::mcp_servers::list(db, tenant, &project, &after, size as i64 + 1).await?;
    let more = found.len() > size;
    found.truncate(size);
    let next_page_token = match found.last() {
        Some(last) if more => last.id.clone(),
        _ => String::new(),
    };
    let shown = found.into_iter().map(|server| {
        let state = servers.state(tenant, &server);
        encode(server, state)
    });
    Ok(pb::ListMcpServersResponse { mcp_servers: shown.collect(), next_page_token })
}

pub async fn delete(
    db: &PgPool,
    servers: &Servers,
    tenant: &Tenant,
    request: pb::DeleteMcpServerRequest,
) -> Result<pb::DeleteMcpServerResponse> {
    let project = project(request.project)?;
    let id = request.mcp_server_id;
    if !is_server_id(&id) || !store::mcp_servers::delete(db, tenant, &project, &id).await? {
        return Err(Error::PolicyNotFound(id));
    }
    servers.changed(tenant).await;
    Ok(pb::DeleteMcpServerResponse {})
}

pub fn project(project: String) -> Result<String> {
    match project.chars().count() > LONGEST_PROJECT || project.contains('\0') {
        true => Err(invalid("project", "expected at most 200 characters, and no NUL")),
        false => Ok(project),
    }
}

fn decode(server: pb::McpServer) -> Result<Server> {
    if !is_server_id(&server.mcp_server_id) {
        let problem = "expected 1 to 32 characters of a-z and 0-9";
        return Err(invalid("mcp_server.mcp_server_id", problem));
    }
    let secret_refs: std::collections::BTreeMap<_, _> = server.secret_refs.into_iter().collect();
    if secret_refs.len() > MOST_SECRETS {
        return Err(invalid("mcp_server.secret_refs", "are more than 20"));
    }
    if !secret_refs.values().all(|name| secrets::is_name(name)) {
        let problem = "a secret's name is 1 to 64 characters of a-z, A-Z, 0-9, . _ and -, \
            and does not begin with a dot";
        return Err(invalid("mcp_server.secret_refs", problem));
    }
    let address = match server.transport {
        None => return Err(invalid("mcp_server.transport", "expected a command or a url")),
        Some(Transport::Command(command)) => {
            if !(1..=LONGEST_COMMAND).contains(&command.chars().count()) || command.contains('\0') {
                let problem = "expected 1 to 4,000 characters, and no NUL";
                return Err(invalid("mcp_server.command", problem));
            }
            if !secret_refs.keys().all(|key| is_variable(key)) {
                let problem = "of a command, a key is an environment variable other than PATH, \
                    HOME, LANG and TERM: 1 to 100 characters of A-Z, a-z, 0-9 and _, not \
                    beginning with a digit or LD_";
                return Err(invalid("mcp_server.secret_refs", problem));
            }
            Address::Command(command)
        }
        Some(Transport::Url(url)) => {
            check_url(&url)?;
            if !secret_refs.keys().all(|key| is_header(key)) {
                let problem = "of a url, a key is a header that the protocol does not use itself";
                return Err(invalid("mcp_server.secret_refs", problem));
            }
            Address::Url(url)
        }
    };
    Ok(Server { id: server.mcp_server_id, address, secret_refs, trusted: server.trusted })
}

fn check_url(url: &str) -> Result<()> {
    let problem = match Url::parse(url) {
        _ if url.chars().count() > LONGEST_URL || url.contains('\0') => {
            "expected at most 2,000 characters"
        }
        Ok(url) if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() => {
            "expected http or https, and a host"
        }
        // What is stored here is shown to whoever may read.
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "has a password in it: name a secret in secret_refs instead"
        }
        Ok(_) => return Ok(()),
        Err(_) => "is no URL",
    };
    Err(invalid("mcp_server.url", problem))
}

fn is_variable(key: &str) -> bool {
    let ours = ["PATH", "HOME", "LANG", "TERM", "BASH_ENV", "ENV", "IFS"];
    (1..=LONGEST_SECRET_KEY).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !key.starts_with(|first: char| first.is_ascii_digit())
        && !key.starts_with("LD_")
        && !ours.contains(&key)
}

/// Headers that say who calls, and not those that HTTP or MCP need for themselves.
fn is_header(key: &str) -> bool {
    let ours = [
        "accept",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "last-event-id",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let key = key.to_ascii_lowercase();
    key.len() <= LONGEST_SECRET_KEY
        && http::HeaderName::from_bytes(key.as_bytes()).is_ok()
        && !key.starts_with("mcp-")
        && !key.starts_with("proxy-")
        && !ours.contains(&key.as_str())
}

fn encode(server: Server, state: State) -> pb::McpServer {
    let (state, state_detail) = match state {
        State::Idle => ("idle", String::new()),
        State::Connected(detail) => ("connected", detail),
        State::Failed(detail) => ("failed", detail),
    };
    pb::McpServer {
        mcp_server_id: server.id,
        transport: Some(match server.address {
            Address::Command(command) => Transport::Command(command),
            Address::Url(url) => Transport::Url(url),
        }),
        secret_refs: server.secret_refs.into_iter().collect(),
        trusted: server.trusted,
        state: state.into(),
        state_detail,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn server(transport: Transport, secret: &str) -> pb::McpServer {
        pb::McpServer {
            mcp_server_id: "s".into(),
            transport: Some(transport),
            secret_refs: [(secret.to_owned(), "token".to_owned())].into(),
            ..pb::McpServer::default()
        }
    }

    #[test]
    fn what_cannot_be_a_server_is_refused_with_what_to_do() {
        let command = |text: &str| Transport::Command(text.into());
        let url = |text: &str| Transport::Url(text.into());
        let mut lines = String::new();
        for (what, server) in [
            ("a command", server(command("node server.js"), "TOKEN")),
            ("a url", server(url("https://example.com/mcp"), "Authorization")),
            ("no id", pb::McpServer { mcp_server_id: "".into(), ..server(command("x"), "A") }),
            (
                "an id with _",
                pb::McpServer { mcp_server_id: "a_b".into(), ..server(command("x"), "A") },
            ),
            ("no transport", pb::McpServer { transport: None, ..server(command("x"), "A") }),
            ("an empty command", server(command(""), "A")),
            ("a long command", server(command(&"x".repeat(4_001)), "A")),
            ("PATH", server(command("x"), "PATH")),
            ("LD_PRELOAD", server(command("x"), "LD_PRELOAD")),
            ("1A", server(command("x"), "1A")),
            ("no url", server(url("example.com"), "a")),
            ("a file", server(url("file:///etc/passwd"), "a")),
            ("a password", server(url("https://ann:secret@example.com"), "a")),
            ("a header of ours", server(url("https://example.com"), "Mcp-Session-Id")),
            ("a header of HTTP's", server(url("https://example.com"), "Host")),
            ("no header", server(url("https://example.com"), "a b")),
            (
                "a path as secret",
                pb::McpServer {
                    secret_refs: [("A".to_owned(), "../token".to_owned())].into(),
                    ..server(command("x"), "A")
                },
            ),
        ] {
            let verdict = decode(server).map_or_else(|error| error.to_string(), |_| "ok".into());
            lines += &format!("{what}: {verdict}\n");
        }
        expect![[r#"
            a command: ok
            a url: ok
            no id: invalid mcp_server.mcp_server_id: expected 1 to 32 characters of a-z and 0-9
            an id with _: invalid mcp_server.mcp_server_id: expected 1 to 32 characters of a-z and 0-9
            no transport: invalid mcp_server.transport: expected a command or a url
            an empty command: invalid mcp_server.command: expected 1 to 4,000 characters, and no NUL
            a long command: invalid mcp_server.command: expected 1 to 4,000 characters, and no NUL
            PATH: invalid mcp_server.secret_refs: of a command, a key is an environment variable other than PATH, HOME, LANG and TERM: 1 to 100 characters of A-Z, a-z, 0-9 and _, not beginning with a digit or LD_
            LD_PRELOAD: invalid mcp_server.secret_refs: of a command, a key is an environment variable other than PATH, HOME, LANG and TERM: 1 to 100 characters of A-Z, a-z, 0-9 and _, not beginning with a digit or LD_
            1A: invalid mcp_server.secret_refs: of a command, a key is an environment variable other than PATH, HOME, LANG and TERM: 1 to 100 characters of A-Z, a-z, 0-9 and _, not beginning with a digit or LD_
            no url: invalid mcp_server.url: is no URL
            a file: invalid mcp_server.url: expected http or https, and a host
            a password: invalid mcp_server.url: has a password in it: name a secret in secret_refs instead
            a header of ours: invalid mcp_server.secret_refs: of a url, a key is a header that the protocol does not use itself
            a header of HTTP's: invalid mcp_server.secret_refs: of a url, a key is a header that the protocol does not use itself
            no header: invalid mcp_server.secret_refs: of a url, a key is a header that the protocol does not use itself
            a path as secret: invalid mcp_server.secret_refs: a secret's name is 1 to 64 characters of a-z, A-Z, 0-9, . _ and -, and does not begin with a dot
        "#]].assert_eq(&lines);
    }
}
