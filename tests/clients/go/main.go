// What a client of Windlass does, from the first session to the last error.
//
// It prints each step, and stops at the first promise that is not kept.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	errorv1 "example.com/windlass/gen/windlass/error/v1"
	eventv1 "example.com/windlass/gen/windlass/event/v1"
	sessionv1 "example.com/windlass/gen/windlass/session/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const ask = `call question {"questions": [{"prompt": "Which colour?", "options": [{"value": "red", "label": "Red"}, {"value": "blue", "label": "Blue"}]}]}`

func main() {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, key := os.Getenv("WINDLASS_ADDRESS"), os.Getenv("WINDLASS_KEY")
	cut := must(newCut(address))
	channel, weak := connect(address, key), connect(cut.address(), key)
	sessions, turns := sessionv1.NewSessionServiceClient(channel), sessionv1.NewTurnServiceClient(channel)

	// Calls that create something carry an id of ours, so that they can be repeated.
	create := &sessionv1.CreateSessionRequest{RequestId: newID(), Title: "A client in Go"}
	id := must(sessions.CreateSession(ctx, create)).Session.SessionId
	again := must(sessions.CreateSession(ctx, create)).Session.SessionId
	expect(id == again, "a repeated request made a second session")
	s := &session{id: id, turns: turns, streams: sessionv1.NewStreamServiceClient(weak)}
	step("created %s, and only once", id)

	// Submitted first and read from the start: the log keeps what nobody saw.
	hello := s.turn("say Hello from a script.")
	turn := must(turns.SubmitTurn(ctx, hello)).Turn
	same := must(turns.SubmitTurn(ctx, hello)).Turn
	expect(turn.TurnId == same.TurnId, "a repeated request made a second turn")
	seen := s.untilEnded(ctx, turn, "turn.completed")
	expect(seen[0].Type == "session.created", "the log begins with %s", seen[0].Type)
	expect(said(seen) == "Hello from a script.", "the model said %q", said(seen))
	step("read a whole turn in %d events without a gap", len(seen))

	// What may destroy something waits for a person.
	turn = s.submit(ctx, "call bash {\"command\": \"echo hi | tee file\"}\n---\nsay Done.")
	asked := last(s.until(ctx, turn, "action.required"))
	expect(asked.GetActionRequired().Tool == "bash", "asked about %v", asked)
	approve := &sessionv1.RespondActionRequest{
		SessionId: id, ActionId: asked.ActionId, Decision: sessionv1.RespondActionRequest_DECISION_ONCE,
	}
	must(turns.RespondAction(ctx, approve))
	ran := false
	for _, event := range s.untilEnded(ctx, turn, "turn.completed") {
		ran = ran || event.GetToolResult() != nil
	}
	expect(ran, "the approved call did not run")
	step("approved a command, which then ran")
	err := errorOf(turns.RespondAction(ctx, approve))
	refused("a second answer", err, codes.FailedPrecondition, errorv1.Reason_REASON_ACTION_RESOLVED, "")

	// The model asks; the answer becomes the tool's result in the same turn.
	turn = s.submit(ctx, ask+"\n---\nsay You chose {{tool_result}}")
	asked = last(s.until(ctx, turn, "action.required"))
	answer := &sessionv1.AnswerQuestionRequest{SessionId: id, ActionId: asked.ActionId}
	err = errorOf(turns.AnswerQuestion(ctx, answer))
	refused("no answer", err, codes.InvalidArgument, errorv1.Reason_REASON_ACTION_WRONG_ANSWER, "")
	answer.Answers = []*eventv1.Answer{{Values: []string{"blue"}}}
	must(turns.AnswerQuestion(ctx, answer))
	text := said(s.untilEnded(ctx, turn, "turn.completed"))
	expect(strings.Contains(text, "blue") && !strings.Contains(text, "red"), "the model said %q", text)
	step("answered a question")

	// A connection breaks in the middle; `next` goes on where it was.
	turn = s.submit(ctx, "pace 10ms\nrepeat 100 tick")
	seen = s.until(ctx, turn, "model.delta")
	cut.now()
	seen = append(seen, s.untilEnded(ctx, turn, "turn.completed")...)
	expect(s.cuts > 0, "the stream was not cut")
	expect(said(seen) == strings.Repeat("tick", 100), "the model said %q", said(seen))
	step("was cut off, and resumed without a gap or a duplicate")

	// One turn runs at a time, the others wait.
	running := s.submit(ctx, "say Still here.\nhang")
	s.until(ctx, running, "model.delta")
	hasty := s.turn("say Now.")
	hasty.RunPolicy = sessionv1.SubmitTurnRequest_RUN_POLICY_REJECT
	err = errorOf(turns.SubmitTurn(ctx, hasty))
	refused("a turn that will not wait", err, codes.FailedPrecondition, errorv1.Reason_REASON_SESSION_BUSY, "")
	waiting := s.submit(ctx, "say Never said.")
	expect(waiting.Status == sessionv1.Turn_STATUS_QUEUED, "the second turn is not queued: %v", waiting)
	queue := must(turns.ListQueue(ctx, &sessionv1.ListQueueRequest{SessionId: id})).Turns
	expect(len(queue) == 1 && queue[0].TurnId == waiting.TurnId, "the queue is %v", queue)
	cancelling := &sessionv1.CancelQueuedTurnRequest{SessionId: id, TurnId: waiting.TurnId}
	cancelled := must(turns.CancelQueuedTurn(ctx, cancelling)).Turn
	expect(cancelled.Status == sessionv1.Turn_STATUS_CANCELLED, "not cancelled: %v", cancelled)
	step("queued a turn, and took it back")

	must(turns.InterruptTurn(ctx, &sessionv1.InterruptTurnRequest{SessionId: id, Reason: "That is enough."}))
	failed := last(s.untilEnded(ctx, running, "turn.failed")).GetTurnFailed()
	expect(failed.Status == "cancelled" && failed.Reason == "interrupted", "ended with %v", failed)
	step("interrupted a turn that would not end")

	refusals(ctx, address, channel, id, running.TurnId, waiting.TurnId)
	fmt.Printf("every promise was kept, in %.1f s\n", time.Since(began).Seconds())
}

