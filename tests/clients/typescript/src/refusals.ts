// What can go wrong, and how it looks; `proto/windlass/error/v1/reason.proto` has all of it.

import { Code, createClient } from "@connectrpc/connect";
import { Reason } from "../gen/windlass/error/v1/reason_pb.js";
import { JobService } from "../gen/windlass/session/v1/jobs_pb.js";
import { KeyService } from "../gen/windlass/session/v1/keys_pb.js";
import { MemoryService } from "../gen/windlass/session/v1/memories_pb.js";
import { SessionService } from "../gen/windlass/session/v1/sessions_pb.js";
import { StreamService } from "../gen/windlass/session/v1/streams_pb.js";
import { SubagentService } from "../gen/windlass/session/v1/subagents_pb.js";
import { TaskService } from "../gen/windlass/session/v1/tasks_pb.js";
import { TurnService } from "../gen/windlass/session/v1/turns_pb.js";
import { ADDRESS, connect, expect, KEY, refused, retryDelay, step } from "./calls.js";

// Well-formed, and nobody's.
const NO_SESSION = "ses_06evr8d2ksw3x4qg9rjc10t5mm";
const NO_TURN = "turn_06evr8d2ksw3x4qg9rjc10t5mm";
const NO_ACTION = "act_06evr8d2ksw3x4qg9rjc10t5mm";
const NO_MESSAGE = "msg_06evr8d2ksw3x4qg9rjc10t5mm";
const NO_TASK = "task_06evr8d2ksw3x4qg9rjc10t5mm";
const NO_JOB = "job_06evr8d2ksw3x4qg9rjc10t5mm";
const NO_CHILD = "sub_06evr8d2ksw3x4qg9rjc10t5mm";
const NO_KEY = "key_06evr8d2ksw3x4qg9rjc10t5mm";

/** How many readers are too many for this server. Unset: it is too large to find out. */
const CROWD = Number(process.env.WINDLASS_CROWD ?? 0);

