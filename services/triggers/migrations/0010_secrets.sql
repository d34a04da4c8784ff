-- What senders prove themselves with. Those of webhooks have to be known again, so they are sealed
-- with a key of the operator's; of credentials a hash is enough.
create table triggers.secret
(
    id         text        primary key,
    trigger_id text        not null references triggers.trigger (id) on delete cascade,
    sealed     bytea,
    sha256     bytea,

    -- By the clock of the database, which all replicas share.
    created_at timestamptz not null default clock_timestamp(),

    -- When it stops working, after another has taken its place.
    expires_at timestamptz,

    check ((sealed is null) <> (sha256 is null))
);

create index secret_of_trigger on triggers.secret (trigger_id, id);
