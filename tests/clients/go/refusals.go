package main

import (
	"context"
	"os"
	"strconv"
	"time"

	errorv1 "example.com/windlass/gen/windlass/error/v1"
	sessionv1 "example.com/windlass/gen/windlass/session/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// Well-formed, and nobody's.
const (
	noSession = "ses_06evr8d2ksw3x4qg9rjc10t5mm"
	noTurn    = "turn_06evr8d2ksw3x4qg9rjc10t5mm"
	noAction  = "act_06evr8d2ksw3x4qg9rjc10t5mm"
	noMessage = "msg_06evr8d2ksw3x4qg9rjc10t5mm"
	noTask    = "task_06evr8d2ksw3x4qg9rjc10t5mm"
	noJob     = "job_06evr8d2ksw3x4qg9rjc10t5mm"
	noChild   = "sub_06evr8d2ksw3x4qg9rjc10t5mm"
	noKey     = "key_06evr8d2ksw3x4qg9rjc10t5mm"
)

// What can go wrong, and how it looks, in a session with a turn that is over and one that was
// cancelled; proto/windlass/error/v1/reason.proto has all of it.
func refusals(ctx context.Context, address string, channel *grpc.ClientConn, id, over, cancelled string) {
	sessions, turns := sessionv1.NewSessionServiceClient(channel), sessionv1.NewTurnServiceClient(channel)
	streams, keys := sessionv1.NewStreamServiceClient(channel), sessionv1.NewKeyServiceClient(channel)
	tasks, jobs := sessionv1.NewTaskServiceClient(channel), sessionv1.NewJobServiceClient(channel)
	children, memories := sessionv1.NewSubagentServiceClient(channel), sessionv1.NewMemoryServiceClient(channel)
	stranger := sessionv1.NewSessionServiceClient(connect(address, ""))
	reader := must(keys.CreateKey(ctx, &sessionv1.CreateKeyRequest{
		Name: "a reader", Subject: "example", Scopes: []string{"read"},
	}))
	readOnly := sessionv1.NewSessionServiceClient(connect(address, reader.Secret))
	odd := metadata.AppendToOutgoingContext(ctx, "x-request-id", "not an id")

	used := &sessionv1.CreateSessionRequest{RequestId: "used-" + id, Title: "The first"}
	must(sessions.CreateSession(ctx, used))
	used.Title = "Another"

	get := func(ctx context.Context, from sessionv1.SessionServiceClient, id string) error {
		return errorOf(from.GetSession(ctx, &sessionv1.GetSessionRequest{SessionId: id}))
	}
	subscribe := func(ctx context.Context, request *sessionv1.SubscribeRequest) error {
		request.SessionId = id
		stream, err := streams.Subscribe(ctx, request)
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	upload := func(text string) error {
		stream, err := sessions.ImportSession(ctx)
		if err != nil {
			return err
		}
		// What it was refused for comes with the end.
		_ = stream.Send(&sessionv1.ImportSessionRequest{RequestId: "upload-" + id, Data: []byte(text)})
		return errorOf(stream.CloseAndRecv())
	}
	hurried := func() error {
		soon, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		return subscribe(soon, &sessionv1.SubscribeRequest{})
	}
	ahead := &sessionv1.SubscribeRequest_AfterSequence{AfterSequence: 1_000_000}

	for _, row := range []struct {
		what   string
		err    error
		code   codes.Code
		reason errorv1.Reason
		field  string
	}{
		{"without a key", get(ctx, stranger, id),
			codes.Unauthenticated, errorv1.Reason_REASON_UNAUTHENTICATED, ""},
		{"with a key that may only read", errorOf(readOnly.CreateSession(ctx, used)),
			codes.PermissionDenied, errorv1.Reason_REASON_SCOPE_MISSING, ""},
		{"with a malformed header", get(odd, sessions, id),
			codes.InvalidArgument, errorv1.Reason_REASON_INVALID_METADATA, ""},
		{"a malformed id", get(ctx, sessions, "ses_1"),
			codes.InvalidArgument, errorv1.Reason_REASON_INVALID_FIELD, "session_id"},
		{"a turn without words", errorOf(turns.SubmitTurn(ctx, &sessionv1.SubmitTurnRequest{SessionId: id, RequestId: "x"})),
			codes.InvalidArgument, errorv1.Reason_REASON_INVALID_FIELD, "parts"},
		{"a made-up page", errorOf(sessions.ListSessions(ctx, &sessionv1.ListSessionsRequest{PageToken: "x"})),
			codes.InvalidArgument, errorv1.Reason_REASON_INVALID_CURSOR, "page_token"},
		{"an unknown session", get(ctx, sessions, noSession),
			codes.NotFound, errorv1.Reason_REASON_SESSION_NOT_FOUND, ""},
		{"an unknown turn", errorOf(turns.GetTurn(ctx, &sessionv1.GetTurnRequest{SessionId: id, TurnId: noTurn})),
			codes.NotFound, errorv1.Reason_REASON_TURN_NOT_FOUND, ""},
		{"an unknown action", errorOf(turns.RespondAction(ctx, &sessionv1.RespondActionRequest{SessionId: id, ActionId: noAction, Decision: sessionv1.RespondActionRequest_DECISION_ONCE})),
			codes.NotFound, errorv1.Reason_REASON_ACTION_NOT_FOUND, ""},
		{"an unknown message", errorOf(sessions.ForkSession(ctx, &sessionv1.ForkSessionRequest{SessionId: id, RequestId: "x", MessageId: noMessage})),
			codes.NotFound, errorv1.Reason_REASON_MESSAGE_NOT_FOUND, ""},
		{"an unknown task", errorOf(tasks.GetTask(ctx, &sessionv1.GetTaskRequest{TaskId: noTask})),
			codes.NotFound, errorv1.Reason_REASON_TASK_NOT_FOUND, ""},
		{"an unknown job", errorOf(jobs.GetJob(ctx, &sessionv1.GetJobRequest{JobId: noJob})),
			codes.NotFound, errorv1.Reason_REASON_JOB_NOT_FOUND, ""},
		{"an unknown subagent", errorOf(children.CloseSubagent(ctx, &sessionv1.CloseSubagentRequest{SubagentId: noChild})),
			codes.NotFound, errorv1.Reason_REASON_SUBAGENT_NOT_FOUND, ""},
		{"an unknown memory", errorOf(memories.ReadMemory(ctx, &sessionv1.ReadMemoryRequest{Scope: "user", Name: "nothing"})),
			codes.NotFound, errorv1.Reason_REASON_MEMORY_NOT_FOUND, ""},
		{"an import of something else", upload("a diary\n"),
			codes.InvalidArgument, errorv1.Reason_REASON_IMPORT_INVALID, ""},
		{"an unknown key", errorOf(keys.RevokeKey(ctx, &sessionv1.RevokeKeyRequest{KeyId: noKey})),
			codes.NotFound, errorv1.Reason_REASON_KEY_NOT_FOUND, ""},
		{"an unknown agent", errorOf(sessions.CreateSession(ctx, &sessionv1.CreateSessionRequest{RequestId: "x", Agent: "nobody"})),
			codes.NotFound, errorv1.Reason_REASON_AGENT_NOT_FOUND, ""},
		{"a used request id", errorOf(sessions.CreateSession(ctx, used)),
			codes.AlreadyExists, errorv1.Reason_REASON_REQUEST_ID_REUSED, ""},
		{"a late interrupt", errorOf(turns.InterruptTurn(ctx, &sessionv1.InterruptTurnRequest{SessionId: id, TurnId: over})),
			codes.FailedPrecondition, errorv1.Reason_REASON_TURN_OVER, ""},
		{"a late cancel", errorOf(turns.CancelQueuedTurn(ctx, &sessionv1.CancelQueuedTurnRequest{SessionId: id, TurnId: cancelled})),
			codes.FailedPrecondition, errorv1.Reason_REASON_TURN_NOT_QUEUED, ""},
		{"an undo of nothing", errorOf(sessions.UnrewindSession(ctx, &sessionv1.UnrewindSessionRequest{SessionId: id})),
			codes.FailedPrecondition, errorv1.Reason_REASON_NOTHING_TO_REWIND, ""},
		{"a cursor beyond the end", subscribe(ctx, &sessionv1.SubscribeRequest{From: ahead}),
			codes.OutOfRange, errorv1.Reason_REASON_CURSOR_AHEAD, ""},
		{"more time", hurried(),
			codes.DeadlineExceeded, errorv1.Reason_REASON_DEADLINE_EXCEEDED, ""},
	} {
		refused(row.what, row.err, row.code, row.reason, row.field)
	}
	must(keys.RevokeKey(ctx, &sessionv1.RevokeKeyRequest{KeyId: reader.Key.KeyId}))

	// How many readers are too many for this server. Unset: it is too large to find out.
	crowd, _ := strconv.Atoi(os.Getenv("WINDLASS_CROWD"))
	if crowd == 0 {
		step("did not crowd the server: WINDLASS_CROWD is not set")
		return
	}
	err := crowded(ctx, streams, id, crowd)
	refused("a place in the crowd", err, codes.ResourceExhausted, errorv1.Reason_REASON_OVERLOADED, "")
	expect(retryDelay(err) >= time.Second, "nobody said when to come back")
}

// Opens streams until the server has no more room.
func crowded(ctx context.Context, streams sessionv1.StreamServiceClient, id string, crowd int) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	for range crowd {
		stream := must(streams.Subscribe(ctx, &sessionv1.SubscribeRequest{SessionId: id}))
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	return nil
}
