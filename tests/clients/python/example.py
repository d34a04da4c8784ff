"""What a client of Windlass does, from the first session to the last error.

It prints each step, and stops at the first promise that is not kept.
"""

import asyncio
import sys
import time
import uuid

import grpc

from calls import ADDRESS, BEARER, Broken, call, expect, refused, retry_delay, step
from cut import Cut
from refusals import refusals
from windlass.event.v1.action_pb2 import Answer
from windlass.session.v1.sessions_pb2 import CreateSessionRequest
from windlass.session.v1.sessions_pb2_grpc import SessionServiceStub
from windlass.session.v1.streams_pb2 import SubscribeRequest
from windlass.session.v1.streams_pb2_grpc import StreamServiceStub
from windlass.session.v1.turns_pb2 import (
    AnswerQuestionRequest,
    CancelQueuedTurnRequest,
    InputPart,
    InterruptTurnRequest,
    ListQueueRequest,
    RespondActionRequest,
    SubmitTurnRequest,
    Turn,
)
from windlass.session.v1.turns_pb2_grpc import TurnServiceStub

# A stream that ends so can be resumed: the server stops, is away, or we were too slow.
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)

ASK = (
    'call question {"questions": [{"prompt": "Which colour?", "options": '
    '[{"value": "red", "label": "Red"}, {"value": "blue", "label": "Blue"}]}]}'
)


class Session:
    """One conversation, and its events in order."""

    def __init__(self, session_id, turns, streams):
        self.id = session_id
        self.turns = turns
        self.streams = streams
        self.last_sequence = 0
        self.cuts = 0
        self.events = self.follow()

    def turn(self, script, **fields):
        """What the user says; below the marker, what the scripted model will do about it."""
        parts = [InputPart(text=f"Please.\n#!script\n{script}")]
        return SubmitTurnRequest(session_id=self.id, request_id=new_id(), parts=parts, **fields)

    async def submit(self, script):
        return (await call(self.turns.SubmitTurn, self.turn(script))).turn

    async def follow(self):
        """Every event once, in order, for ever. Whoever is cut off asks for what follows."""
        while True:
            # After zero is from the start.
            request = SubscribeRequest(session_id=self.id, after_sequence=self.last_sequence)
            try:
                async for response in self.streams.Subscribe(request, metadata=BEARER):
                    if response.WhichOneof("item") != "event":
                        continue  # The snapshot, which is first.
                    event = response.event
                    expect(event.sequence == self.last_sequence + 1, f"a gap before {event}")
                    self.last_sequence = event.sequence
                    yield event
            except grpc.aio.AioRpcError as error:
                if error.code() not in PASSING:
                    raise
                self.cuts += 1
                await asyncio.sleep(retry_delay(error))

    async def until(self, turn, *types):
        """Reads on until the turn has an event of one of these types."""
        seen = []
        async for event in self.events:
            seen.append(event)
            if event.turn_id == turn.turn_id and event.type in types:
                return seen

    async def until_ended(self, turn, end="turn.completed"):
        seen = await self.until(turn, "turn.completed", "turn.failed")
        expect(seen[-1].type == end, f"expected {end}, not {seen[-1]}")
        return seen


