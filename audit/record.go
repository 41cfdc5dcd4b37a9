package audit

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/apikeel/kelson/request"
)

// This file is the audit of one request, from its arrival to its end.

const (
	// maxAnnotations is the largest number of annotations of a request.
	maxAnnotations = 256
	// slowRequest is the duration from which on the event has annotations with the latency of
	// each part.
	slowRequest = 500 * time.Millisecond
	// maxUserAgent is the largest recorded length of the User-Agent header.
	maxUserAgent = 1024
)

// Record collects the data of the events of one request. It is the request.Recorder of
// that request, and safe for concurrent use.
type Record struct {
	log  *Log
	rule *Rule            // set by Begin; nil if the request is not audited
	req  *request.Request // shared with the server, which changes it on impersonation
	// early: an event is generated when the response begins, not only at its end.
	early bool

	mu    sync.Mutex // guards the fields below
	event Event
	spent [request.Parts]time.Duration
}

// Record returns the record of a new request. It accepts annotations at once; Begin
// decides whether they are used.
func (l *Log) Record() *Record { return &Record{log: l} }

// Begin evaluates the policy, once the user is known, and reports whether the request
// is audited.
func (r *Record) Begin(hr *http.Request, req *request.Request) bool {
	rule := r.log.policy.rule(req)
	level := LevelNone
	if rule != nil {
		level = rule.Level
	}
	r.log.levels[level].Add(1)
	if level == LevelNone {
		return false
	}
	r.rule, r.req, r.early = rule, req, req.LongRunning()

	r.mu.Lock()
	defer r.mu.Unlock()
	ev := &r.event
	ev.Level, ev.AuditID = level, types.UID(req.AuditID)
	ev.RequestURI, ev.Verb = hr.URL.RequestURI(), req.Verb
	ev.User = userInfo(&req.User)
	if ev.UserAgent = hr.UserAgent(); len(ev.UserAgent) > maxUserAgent {
		ev.UserAgent = ev.UserAgent[:maxUserAgent] + "...TRUNCATED"
	}
	for _, ip := range utilnet.SourceIPs(hr) {
		ev.SourceIPs = append(ev.SourceIPs, ip.String())
	}
	ev.RequestReceivedTimestamp = metav1.NewMicroTime(req.Received)
	if req.IsResource {
		ev.ObjectRef = &ObjectReference{
			Namespace: req.Namespace, Name: req.Name, Resource: req.Resource, Subresource: req.Subresource,
			APIGroup: req.Group, APIVersion: req.Version,
		}
	}
	return true
}

func userInfo(user *request.User) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: user.Name, UID: user.UID, Groups: user.Groups}
	if len(user.Extra) > 0 {
		info.Extra = make(map[string]authenticationv1.ExtraValue, len(user.Extra))
		for key, values := range user.Extra {
			info.Extra[key] = values
		}
	}
	return info
}

// Received generates the RequestReceived event. If it returns false, the request must
// be refused.
func (r *Record) Received() bool {
	if r.emit(StageRequestReceived) {
		return true
	}
	r.log.rejected.Add(1)
	return false
}

// Refuse is for a request that is refused before its audit begins (authentication, for
// example): one event is generated, when the response begins. message is used if the
// response is not a Status.
func (r *Record) Refuse(message string) {
	r.early = true
	r.mu.Lock()
	r.event.ResponseStatus = &metav1.Status{Message: message}
	r.mu.Unlock()
}

// Answer is called when the response header is written.
func (r *Record) Answer(code int) {
	r.mu.Lock()
	if r.event.ResponseStatus == nil {
		r.event.ResponseStatus = &metav1.Status{}
	}
	r.event.ResponseStatus.Code = int32(code)
	r.mu.Unlock()
	if r.early {
		r.emit(StageResponseStarted)
	}
}

// Complete generates the ResponseComplete event. unanswered is the status to record if
// no response was begun.
func (r *Record) Complete(unanswered *metav1.Status) {
	r.mu.Lock()
	silent := r.event.ResponseStatus == nil
	if silent {
		r.event.ResponseStatus = unanswered
	}
	r.mu.Unlock()
	if silent && r.early {
		r.emit(StageResponseStarted)
	}
	r.annotateLatency()
	r.emit(StageResponseComplete)
}

// annotateLatency adds annotations with the latency of each part to the event of a slow
// request.
func (r *Record) annotateLatency() {
	took := time.Since(r.req.Arrived())
	if took <= slowRequest {
		return
	}
	r.mu.Lock()
	spent := r.spent
	r.mu.Unlock()
	const prefix = "apiserver.latency.k8s.io/"
	for part, name := range [request.Parts]string{
		request.Authentication: "authentication", request.Impersonation: "impersonation", request.Queue: "apf-queue-wait",
		request.Authorization: "authorization", request.MutatingWebhooks: "mutating-webhook", request.ValidatingWebhooks: "validating-webhook",
		request.Storage: "etcd", request.ResponseWrite: "response-write",
		request.Decode: "decode-response-object", request.Transform: "transform-response-object", request.Serialize: "serialize-response-object",
	} {
		if d := spent[part]; d > 0 {
			r.Annotate(prefix+name, d.String())
		}
	}
	r.Annotate(prefix+"total", took.String())
}

