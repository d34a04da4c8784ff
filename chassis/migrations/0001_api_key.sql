-- The keys people make for their programs. The secret itself is never stored.
create table auth.api_key
(
    id            text        primary key check (id ~ '^key_[0-9a-hjkmnp-tv-z]{26}$'),
    tenant_id     text        not null check (tenant_id ~ '^[a-z0-9_-]{1,64}$'),

    -- Whom a call with this key is attributed to.
    subject       text        not null check (length(subject) between 1 and 256),

    -- What people call the key; it is not unique.
    name          text        not null check (length(name) between 1 and 200),

    -- The secret is 256 random bits, so a plain hash is as strong as a slow one.
    secret_sha256 bytea       not null check (length(secret_sha256) = 32),

    -- `internal` is missing on purpose: only services hold it, and they have no keys.
    scopes        text[]      not null check (
        cardinality(scopes) > 0 and scopes <@ array['read', 'run', 'configure', 'admin']
    ),

    created_at    timestamptz not null default now(),
    expires_at    timestamptz,
    revoked_at    timestamptz
);

create index api_key_by_tenant on auth.api_key (tenant_id, id);
