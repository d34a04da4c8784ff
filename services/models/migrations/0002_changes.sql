-- Who changed which limit or budget, so that the sessions it governs can say so. Only the newest are
-- kept: a session hears of a change with its next call, and whoever wants to know more asks now.
create table models.change
(
    tenant_id  text        not null,
    id         bigint      not null generated always as identity,

    -- As in `rule`; of a budget `budget` and its id.
    name       text        not null,
    scope      text        not null,
    key        text        not null,

    -- Zero: there was none, or is none any more.
    before     bigint      not null,
    after      bigint      not null,
    subject    text        not null,
    changed_at timestamptz not null default clock_timestamp(),
    primary key (tenant_id, id)
);
