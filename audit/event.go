package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// This file holds the Event of audit.k8s.io/v1.

// Level is the amount of detail that is recorded.
type Level string

// The levels; each includes what the one before it records.
const (
	LevelNone            Level = "None"
	LevelMetadata        Level = "Metadata"
	LevelRequest         Level = "Request"
	LevelRequestResponse Level = "RequestResponse"
)

// Stage is the point in the life of a request at which an event is generated.
type Stage string

// The stages of a request.
const (
	StageRequestReceived  Stage = "RequestReceived"
	StageResponseStarted  Stage = "ResponseStarted"
	StageResponseComplete Stage = "ResponseComplete"
	StagePanic            Stage = "Panic"
)

// Event is the Event of audit.k8s.io/v1, without kind and apiVersion: items of an
// EventList have none.
type Event struct {
	Level                    Level                      `json:"level"`
	AuditID                  types.UID                  `json:"auditID"`
	Stage                    Stage                      `json:"stage"`
	RequestURI               string                     `json:"requestURI"`
	Verb                     string                     `json:"verb"`
	User                     authenticationv1.UserInfo  `json:"user"`
	ImpersonatedUser         *authenticationv1.UserInfo `json:"impersonatedUser,omitempty"`
	AuthenticationMetadata   *AuthenticationMetadata    `json:"authenticationMetadata,omitempty"`
	SourceIPs                []string                   `json:"sourceIPs,omitempty"`
	UserAgent                string                     `json:"userAgent,omitempty"`
	ObjectRef                *ObjectReference           `json:"objectRef,omitempty"`
	ResponseStatus           *metav1.Status             `json:"responseStatus,omitempty"`
	RequestObject            json.RawMessage            `json:"requestObject,omitempty"`
	ResponseObject           json.RawMessage            `json:"responseObject,omitempty"`
	RequestReceivedTimestamp metav1.MicroTime           `json:"requestReceivedTimestamp"`
	StageTimestamp           metav1.MicroTime           `json:"stageTimestamp"`
	Annotations              map[string]string          `json:"annotations,omitempty"`
}

// AuthenticationMetadata has details of the authentication.
type AuthenticationMetadata struct {
	// ImpersonationConstraint is the verb that allowed a constrained impersonation.
	ImpersonationConstraint string `json:"impersonationConstraint,omitempty"`
}

// ObjectReference is the object of a request.
type ObjectReference struct {
	Resource        string    `json:"resource,omitempty"`
	Namespace       string    `json:"namespace,omitempty"`
	Name            string    `json:"name,omitempty"`
	UID             types.UID `json:"uid,omitempty"`
	APIGroup        string    `json:"apiGroup,omitempty"`
	APIVersion      string    `json:"apiVersion,omitempty"`
	ResourceVersion string    `json:"resourceVersion,omitempty"`
	Subresource     string    `json:"subresource,omitempty"`
}

// typePrefix replaces the first byte of an item's JSON to make it a single event with
// kind and apiVersion.
const typePrefix = `{"kind":"Event","apiVersion":"` + GroupVersion + `",`

// entry is an event with its JSON, which is encoded once for all backends.
type entry struct {
	event *Event
	body  []byte
}

// size is the size in bytes of the event on a line of its own.
func (e entry) size() int64 { return int64(len(typePrefix) + len(e.body)) }

func (ev *Event) encode() ([]byte, error) { return json.Marshal(ev) }

// truncatedKey is the annotation of an event that has objects which are not in it.
const truncatedKey = "audit.k8s.io/truncated"

// truncated returns a copy without request and response objects, with the annotation
// that says so.
func (ev *Event) truncated() *Event {
	short := *ev
	short.RequestObject, short.ResponseObject = nil, nil
	short.Annotations = maps.Clone(ev.Annotations)
	if short.Annotations == nil {
		short.Annotations = map[string]string{}
	}
	short.Annotations[truncatedKey] = "true"
	return &short
}

// line returns the event in the legacy format.
func (ev *Event) line() string {
	user, groups := "<none>", "<none>"
	if ev.User.Username != "" {
		user = ev.User.Username
		if len(ev.User.Groups) > 0 {
			groups = quoted(ev.User.Groups)
		}
	}
	as, asGroups := "<self>", "<lookup>"
	if ev.ImpersonatedUser != nil {
		as = ev.ImpersonatedUser.Username
		if ev.ImpersonatedUser.Groups != nil {
			asGroups = quoted(ev.ImpersonatedUser.Groups)
		}
	}
	namespace, response, ip := "<none>", "<deferred>", "<unknown>"
	if ev.ObjectRef != nil && ev.ObjectRef.Namespace != "" {
		namespace = ev.ObjectRef.Namespace
	}
	if ev.ResponseStatus != nil {
		response = strconv.Itoa(int(ev.ResponseStatus.Code))
	}
	if len(ev.SourceIPs) > 0 {
		ip = ev.SourceIPs[0]
	}
	return fmt.Sprintf("%s AUDIT: id=%q stage=%q ip=%q method=%q user=%q groups=%q as=%q asgroups=%q user-agent=%q namespace=%q uri=%q response=\"%s\"",
		ev.RequestReceivedTimestamp.Format(time.RFC3339Nano), ev.AuditID, ev.Stage, ip, ev.Verb, user, groups, as, asGroups,
		ev.UserAgent, namespace, ev.RequestURI, response)
}

func quoted(texts []string) string {
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = strconv.Quote(text)
	}
	return strings.Join(out, ",")
}
