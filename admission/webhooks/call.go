package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/admission/expression"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/trace"
	"github.com/apikeel/kelson/trace/timed"
	"github.com/apikeel/kelson/webhook"
)

// callError is a failed call or an invalid response of a webhook. failurePolicy decides what
// it means.
type callError struct {
	hook   string
	reason error
	// status is the code for metrics; 0 is that of the reason.
	status int
}

func (e *callError) Error() string {
	return fmt.Sprintf("failed calling webhook %q: %v", e.hook, e.reason)
}

func (e *callError) Unwrap() error { return e.reason }

func (h *hook) failed(format string, args ...any) error {
	return &callError{hook: h.name, reason: fmt.Errorf(format, args...)}
}

// misconfigured makes the callError for a call that is not made because of a misconfiguration.
func (h *hook) misconfigured(format string, args ...any) error {
	return &callError{hook: h.name, reason: fmt.Errorf(format, args...), status: http.StatusBadRequest}
}

// encoded is a write in one form as JSON.
type encoded struct {
	form        *match.Form
	request     *admissionv1.AdmissionRequest
	object, old json.RawMessage // nil for none
}

// encode encodes the objects of a write. It is done before the calls, because they may run
// concurrently.
func encode(w *match.Write, form *match.Form) (*encoded, error) {
	object, old, err := form.Objects()
	if err != nil {
		return nil, match.InternalError(err)
	}
	e := &encoded{form: form, request: expression.Request(w, form.Resource, form.Kind)}
	for _, part := range []struct {
		from runtime.Object
		to   *json.RawMessage
	}{{object, &e.object}, {old, &e.old}} {
		if part.from == nil || reflect.ValueOf(part.from).IsNil() {
			continue
		}
		if *part.to, err = json.Marshal(part.from); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
	}
	if e.request.Options.Object != nil {
		if e.request.Options.Raw, err = json.Marshal(e.request.Options.Object); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
	}
	return e, nil
}

// call calls a webhook; hold is that of webhook.Client.Post. An error that is not a callError refuses
// the write.
func (p *plugin) call(ctx context.Context, h *hook, e *encoded, mutating bool, hold func(bytes int64) error) (*admissionv1.AdmissionResponse, error) {
	if *e.request.DryRun {
		switch {
		case h.sideEffects == nil:
			return nil, h.misconfigured("Webhook SideEffects is nil")
		case *h.sideEffects != registrationv1.SideEffectClassNone && *h.sideEffects != registrationv1.SideEffectClassNoneOnDryRun:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", h.name))
		}
	}
	version := ""
	for _, v := range h.versions {
		if v == "v1" || v == "v1beta1" {
			version = v
			break
		}
	}
	if version == "" {
		return nil, h.misconfigured("could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)")
	}
	uid := uuid.NewUUID()
	request := *e.request
	request.UID, request.Object.Raw, request.OldObject.Raw = uid, e.object, e.old
	// Both versions have the same fields.
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.GroupName + "/" + version, Kind: "AdmissionReview"}, Request: &request,
	}
	body, err := json.Marshal(&review)
	if err != nil {
		return nil, h.misconfigured("could not create admission objects: %w", err)
	}
	kind := "validating"
	if mutating {
		kind = "mutating"
	}
	ctx, span := timed.Start(ctx, "Call "+kind+" webhook", slowWebhook, trace.String("configuration", h.config), trace.String("webhook", h.name),
		trace.String("resource", request.Resource.Group+"/"+request.Resource.Version+", Resource="+request.Resource.Resource),
		trace.String("subresource", request.SubResource), trace.String("operation", string(request.Operation)), trace.String("UID", string(uid)))
	defer span.End()
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	text, err := p.Client.Post(ctx, &h.endpoint, body, hold)
	if refused := (*webhook.Refusal)(nil); errors.As(err, &refused) {
		return nil, refused.Unwrap()
	}
	if err != nil {
		return nil, h.failed("failed to call webhook: %w", err)
	}
	span.Event("Request completed")
	answer, err := decode(text, version)
	if err != nil {
		return nil, h.failed("failed to call webhook: %w", err)
	}
	if err := verify(answer, version, uid, mutating); err != nil {
		return nil, h.failed("received invalid webhook response: %w", err)
	}
	shorten(answer.Response)
	return answer.Response, nil
}

// slowWebhook is the duration from which a call is logged.
const slowWebhook = 500 * time.Millisecond

// maxYAML bounds responses in YAML, in bytes: decoding YAML takes many times its size.
const maxYAML = 64 << 10

// decode decodes a response, with the error messages of kube-apiserver.
func decode(text []byte, version string) (*admissionv1.AdmissionReview, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) && len(text) <= maxYAML {
		converted, err := yaml.YAMLToJSON(text)
		if err != nil {
			return nil, err
		}
		text = converted
	}
	var kind struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &kind); err != nil {
		return nil, fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	gvk := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)
	known := gvk.Group == admissionv1.GroupName && (gvk.Version == "v1" || gvk.Version == "v1beta1")
	switch {
	case gvk == metav1.Unversioned.WithKind("Status"):
		return nil, fmt.Errorf("converting (v1.Status) to (%s.AdmissionReview): unknown conversion", version)
	case known && kind.Kind == "AdmissionReview" && gvk.Version != version:
		return nil, fmt.Errorf("converting (%s.AdmissionReview) to (%s.AdmissionReview): unknown conversion", gvk.Version, version)
	case kind.Kind != "" && kind.Kind != "AdmissionReview" || kind.APIVersion != "" && !known:
		return nil, runtime.NewNotRegisteredErrForKind("pkg/runtime/scheme.go:111", gvk)
	}
	review := &admissionv1.AdmissionReview{}
	return review, kjson.UnmarshalCaseSensitivePreserveInts(text, review)
}

