package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"time"

	errorv1 "example.com/windlass/gen/windlass/error/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Puts a key on every call.
type bearer string

func (key bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(key)}, nil
}

// True wherever there is a network between you and the server.
func (key bearer) RequireTransportSecurity() bool { return false }

// Connects when the first call is made, and again when the connection is lost.
func connect(address, key string) *grpc.ClientConn {
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if key != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(key)))
	}
	return must(grpc.NewClient(address, options...))
}

// What an error says beside its code and message.
type details struct {
	info       *errdetails.ErrorInfo
	badRequest *errdetails.BadRequest
	retry      *errdetails.RetryInfo
	request    *errdetails.RequestInfo
}

func detailsOf(err error) *details {
	found := &details{}
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			found.info = detail
		case *errdetails.BadRequest:
			found.badRequest = detail
		case *errdetails.RetryInfo:
			found.retry = detail
		case *errdetails.RequestInfo:
			found.request = detail
		}
	}
	return found
}

// When to come back: what the server says, or soon.
func retryDelay(err error) time.Duration {
	return max(detailsOf(err).retry.GetRetryDelay().AsDuration(), 100*time.Millisecond)
}

// Checks how a call was refused.
func refused(what string, err error, code codes.Code, reason errorv1.Reason, field string) {
	expect(err != nil, "nobody refused %s", what)
	found, why := detailsOf(err), reason.String()
	fields := ""
	for _, violation := range found.badRequest.GetFieldViolations() {
		fields += violation.Field
	}
	// Our own clock may be the first to see that a deadline has passed, and gives no reason.
	if code == codes.DeadlineExceeded && found.info.GetReason() == "" {
		why = ""
	}
	met := fmt.Sprintf("%s %s %s", status.Code(err), found.info.GetReason(), fields)
	expected := fmt.Sprintf("%s %s %s", code, why, field)
	expect(met == expected, "%s: expected %s, not %s: %v", what, expected, met, err)
	expect(why == "" || found.info.GetDomain() == "windlass", "%s: the domain is %s", what, found.info.GetDomain())
	expect(why == "" || found.request.GetRequestId() != "", "%s: no id to ask about", what)
	step("was refused %s: %s", what, met)
}

func must[T any](value T, err error) T {
	expect(err == nil, "%v", err)
	return value
}

func errorOf[T any](_ T, err error) error {
	return err
}

func expect(kept bool, otherwise string, arguments ...any) {
	if !kept {
		broken(otherwise, arguments...)
	}
}

func broken(how string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "a promise was not kept: "+how+"\n", arguments...)
	os.Exit(1)
}

func step(what string, arguments ...any) {
	fmt.Printf("  "+what+"\n", arguments...)
}

func newID() string {
	return "go-" + rand.Text()
}
