package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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

const (
	// minText is how many bytes of a text stay in an event that is truncated, at least.
	minText = 64
	// maxShortList is the length of lists and maps in an event whose texts are truncated.
	maxShortList = 8
)

// shortened returns a copy that has at most a number of bytes of each text that a client
// chooses, and maxShortList items of each list.
func (ev *Event) shortened(most int) *Event {
	short := *ev
	text := func(s string) string {
		if len(s) <= most {
			return s
		}
		return s[:most] + "...TRUNCATED"
	}
	list := func(all []string) []string {
		var few []string
		for _, s := range all[:min(len(all), maxShortList)] {
			few = append(few, text(s))
		}
		return few
	}
	user := func(u authenticationv1.UserInfo) authenticationv1.UserInfo {
		few := authenticationv1.UserInfo{Username: text(u.Username), UID: text(u.UID), Groups: list(u.Groups)}
		for _, key := range first(u.Extra) {
			if few.Extra == nil {
				few.Extra = map[string]authenticationv1.ExtraValue{}
			}
			few.Extra[text(key)] = list(u.Extra[key])
		}
		return few
	}
	short.RequestURI, short.Verb, short.UserAgent, short.SourceIPs = text(ev.RequestURI), text(ev.Verb), text(ev.UserAgent), list(ev.SourceIPs)
	short.User = user(ev.User)
	if ev.ImpersonatedUser != nil {
		as := user(*ev.ImpersonatedUser)
		short.ImpersonatedUser = &as
	}
	if o := ev.ObjectRef; o != nil {
		short.ObjectRef = &ObjectReference{
			text(o.Resource), text(o.Namespace), text(o.Name), types.UID(text(string(o.UID))), text(o.APIGroup), text(o.APIVersion), text(o.ResourceVersion), text(o.Subresource),
		}
	}
	if s := ev.ResponseStatus; s != nil {
		short.ResponseStatus = &metav1.Status{Status: s.Status, Code: s.Code, Reason: metav1.StatusReason(text(string(s.Reason))), Message: text(s.Message)}
	}
	short.Annotations = map[string]string{truncatedKey: "true"}
	for _, key := range first(ev.Annotations) {
		short.Annotations[text(key)] = text(ev.Annotations[key])
	}
	return &short
}

// first returns the first keys of a map.
func first[V any](m map[string]V) []string {
	keys := slices.Sorted(maps.Keys(m))
	return keys[:min(len(keys), maxShortList)]
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
