// What a client of Windlass does, from the first session to the last error.
//
// It prints each step, and stops at the first promise that is not kept.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { Reason } from "../gen/windlass/error/v1/reason_pb.js";
import type { Event } from "../gen/windlass/event/v1/event_pb.js";
import { SessionService } from "../gen/windlass/session/v1/sessions_pb.js";
import { StreamService } from "../gen/windlass/session/v1/streams_pb.js";
import {
  RespondActionRequest_Decision as Decision,
  SubmitTurnRequest_RunPolicy as RunPolicy,
  type Turn,
  TurnService,
  Turn_Status as TurnStatus,
} from "../gen/windlass/session/v1/turns_pb.js";
import { ADDRESS, Broken, connect, expect, KEY, refused, retryDelay, step } from "./calls.js";
import { Cut } from "./cut.js";
import { refusals } from "./refusals.js";

// A stream that ends so can be resumed: the server stops, is away, or we were too slow; the last
// two are what Connect makes of a connection that is lost.
const PASSING = [Code.Unavailable, Code.ResourceExhausted, Code.Canceled, Code.Aborted];

const ASK =
  'call question {"questions": [{"prompt": "Which colour?", "options": ' +
  '[{"value": "red", "label": "Red"}, {"value": "blue", "label": "Blue"}]}]}';

/** One conversation, and its events in order. */
class Session {
  cuts = 0;
  private lastSequence = 0n;
  private events = this.follow();

  constructor(
    readonly sessionId: string,
    private turns: Client<typeof TurnService>,
    private streams: Client<typeof StreamService>,
  ) {}

  /** What the user says; below the marker, what the scripted model will do about it. */
  turn(script: string, runPolicy = RunPolicy.UNSPECIFIED) {
    const text = `Please.\n#!script\n${script}`;
    const parts = [{ content: { case: "text" as const, value: text } }];
    return { sessionId: this.sessionId, requestId: newId(), parts, runPolicy };
  }

  async submit(script: string): Promise<Turn> {
    return (await this.turns.submitTurn(this.turn(script))).turn!;
  }

  /** Every event once, in order, for ever. Whoever is cut off asks for what follows. */
  private async *follow(): AsyncGenerator<Event, never> {
    for (;;) {
      try {
        // After zero is from the start.
        const from = { case: "afterSequence" as const, value: this.lastSequence };
        for await (const { item } of this.streams.subscribe({ sessionId: this.sessionId, from })) {
          if (item.case !== "event") continue; // The snapshot, which is first.
          const event = item.value;
          expect(event.sequence === this.lastSequence + 1n, `a gap before ${event.sequence}`);
          this.lastSequence = event.sequence;
          yield event;
        }
      } catch (thrown) {
        const error = ConnectError.from(thrown);
        if (thrown instanceof Broken || !PASSING.includes(error.code)) throw thrown;
        this.cuts += 1;
        await sleep(retryDelay(error));
      }
    }
  }

  /** Reads on until the turn has an event of one of these types. */
  async until(turn: Turn, ...types: string[]): Promise<Event[]> {
    const seen: Event[] = [];
    for (;;) {
      // Not `for await`, which would end the stream when it is left.
      const { value: event } = await this.events.next();
      seen.push(event);
      if (event.turnId === turn.turnId && types.includes(event.type)) return seen;
    }
  }

  async untilEnded(turn: Turn, end = "turn.completed"): Promise<Event[]> {
    const seen = await this.until(turn, "turn.completed", "turn.failed");
    expect(seen.at(-1)!.type === end, `expected ${end}, not ${seen.at(-1)!.type}`);
    return seen;
  }
}