/** Meets errors in a session with a turn that is over and one that was cancelled. */
export async function refusals(sessionId: string, over: string, cancelled: string) {
  const transport = connect(ADDRESS, KEY);
  const sessions = createClient(SessionService, transport);
  const turns = createClient(TurnService, transport);
  const streams = createClient(StreamService, transport);
  const tasks = createClient(TaskService, transport);
  const jobs = createClient(JobService, transport);
  const children = createClient(SubagentService, transport);
  const memories = createClient(MemoryService, transport);
  const keys = createClient(KeyService, transport);

  const used = { requestId: `used-${sessionId}`, title: "The first" };
  await sessions.createSession(used);
  const key = { name: "a reader", subject: "example", scopes: ["read"] };
  const reader = await keys.createKey(key);
  const stranger = createClient(SessionService, connect(ADDRESS));
  const readOnly = createClient(SessionService, connect(ADDRESS, reader.secret));
  const odd = { headers: { "x-request-id": "not an id" } };
  const beyond = { case: "afterSequence" as const, value: 1_000_000n };

  const diary = async function* () {
    yield { requestId: `upload-${sessionId}`, data: new TextEncoder().encode("a diary\n") };
  };

  const rows: [string, () => Promise<unknown>, Code, Reason, string?][] = [
    ["without a key", () => stranger.getSession({ sessionId }), Code.Unauthenticated, Reason.UNAUTHENTICATED],
    ["with a key that may only read", () => readOnly.createSession(used), Code.PermissionDenied, Reason.SCOPE_MISSING],
    ["with a malformed header", () => sessions.getSession({ sessionId }, odd), Code.InvalidArgument, Reason.INVALID_METADATA],
    ["a malformed id", () => sessions.getSession({ sessionId: "ses_1" }), Code.InvalidArgument, Reason.INVALID_FIELD, "session_id"],
    ["a turn without words", () => turns.submitTurn({ sessionId, requestId: "x" }), Code.InvalidArgument, Reason.INVALID_FIELD, "parts"],
    ["a made-up page", () => sessions.listSessions({ pageToken: "x" }), Code.InvalidArgument, Reason.INVALID_CURSOR, "page_token"],
    ["an unknown session", () => sessions.getSession({ sessionId: NO_SESSION }), Code.NotFound, Reason.SESSION_NOT_FOUND],
    ["an unknown turn", () => turns.getTurn({ sessionId, turnId: NO_TURN }), Code.NotFound, Reason.TURN_NOT_FOUND],
    ["an unknown action", () => turns.respondAction({ sessionId, actionId: NO_ACTION, decision: 1 }), Code.NotFound, Reason.ACTION_NOT_FOUND],
    ["an unknown message", () => sessions.forkSession({ sessionId, requestId: "x", messageId: NO_MESSAGE }), Code.NotFound, Reason.MESSAGE_NOT_FOUND],
    ["an unknown task", () => tasks.getTask({ taskId: NO_TASK }), Code.NotFound, Reason.TASK_NOT_FOUND],
    ["an unknown job", () => jobs.getJob({ jobId: NO_JOB }), Code.NotFound, Reason.JOB_NOT_FOUND],
    ["an unknown subagent", () => children.closeSubagent({ subagentId: NO_CHILD }), Code.NotFound, Reason.SUBAGENT_NOT_FOUND],
    ["an unknown memory", () => memories.readMemory({ scope: "user", name: "nothing" }), Code.NotFound, Reason.MEMORY_NOT_FOUND],
    ["an import of something else", () => sessions.importSession(diary()), Code.InvalidArgument, Reason.IMPORT_INVALID],
    ["an unknown key", () => keys.revokeKey({ keyId: NO_KEY }), Code.NotFound, Reason.KEY_NOT_FOUND],
    ["an unknown agent", () => sessions.createSession({ requestId: "x", agent: "nobody" }), Code.NotFound, Reason.AGENT_NOT_FOUND],
    ["a used request id", () => sessions.createSession({ ...used, title: "Another" }), Code.AlreadyExists, Reason.REQUEST_ID_REUSED],
    ["a late interrupt", () => turns.interruptTurn({ sessionId, turnId: over }), Code.FailedPrecondition, Reason.TURN_OVER],
    ["a late cancel", () => turns.cancelQueuedTurn({ sessionId, turnId: cancelled }), Code.FailedPrecondition, Reason.TURN_NOT_QUEUED],
    ["an undo of nothing", () => sessions.unrewindSession({ sessionId }), Code.FailedPrecondition, Reason.NOTHING_TO_REWIND],
    ["a cursor beyond the end", () => drain(streams.subscribe({ sessionId, from: beyond })), Code.OutOfRange, Reason.CURSOR_AHEAD],
    ["more time", () => drain(streams.subscribe({ sessionId }, { timeoutMs: 300 })), Code.DeadlineExceeded, Reason.DEADLINE_EXCEEDED],
  ];
  for (const [what, call, code, reason, field] of rows) {
    await refused(what, call(), code, reason, field);
  }
  await keys.revokeKey({ keyId: reader.key!.keyId });

  if (!CROWD) return step("did not crowd the server: WINDLASS_CROWD is not set");
  const leave = new AbortController();
  const crowd = async () => {
    for (let reader = 0; reader < CROWD; reader += 1) {
      const stream = streams.subscribe({ sessionId }, { signal: leave.signal });
      await stream[Symbol.asyncIterator]().next();
    }
  };
  const error = await refused("a place in the crowd", crowd(), Code.ResourceExhausted, Reason.OVERLOADED);
  leave.abort();
  expect(retryDelay(error) >= 1000, "nobody said when to come back");
}

/** Reads a stream to its end. */
async function drain(stream: AsyncIterable<unknown>) {
  for await (const _ of stream);
}