// One conversation, and its events in order.
type session struct {
	id           string
	turns        sessionv1.TurnServiceClient
	streams      sessionv1.StreamServiceClient
	stream       sessionv1.StreamService_SubscribeClient
	lastSequence int64
	cuts         int
}

// What the user says; below the marker, what the scripted model will do about it.
func (s *session) turn(script string) *sessionv1.SubmitTurnRequest {
	text := &sessionv1.InputPart_Text{Text: "Please.\n#!script\n" + script}
	parts := []*sessionv1.InputPart{{Content: text}}
	return &sessionv1.SubmitTurnRequest{SessionId: s.id, RequestId: newID(), Parts: parts}
}

func (s *session) submit(ctx context.Context, script string) *sessionv1.Turn {
	return must(s.turns.SubmitTurn(ctx, s.turn(script))).Turn
}

// The next event: each comes once, in order. Whoever is cut off asks for what follows.
func (s *session) next(ctx context.Context) *eventv1.Event {
	for {
		if s.stream == nil {
			// After zero is from the start.
			from := &sessionv1.SubscribeRequest_AfterSequence{AfterSequence: s.lastSequence}
			s.stream = must(s.streams.Subscribe(ctx, &sessionv1.SubscribeRequest{SessionId: s.id, From: from}))
		}
		response, err := s.stream.Recv()
		switch status.Code(err) {
		case codes.OK:
			event := response.GetEvent()
			if event == nil {
				continue // The snapshot, which is first.
			}
			expect(event.Sequence == s.lastSequence+1, "a gap before %v", event)
			s.lastSequence = event.Sequence
			return event
		case codes.Unavailable, codes.ResourceExhausted:
			// The server stops, is away, or we were too slow.
			s.stream, s.cuts = nil, s.cuts+1
			time.Sleep(retryDelay(err))
		default:
			broken("the stream ended with %v", err)
		}
	}
}

// Reads on until the turn has an event of one of these types.
func (s *session) until(ctx context.Context, turn *sessionv1.Turn, types ...string) []*eventv1.Event {
	var seen []*eventv1.Event
	for {
		event := s.next(ctx)
		seen = append(seen, event)
		for _, wanted := range types {
			if event.TurnId == turn.TurnId && event.Type == wanted {
				return seen
			}
		}
	}
}

func (s *session) untilEnded(ctx context.Context, turn *sessionv1.Turn, end string) []*eventv1.Event {
	seen := s.until(ctx, turn, "turn.completed", "turn.failed")
	expect(last(seen).Type == end, "expected %s, not %v", end, last(seen))
	return seen
}

func said(events []*eventv1.Event) string {
	var text strings.Builder
	for _, event := range events {
		text.WriteString(event.GetModelDelta().GetText())
	}
	return text.String()
}

func last(events []*eventv1.Event) *eventv1.Event {
	return events[len(events)-1]
}
