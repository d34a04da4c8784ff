//! Makes a long past out of a short one: a turn that really ran, copied behind the API,
//! because running it ten thousand times would take longer than everything else.

use anyhow::Result;
use sqlx::PgConnection;
use tests::Session;

use crate::stage::Stage;

/// A session with so many turns of two messages.
pub async fn session(stage: &mut Stage, turns: i64) -> Result<Session> {
    let session = stage.client().create_session().await;
    session.run("repeat 64 word").await;
    let mut database = stage.database().await?;
    for copy in [EVENTS, TURNS, MESSAGES, PARTS, RUN_STATE] {
        sqlx::query(copy).bind(&session.id).bind(turns - 1).execute(&mut database).await?;
    }
    tidy(&mut database).await?;
    Ok(session)
}

/// The same, and all of it is summarized: the model sees nothing but a summary.
pub async fn compacted(stage: &mut Stage, turns: i64) -> Result<Session> {
    let session = session(stage, turns).await?;
    let mut database = stage.database().await?;
    for step in [MARKER_EVENT, MARKER, MARKER_PART, RUN_STATE] {
        sqlx::query(step).bind(&session.id).bind(turns).execute(&mut database).await?;
    }
    Ok(session)
}

/// What an hour of quiet would do by itself.
async fn tidy(database: &mut PgConnection) -> Result<()> {
    for table in ["event", "turn", "chat_messages", "chat_parts"] {
        let vacuum = sqlx::AssertSqlSafe(format!("vacuum analyze session.{table}"));
        sqlx::raw_sql(vacuum).execute(&mut *database).await?;
    }
    Ok(())
}

// Whole rows with a few columns replaced, so that new columns need no change here. The turn
// that is copied is every event after the first two; copy `n` of it is `n` times as far on.
// Ids are 26 characters that end in one of few; a zero is one of them.
const EVENTS: &str = "
    with original as (select * from session.event where session_id = $1 and seq > 2)
    insert into session.event
    select copy.*
    from original e, (select count(*) from original) as events(count), generate_series(1, $2) n,
         jsonb_populate_record(null::session.event, to_jsonb(e) || jsonb_build_object('seq', e.seq + n * events.count)) copy";

const TURNS: &str = "
    insert into session.turn
    select copy.*
    from session.turn t, generate_series(1, $2) n,
         jsonb_populate_record(t, jsonb_build_object(
             'id', 'turn_' || lpad(n::text, 25, '0') || '0',
             'message_id', 'msg_' || lpad((n * 2)::text, 25, '0') || '0',
             'submitted_at', t.submitted_at + n * interval '1 ms')) copy
    where t.session_id = $1";

const MESSAGES: &str = "
    with turn as (select count(*) / ($2 + 1) as events from session.event where session_id = $1 and seq > 2)
    insert into session.chat_messages
    select copy.*
    from session.chat_messages m, turn, generate_series(1, $2) n,
         jsonb_populate_record(m, jsonb_build_object(
             'id', 'msg_' || lpad((n * 2 + (m.role = 'assistant')::int)::text, 25, '0') || '0',
             'turn_id', 'turn_' || lpad(n::text, 25, '0') || '0',
             'request_id', m.request_id || '-' || n,
             'position', m.position + n * turn.events)) copy
    where m.session_id = $1";

const PARTS: &str = "
    insert into session.chat_parts
    select copy.*
    from session.chat_parts p
    join session.chat_messages m on m.session_id = p.session_id and m.id = p.message_id, generate_series(1, $2) n,
         jsonb_populate_record(p, jsonb_build_object(
             'message_id', 'msg_' || lpad((n * 2 + (m.role = 'assistant')::int)::text, 25, '0') || '0')) copy
    where p.session_id = $1";

const RUN_STATE: &str = "
    update session.run_state
    set next_seq = (select max(seq) + 1 from session.event where session_id = $1)
    where session_id = $1 and $2 > 0";

// What a compaction leaves behind: an event, and a message with one part at its place.
const MARKER_EVENT: &str = "
    insert into session.event
    select copy.*
    from (select * from session.event where session_id = $1 and $2 > 0 order by seq desc limit 1) e,
         jsonb_populate_record(null::session.event, to_jsonb(e) || jsonb_build_object(
             'seq', e.seq + 1, 'type', 'context.compaction.completed', 'payload', '{}'::jsonb)) copy";

const MARKER: &str = "
    insert into session.chat_messages
    select copy.*
    from (select * from session.chat_messages
          where session_id = $1 and role = 'assistant' and $2 > 0 order by position desc limit 1) m,
         jsonb_populate_record(null::session.chat_messages, to_jsonb(m) || jsonb_build_object(
             'id', 'msg_' || repeat('0', 24) || '10', 'synthetic', true,
             'position', (select max(seq) from session.event where session_id = $1))) copy";

const MARKER_PART: &str = r#"
    insert into session.chat_parts (session_id, message_id, index, id, type, data_json, folded_seq)
    select $1, 'msg_' || repeat('0', 24) || '10', 0, 'prt_' || repeat('0', 24) || '10', 'data-compaction',
        '{"summary": "Words were repeated.", "tail_start_id": null, "auto": false, "summary_tokens": 4}',
        (select max(seq) from session.event where session_id = $1)
    where $2 > 0"#;