async function story(cut: Cut) {
  const transport = connect(ADDRESS, KEY);
  const sessions = createClient(SessionService, transport);
  const turns = createClient(TurnService, transport);

  // Calls that create something carry an id of ours, so that they can be repeated.
  const create = { requestId: newId(), title: "A client in TypeScript" };
  const { sessionId } = (await sessions.createSession(create)).session!;
  const again = (await sessions.createSession(create)).session!;
  expect(sessionId === again.sessionId, "a repeated request made a second session");
  const streams = createClient(StreamService, connect(cut.address, KEY));
  const session = new Session(sessionId, turns, streams);
  step(`created ${sessionId}, and only once`);

  // Submitted first and read from the start: the log keeps what nobody saw.
  const hello = session.turn("say Hello from a script.");
  let turn = (await turns.submitTurn(hello)).turn!;
  const same = (await turns.submitTurn(hello)).turn!;
  expect(turn.turnId === same.turnId, "a repeated request made a second turn");
  let seen = await session.untilEnded(turn);
  expect(seen[0].type === "session.created", `the log begins with ${seen[0].type}`);
  expect(said(seen) === "Hello from a script.", `the model said ${said(seen)}`);
  step(`read a whole turn in ${seen.length} events without a gap`);

  // What may destroy something waits for a person.
  turn = await session.submit('call bash {"command": "echo hi | tee file"}\n---\nsay Done.');
  let asked = (await session.until(turn, "action.required")).at(-1)!;
  const about = asked.payload.case === "actionRequired" ? asked.payload.value.tool : "";
  expect(about === "bash", `asked about ${about}`);
  const approve = { sessionId, actionId: asked.actionId, decision: Decision.ONCE };
  await turns.respondAction(approve);
  seen = await session.untilEnded(turn);
  expect(seen.some((event) => event.type === "tool.result"), "the approved call did not run");
  step("approved a command, which then ran");
  const late = turns.respondAction(approve);
  await refused("a second answer", late, Code.FailedPrecondition, Reason.ACTION_RESOLVED);

  // The model asks; the answer becomes the tool's result in the same turn.
  turn = await session.submit(`${ASK}\n---\nsay You chose {{tool_result}}`);
  asked = (await session.until(turn, "action.required")).at(-1)!;
  const answer = { sessionId, actionId: asked.actionId };
  const empty = turns.answerQuestion(answer);
  await refused("no answer", empty, Code.InvalidArgument, Reason.ACTION_WRONG_ANSWER);
  await turns.answerQuestion({ ...answer, answers: [{ values: ["blue"] }] });
  const text = said(await session.untilEnded(turn));
  expect(text.includes("blue") && !text.includes("red"), `the model said ${text}`);
  step("answered a question");

  // A connection breaks in the middle; `follow` goes on where it was.
  turn = await session.submit("pace 10ms\nrepeat 100 tick");
  seen = await session.until(turn, "model.delta");
  cut.now();
  seen.push(...(await session.untilEnded(turn)));
  expect(session.cuts > 0, "the stream was not cut");
  expect(said(seen) === "tick".repeat(100), `the model said ${said(seen)}`);
  step("was cut off, and resumed without a gap or a duplicate");

  // One turn runs at a time, the others wait.
  const running = await session.submit("say Still here.\nhang");
  await session.until(running, "model.delta");
  const hasty = turns.submitTurn(session.turn("say Now.", RunPolicy.REJECT));
  await refused("a turn that will not wait", hasty, Code.FailedPrecondition, Reason.SESSION_BUSY);
  const waiting = await session.submit("say Never said.");
  expect(waiting.status === TurnStatus.QUEUED, `the second turn is ${waiting.status}`);
  const queue = (await turns.listQueue({ sessionId })).turns.map((queued) => queued.turnId);
  expect(queue.join() === waiting.turnId, `the queue is ${queue}`);
  const cancelled = (await turns.cancelQueuedTurn({ sessionId, turnId: waiting.turnId })).turn!;
  expect(cancelled.status === TurnStatus.CANCELLED, `the cancelled turn is ${cancelled.status}`);
  step("queued a turn, and took it back");

  await turns.interruptTurn({ sessionId, reason: "That is enough." });
  const { payload } = (await session.untilEnded(running, "turn.failed")).at(-1)!;
  const ended = payload.case === "turnFailed" ? payload.value : undefined;
  expect(`${ended?.status} ${ended?.reason}` === "cancelled interrupted", `it ${ended?.reason}`);
  step("interrupted a turn that would not end");

  await refusals(sessionId, running.turnId, waiting.turnId);
}

function said(events: Event[]): string {
  const deltas = events.map(({ payload }) => (payload.case === "modelDelta" ? payload.value.text : ""));
  return deltas.join("");
}

function newId(): string {
  return `typescript-${randomUUID()}`;
}

const began = Date.now();
const late = setTimeout(() => {
  console.error("a promise was not kept: this takes longer than a minute");
  process.exit(1);
}, 60_000);
try {
  await story(await Cut.to(ADDRESS));
  console.log(`every promise was kept, in ${((Date.now() - began) / 1000).toFixed(1)} s`);
  process.exit(0);
} catch (error) {
  if (!(error instanceof Broken || error instanceof ConnectError)) throw error;
  console.error(`a promise was not kept: ${error.message}`);
  process.exit(1);
} finally {
  clearTimeout(late);
}
