-- What agents and people keep across sessions. Only names and descriptions enter a prompt;
-- bodies are read on demand. A memory belongs to no turn, so that rewinding one leaves it.
create table session.memory
(
    tenant_id   text        not null,
    scope       text        not null check (scope in ('user', 'project')),

    -- Of user memories the subject, of project memories the project.
    owner       text        not null,
    name        text        not null check (length(name) between 1 and 64),
    description text        not null check (length(description) between 1 and 200),
    type        text        not null,
    body        text        not null check (octet_length(body) <= 65536),
    updated_at  timestamptz not null default now(),

    primary key (tenant_id, scope, owner, name)
);

-- Finds the last compaction of a session without reading the conversation. A message never
-- becomes synthetic or ceases to be, so updates of messages stay on their page.
create index chat_messages_synthetic on session.chat_messages (session_id, position) where synthetic;