// verify checks a response. Responses in v1beta1 are not checked, as in kube-apiserver.
func verify(review *admissionv1.AdmissionReview, version string, uid types.UID, mutating bool) error {
	r := review.Response
	if r == nil {
		return errors.New("webhook response was absent")
	}
	if version == "v1beta1" {
		r.PatchType = nil
		if !mutating {
			r.Patch = nil
		}
		if len(r.Patch) > 0 {
			r.PatchType = new(admissionv1.PatchTypeJSONPatch)
		}
		return nil
	}
	want := admissionv1.SchemeGroupVersion.WithKind("AdmissionReview")
	switch got := review.GroupVersionKind(); {
	case r.UID != uid:
		return fmt.Errorf("expected response.uid=%q, got %q", uid, r.UID)
	case got != want:
		return fmt.Errorf("expected webhook response of %v, got %v", want, got)
	case !mutating && len(r.Patch) > 0:
		return errors.New("validating webhook may not return response.patch")
	case !mutating && r.PatchType != nil:
		return errors.New("validating webhook may not return response.patchType")
	case len(r.Patch) > 0 && r.PatchType == nil:
		return errors.New("webhook returned response.patch but not response.patchType")
	case len(r.Patch) == 0 && r.PatchType != nil:
		return errors.New("webhook returned response.patchType but not response.patch")
	case r.PatchType != nil && *r.PatchType == "":
		return fmt.Errorf("webhook returned invalid response.patchType of %q", *r.PatchType)
	}
	return nil
}

// What of an answer lives on when it is read, beside the patch, whose memory is held: bytes of the
// message of a refusal; causes, and bytes of all of them; bytes of all annotations for the audit;
// warnings; bytes of a warning, and of each other text, such as a reason or a name.
const (
	maxDenial                 = 64 << 10
	maxCauses, maxCausesBytes = 1000, 256 << 10
	maxAnnotations            = 256 << 10
	maxWarnings               = 256
	maxText                   = 4 << 10
)

// shorten drops what is too much of an answer.
func shorten(r *admissionv1.AdmissionResponse) {
	if r.Result != nil {
		shortenStatus(r.Result)
	}
	bytes := 0
	for key, value := range r.AuditAnnotations {
		bytes += len(key) + len(value)
	}
	if bytes > maxAnnotations { // the same ones are kept each time
		bytes = 0
		for _, key := range slices.Sorted(maps.Keys(r.AuditAnnotations)) {
			size := len(key) + len(r.AuditAnnotations[key])
			if bytes+size > maxAnnotations {
				delete(r.AuditAnnotations, key)
			} else {
				bytes += size
			}
		}
	}
	r.Warnings = slices.Clone(r.Warnings[:min(len(r.Warnings), maxWarnings)])
	for i := range r.Warnings {
		cut(maxText, &r.Warnings[i])
	}
}

func shortenStatus(s *metav1.Status) {
	cut(maxDenial, &s.Message)
	link := s.GetSelfLink()
	cut(maxText, &link, &s.Kind, &s.APIVersion, &s.ResourceVersion, &s.Continue, &s.Status, (*string)(&s.Reason))
	s.SetSelfLink(link)
	d := s.Details
	if d == nil {
		return
	}
	cut(maxText, &d.Name, &d.Group, &d.Kind, (*string)(&d.UID))
	bytes, n := 0, 0
	for ; n < min(len(d.Causes), maxCauses); n++ {
		c := &d.Causes[n]
		cut(maxText, (*string)(&c.Type), &c.Message, &c.Field)
		if bytes += len(c.Type) + len(c.Message) + len(c.Field); bytes > maxCausesBytes {
			break
		}
	}
	if n < len(d.Causes) {
		d.Causes = slices.Clone(d.Causes[:n])
	}
}

// cut cuts texts of more than most bytes.
func cut(most int, texts ...*string) {
	for _, text := range texts {
		if len(*text) > most {
			*text = strings.Clone(strings.ToValidUTF8((*text)[:most], "")) + "…"
		}
	}
}

// denied makes the error of a write that a webhook refuses.
func (h *hook) denied(status *metav1.Status) error {
	if status == nil {
		status = &metav1.Status{}
	}
	status.Code = max(status.Code, 0)
	if status.Code < http.StatusBadRequest {
		status.Code = http.StatusBadRequest
	}
	if status.Status == "" || status.Status == metav1.StatusSuccess {
		status.Status = metav1.StatusFailure
	}
	by := fmt.Sprintf("admission webhook %q denied the request", h.name)
	switch {
	case status.Message != "":
		status.Message = by + ": " + status.Message
	case status.Reason != "":
		status.Message = by + ": " + string(status.Reason)
	default:
		status.Message = by + " without explanation"
	}
	return &denial{&apierrors.StatusError{ErrStatus: *status}}
}

// denial is the error of a webhook that refused the write.
type denial struct{ *apierrors.StatusError }

// clientError returns an error as clients see it.
func clientError(err error) error {
	if d, ok := err.(*denial); ok {
		return d.StatusError
	}
	return err
}

// passOn passes on the warnings and audit annotations of a response.
func (h *hook) passOn(w *match.Write, r *admissionv1.AdmissionResponse) {
	for key, value := range r.AuditAnnotations {
		w.Request.Annotate(h.name+"/"+key, value)
	}
	for _, text := range r.Warnings {
		w.Request.Warn(text)
	}
}