async def story(channel, weak, cut):
    sessions, turns = SessionServiceStub(channel), TurnServiceStub(channel)

    # Calls that create something carry an id of ours, so that they can be repeated.
    request = CreateSessionRequest(request_id=new_id(), title="A client in Python")
    created = (await call(sessions.CreateSession, request)).session
    again = (await call(sessions.CreateSession, request)).session
    expect(created.session_id == again.session_id, "a repeated request made a second session")
    session = Session(created.session_id, turns, StreamServiceStub(weak))
    step(f"created {session.id}, and only once")

    # Submitted first and read from the start: the log keeps what nobody saw.
    request = session.turn("say Hello from a script.")
    turn = (await call(turns.SubmitTurn, request)).turn
    again = (await call(turns.SubmitTurn, request)).turn
    expect(turn.turn_id == again.turn_id, "a repeated request made a second turn")
    seen = await session.until_ended(turn)
    expect(seen[0].type == "session.created", f"the log begins with {seen[0].type}")
    expect(said(seen) == "Hello from a script.", f"the model said {said(seen)!r}")
    step(f"read a whole turn in {len(seen)} events without a gap")

    # What may destroy something waits for a person.
    turn = await session.submit('call bash {"command": "echo hi | tee file"}\n---\nsay Done.')
    asked = (await session.until(turn, "action.required"))[-1]
    expect(asked.action_required.tool == "bash", f"asked about {asked}")
    approve = RespondActionRequest(
        session_id=session.id, action_id=asked.action_id, decision=RespondActionRequest.DECISION_ONCE
    )
    await call(turns.RespondAction, approve)
    seen = await session.until_ended(turn)
    expect(any(event.type == "tool.result" for event in seen), "the approved call did not run")
    step("approved a command, which then ran")
    late = call(turns.RespondAction, approve)
    await refused("a second answer", late, "FAILED_PRECONDITION", "REASON_ACTION_RESOLVED")

    # The model asks; the answer becomes the tool's result in the same turn.
    turn = await session.submit(f"{ASK}\n---\nsay You chose {{{{tool_result}}}}")
    asked = (await session.until(turn, "action.required"))[-1]
    answer = AnswerQuestionRequest(session_id=session.id, action_id=asked.action_id)
    empty = call(turns.AnswerQuestion, answer)
    await refused("no answer", empty, "INVALID_ARGUMENT", "REASON_ACTION_WRONG_ANSWER")
    answer.answers.append(Answer(values=["blue"]))
    await call(turns.AnswerQuestion, answer)
    text = said(await session.until_ended(turn))
    expect("blue" in text and "red" not in text, f"the model said {text!r}")
    step("answered a question")

    # A connection breaks in the middle; `follow` goes on where it was.
    turn = await session.submit("pace 10ms\nrepeat 100 tick")
    seen = await session.until(turn, "model.delta")
    cut.now()
    seen += await session.until_ended(turn)
    expect(session.cuts > 0, "the stream was not cut")
    expect(said(seen) == "tick" * 100, f"the model said {said(seen)!r}")
    step("was cut off, and resumed without a gap or a duplicate")

    # One turn runs at a time, the others wait.
    running = await session.submit("say Still here.\nhang")
    await session.until(running, "model.delta")
    hasty = session.turn("say Now.", run_policy=SubmitTurnRequest.RUN_POLICY_REJECT)
    hasty = call(turns.SubmitTurn, hasty)
    await refused("a turn that will not wait", hasty, "FAILED_PRECONDITION", "REASON_SESSION_BUSY")
    waiting = await session.submit("say Never said.")
    expect(waiting.status == Turn.STATUS_QUEUED, f"the second turn is not queued: {waiting}")
    queue = await call(turns.ListQueue, ListQueueRequest(session_id=session.id))
    expect([t.turn_id for t in queue.turns] == [waiting.turn_id], f"the queue is {queue.turns}")
    cancel = CancelQueuedTurnRequest(session_id=session.id, turn_id=waiting.turn_id)
    cancelled = (await call(turns.CancelQueuedTurn, cancel)).turn
    expect(cancelled.status == Turn.STATUS_CANCELLED, f"not cancelled: {cancelled}")
    step("queued a turn, and took it back")

    interrupt = InterruptTurnRequest(session_id=session.id, reason="That is enough.")
    await call(turns.InterruptTurn, interrupt)
    failed = (await session.until_ended(running, "turn.failed"))[-1].turn_failed
    expect((failed.status, failed.reason) == ("cancelled", "interrupted"), f"ended with {failed}")
    step("interrupted a turn that would not end")

    await refusals(channel, session.id, running.turn_id, waiting.turn_id)


def said(events):
    return "".join(event.model_delta.text for event in events if event.type == "model.delta")


def new_id():
    return f"python-{uuid.uuid4()}"


async def main():
    began = time.monotonic()
    async with (
        asyncio.timeout(60),
        Cut(ADDRESS) as cut,
        grpc.aio.insecure_channel(ADDRESS) as channel,
        grpc.aio.insecure_channel(cut.address) as weak,
    ):
        await story(channel, weak, cut)
    print(f"every promise was kept, in {time.monotonic() - began:.1f} s")


try:
    asyncio.run(main())
except (Broken, TimeoutError, grpc.aio.AioRpcError) as broken:
    sys.exit(f"a promise was not kept: {broken!r}")
