use chassis::Tenant;
use jiff::Timestamp;
use jiff_sqlx::Timestamp as Time;
use sqlx::PgExecutor;

use crate::error::Result;

/// What sums can be made by, in the order of their columns.
pub const DIMENSIONS: [&str; 6] =
    ["subject", "session", "session_tree", "provider", "model", "day"];

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    pub start: Timestamp,
    pub end: Timestamp,
    /// Which of [`DIMENSIONS`].
    pub by: [bool; 6],
    /// Empty: all.
    pub root_session_id: String,
}

/// One group: the dimensions that were asked for, and the rest empty; then the currency.
pub type Group = [String; 7];

#[derive(Debug, PartialEq)]
pub struct Usage {
    pub group: Group,
    pub requests: i64,
    pub input: i64,
    pub output: i64,
    pub reasoning: i64,
    pub cache_read: i64,
    pub cache_write: i64,
    pub cost_micros: i64,
}

/// The sums behind the group `after`, in the order of groups.
pub async fn sums(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    question: &Question,
    after: Option<&Group>,
    limit: i64,
) -> Result<Vec<Usage>> {
    let Question { start, end, by, root_session_id } = question;
    let after = after.map(|group| group.as_slice());
    // Two questions, because one that leaves out the tree has no index for it.
    macro_rules! sums {
        ($filter:tt) => {
            sqlx::query!(
                r#"
                select array[subject, session, tree, provider, model, day, currency] as "group!",
                    requests as "requests!", input as "input!", output as "output!", reasoning as "reasoning!",
                    cache_read as "cache_read!", cache_write as "cache_write!", cost_micros as "cost_micros!"
                from (
                    select case when $4 then subject else '' end as subject,
                        case when $5 then session_id else '' end as session,
                        case when $6 then root_session_id else '' end as tree,
                        case when $7 then provider else '' end as provider,
                        case when $8 then provider || '/' || model else '' end as model,
                        case when $9 then to_char(started_at at time zone 'UTC', 'YYYY-MM-DD') else '' end as day,
                        currency,
                        count(*) as requests,
                        sum(input)::bigint as input,
                        sum(output)::bigint as output,
                        sum(reasoning)::bigint as reasoning,
                        sum(cache_read)::bigint as cache_read,
                        sum(cache_write)::bigint as cache_write,
                        sum(cost_micros)::bigint as cost_micros
                    from models.request
                    where tenant_id = $1 and started_at >= $2 and started_at < $3
                        and status <> 'running' and "# + $filter + r#"
                    group by 1, 2, 3, 4, 5, 6, 7
                ) as sums
                where $11::text[] is null or array[subject, session, tree, provider, model, day, currency] > $11
                order by 1
                limit $12
                "#,
                tenant.as_str(),
                Time::from(*start) as _,
                Time::from(*end) as _,
                by[0],
                by[1],
                by[2],
                by[3],
                by[4],
                by[5],
                root_session_id,
                after as _,
                limit,
            )
            .fetch_all(db)
            .await?
            .into_iter()
            .map(|row| {
                let group = Group::try_from(row.group).unwrap_or_default();
                let (requests, cost_micros) = (row.requests, row.cost_micros);
                let (input, output, reasoning) = (row.input, row.output, row.reasoning);
                let (cache_read, cache_write) = (row.cache_read, row.cache_write);
                Usage { group, requests, input, output, reasoning, cache_read, cache_write, cost_micros }
            })
            .collect()
        };
    }
    Ok(match root_session_id.as_str() {
        "" => sums!("$10 = ''"),
        _ => sums!("root_session_id = $10"),
    })
}
