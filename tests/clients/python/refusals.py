"""What can go wrong, and how it looks; `proto/windlass/error/v1/reason.proto` has all of it."""

import os

from calls import BEARER, call, expect, refused, retry_delay, step
from windlass.session.v1 import (
    jobs_pb2, keys_pb2, memories_pb2, sessions_pb2, streams_pb2, subagents_pb2, tasks_pb2, turns_pb2,
)  # fmt: skip
from windlass.session.v1.jobs_pb2_grpc import JobServiceStub
from windlass.session.v1.keys_pb2_grpc import KeyServiceStub
from windlass.session.v1.memories_pb2_grpc import MemoryServiceStub
from windlass.session.v1.sessions_pb2_grpc import SessionServiceStub
from windlass.session.v1.streams_pb2_grpc import StreamServiceStub
from windlass.session.v1.subagents_pb2_grpc import SubagentServiceStub
from windlass.session.v1.tasks_pb2_grpc import TaskServiceStub
from windlass.session.v1.turns_pb2_grpc import TurnServiceStub

# Well-formed, and nobody's.
NO_SESSION = "ses_06evr8d2ksw3x4qg9rjc10t5mm"
NO_TURN = "turn_06evr8d2ksw3x4qg9rjc10t5mm"
NO_ACTION = "act_06evr8d2ksw3x4qg9rjc10t5mm"
NO_MESSAGE = "msg_06evr8d2ksw3x4qg9rjc10t5mm"
NO_TASK = "task_06evr8d2ksw3x4qg9rjc10t5mm"
NO_JOB = "job_06evr8d2ksw3x4qg9rjc10t5mm"
NO_CHILD = "sub_06evr8d2ksw3x4qg9rjc10t5mm"
NO_KEY = "key_06evr8d2ksw3x4qg9rjc10t5mm"

# How many readers are too many for this server. Unset: it is too large to find out.
CROWD = int(os.environ.get("WINDLASS_CROWD", 0))