// Spent implements request.Timekeeper. Validating webhooks run in parallel, so the
// longest counts; so does the longest of parts that occur once.
func (r *Record) Spent(part request.Part, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch part {
	case request.ValidatingWebhooks, request.Authorization, request.Queue:
		r.spent[part] = max(r.spent[part], d)
	default:
		r.spent[part] += d
	}
}

// Panic generates the Panic event of a request whose handler panicked.
func (r *Record) Panic(cause any) {
	r.mu.Lock()
	r.event.ResponseStatus = &metav1.Status{
		Code: http.StatusInternalServerError, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("APIServer panic'd: %v", cause),
	}
	r.mu.Unlock()
	r.emit(StagePanic)
}

// emit generates an event unless its stage is omitted. It returns false if a strict
// backend failed.
func (r *Record) emit(stage Stage) bool {
	if r.log.policy.omits(r.rule, stage) {
		return true
	}
	r.mu.Lock()
	event := r.event
	event.Annotations = maps.Clone(event.Annotations)
	if status := event.ResponseStatus; status != nil {
		copied := *status
		event.ResponseStatus = &copied
	}
	if ref := event.ObjectRef; ref != nil {
		copied := *ref
		event.ObjectRef = &copied
	}
	r.mu.Unlock()
	if r.req.Impersonator != nil {
		user := userInfo(&r.req.User)
		event.ImpersonatedUser = &user
		if verb := r.req.ImpersonationConstraint; verb != "" {
			event.AuthenticationMetadata = &AuthenticationMetadata{ImpersonationConstraint: verb}
		}
	}
	event.Stage = stage
	event.StageTimestamp = event.RequestReceivedTimestamp
	if stage != StageRequestReceived {
		event.StageTimestamp = metav1.NewMicroTime(time.Now())
	}
	if r.log.waits {
		r.req.EndArrival()
	}
	return r.log.put(&event)
}

// Annotate implements request.Recorder. An annotation that is set is not changed.
func (r *Record) Annotate(key, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.event.Annotations == nil {
		r.event.Annotations = map[string]string{}
	}
	was, set := r.event.Annotations[key]
	switch {
	case set && was != value:
		r.log.logger.Warn("audit annotation is set already", "audit", r.event.AuditID, "key", key, "value", was, "refused", value)
	case !set && len(r.event.Annotations) < maxAnnotations:
		r.event.Annotations[key] = value
	}
}

// AnnotateBody implements request.Recorder.
func (r *Record) AnnotateBody(key, value string) {
	if r.rule != nil && r.rule.Level != LevelMetadata {
		r.Annotate(key, value)
	}
}

// SentObject implements request.Recorder.
func (r *Record) SentObject(meta metav1.Object, encode func() ([]byte, error)) {
	if r.rule == nil {
		return
	}
	var body []byte
	if r.rule.Level != LevelMetadata {
		body = r.encode(encode)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.RequestObject = body
	if meta == nil {
		return
	}
	if r.event.ObjectRef == nil {
		r.event.ObjectRef = &ObjectReference{}
	}
	ref := r.event.ObjectRef
	fill(&ref.Namespace, meta.GetNamespace())
	fill(&ref.Name, meta.GetName())
	fill(&ref.UID, meta.GetUID())
	fill(&ref.ResourceVersion, meta.GetResourceVersion())
}

// fill sets a field that is empty.
func fill[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

// SentPatch implements request.Recorder.
func (r *Record) SentPatch(patch []byte) {
	if r.rule == nil || r.rule.Level == LevelMetadata {
		return
	}
	r.mu.Lock()
	r.event.RequestObject = patch
	r.mu.Unlock()
}

// AnsweredObject implements request.Recorder.
func (r *Record) AnsweredObject(encode func() ([]byte, error)) {
	if r.rule == nil || r.rule.Level != LevelRequestResponse {
		return
	}
	body := r.encode(encode)
	r.mu.Lock()
	r.event.ResponseObject = body
	r.mu.Unlock()
}

// AnsweredStatus implements request.Recorder.
func (r *Record) AnsweredStatus(status *metav1.Status, encode func() ([]byte, error)) {
	if r.rule == nil {
		return
	}
	r.mu.Lock()
	// Metadata of a Status is for lists only and is left out.
	r.event.ResponseStatus = &metav1.Status{
		Status: status.Status, Message: status.Message, Reason: status.Reason, Details: status.Details, Code: status.Code,
	}
	r.mu.Unlock()
	r.AnsweredObject(encode)
}

// encode returns the JSON of an object as it is recorded.
func (r *Record) encode(encode func() ([]byte, error)) []byte {
	body, err := encode()
	if errors.Is(err, request.ErrTooLargeToRecord) {
		r.Annotate(truncatedKey, "true")
		return nil
	}
	if err != nil {
		r.log.logger.Error("object cannot be encoded for the audit", "audit", r.req.AuditID, "error", err)
		return nil
	}
	if r.log.policy.omitsManagedFields(r.rule) {
		return withoutManagedFields(body)
	}
	return body
}