async def refusals(channel, session_id, over, cancelled):
    """Meets errors in a session with a turn that is over and one that was cancelled."""
    sessions, turns = SessionServiceStub(channel), TurnServiceStub(channel)
    streams, tasks, keys = StreamServiceStub(channel), TaskServiceStub(channel), KeyServiceStub(channel)
    jobs, children, memories = JobServiceStub(channel), SubagentServiceStub(channel), MemoryServiceStub(channel)

    def get(session_id, metadata=BEARER):
        request = sessions_pb2.GetSessionRequest(session_id=session_id)
        return call(sessions.GetSession, request, metadata)

    def create(metadata=BEARER, **fields):
        return call(sessions.CreateSession, sessions_pb2.CreateSessionRequest(**fields), metadata)

    def list_with(page_token):
        return call(sessions.ListSessions, sessions_pb2.ListSessionsRequest(page_token=page_token))

    def unrewind():
        request = sessions_pb2.UnrewindSessionRequest(session_id=session_id)
        return call(sessions.UnrewindSession, request)

    def turn(method, request, **fields):
        return call(method, request(session_id=session_id, **fields))

    def upload(data):
        request = sessions_pb2.ImportSessionRequest(request_id=f"upload-{session_id}", data=data)
        return call(sessions.ImportSession, iter([request]))

    async def subscribe(timeout=None, **fields):
        request = streams_pb2.SubscribeRequest(session_id=session_id, **fields)
        async for _ in streams.Subscribe(request, timeout=timeout, metadata=BEARER):
            pass

    used = f"used-{session_id}"
    await create(request_id=used, title="The first")
    reader = keys_pb2.CreateKeyRequest(name="a reader", subject="example", scopes=["read"])
    reader = await call(keys.CreateKey, reader)
    read_only = [("authorization", f"Bearer {reader.secret}")]
    odd = [*BEARER, ("x-request-id", "not an id")]

    for what, awaitable, *expected in [
        ("without a key", get(session_id, []), "UNAUTHENTICATED", "REASON_UNAUTHENTICATED"),
        ("with a key that may only read", create(read_only), "PERMISSION_DENIED", "REASON_SCOPE_MISSING"),
        ("with a malformed header", get(session_id, odd), "INVALID_ARGUMENT", "REASON_INVALID_METADATA"),
        ("a malformed id", get("ses_1"), "INVALID_ARGUMENT", "REASON_INVALID_FIELD", "session_id"),
        ("a turn without words", turn(turns.SubmitTurn, turns_pb2.SubmitTurnRequest, request_id="x"),
         "INVALID_ARGUMENT", "REASON_INVALID_FIELD", "parts"),
        ("a made-up page", list_with("x"), "INVALID_ARGUMENT", "REASON_INVALID_CURSOR", "page_token"),
        ("an unknown session", get(NO_SESSION), "NOT_FOUND", "REASON_SESSION_NOT_FOUND"),
        ("an unknown turn", turn(turns.GetTurn, turns_pb2.GetTurnRequest, turn_id=NO_TURN),
         "NOT_FOUND", "REASON_TURN_NOT_FOUND"),
        ("an unknown action", turn(turns.RespondAction, turns_pb2.RespondActionRequest, action_id=NO_ACTION, decision=1),
         "NOT_FOUND", "REASON_ACTION_NOT_FOUND"),
        ("an unknown message", turn(sessions.ForkSession, sessions_pb2.ForkSessionRequest, request_id="x", message_id=NO_MESSAGE),
         "NOT_FOUND", "REASON_MESSAGE_NOT_FOUND"),
        ("an unknown task", call(tasks.GetTask, tasks_pb2.GetTaskRequest(task_id=NO_TASK)), "NOT_FOUND", "REASON_TASK_NOT_FOUND"),
        ("an unknown job", call(jobs.GetJob, jobs_pb2.GetJobRequest(job_id=NO_JOB)), "NOT_FOUND", "REASON_JOB_NOT_FOUND"),
        ("an unknown subagent", call(children.CloseSubagent, subagents_pb2.CloseSubagentRequest(subagent_id=NO_CHILD)),
         "NOT_FOUND", "REASON_SUBAGENT_NOT_FOUND"),
        ("an unknown memory", call(memories.ReadMemory, memories_pb2.ReadMemoryRequest(scope="user", name="nothing")),
         "NOT_FOUND", "REASON_MEMORY_NOT_FOUND"),
        ("an import of something else", upload(b"a diary\n"), "INVALID_ARGUMENT", "REASON_IMPORT_INVALID"),
        ("an unknown key", call(keys.RevokeKey, keys_pb2.RevokeKeyRequest(key_id=NO_KEY)), "NOT_FOUND", "REASON_KEY_NOT_FOUND"),
        ("an unknown agent", create(request_id="x", agent="nobody"), "NOT_FOUND", "REASON_AGENT_NOT_FOUND"),
        ("a used request id", create(request_id=used, title="Other"), "ALREADY_EXISTS", "REASON_REQUEST_ID_REUSED"),
        ("a late interrupt", turn(turns.InterruptTurn, turns_pb2.InterruptTurnRequest, turn_id=over),
         "FAILED_PRECONDITION", "REASON_TURN_OVER"),
        ("a late cancel", turn(turns.CancelQueuedTurn, turns_pb2.CancelQueuedTurnRequest, turn_id=cancelled),
         "FAILED_PRECONDITION", "REASON_TURN_NOT_QUEUED"),
        ("an undo of nothing", unrewind(), "FAILED_PRECONDITION", "REASON_NOTHING_TO_REWIND"),
        ("a cursor beyond the end", subscribe(after_sequence=10**6), "OUT_OF_RANGE", "REASON_CURSOR_AHEAD"),
        ("more time", subscribe(0.3, live=True), "DEADLINE_EXCEEDED", "REASON_DEADLINE_EXCEEDED"),
    ]:  # fmt: skip
        await refused(what, awaitable, *expected)
    await call(keys.RevokeKey, keys_pb2.RevokeKeyRequest(key_id=reader.key.key_id))

    if not CROWD:
        return step("did not crowd the server: WINDLASS_CROWD is not set")
    readers = []
    try:
        too_many = crowd(streams, session_id, readers)
        error = await refused("a place in the crowd", too_many, "RESOURCE_EXHAUSTED", "REASON_OVERLOADED")
        expect(retry_delay(error) >= 1, "nobody said when to come back")
    finally:
        for reader in readers:
            reader.cancel()


async def crowd(streams, session_id, readers):
    """Opens streams until the server has no more room."""
    request = streams_pb2.SubscribeRequest(session_id=session_id)
    for _ in range(CROWD):
        readers.append(streams.Subscribe(request, metadata=BEARER))
        await readers[-1].read()
