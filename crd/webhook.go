package crd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/webhook"
)

const (
	// convertWithin is the timeout of a conversion webhook.
	convertWithin = 30 * time.Second
	// A call that takes longer than slowCall plus slowObject for each object is
	// logged.
	slowCall, slowObject = 50 * time.Millisecond, 8 * time.Millisecond
)

// hook is the conversion strategy Webhook. Of the metadata in a response only labels and
// annotations are used; the rest is restored from the original object.
type hook struct {
	client   *webhook.Client
	endpoint webhook.Endpoint
	// versions of ConversionReview that the webhook accepts, the preferred first.
	versions []string
	// crd is the name of the definition, for metrics; metrics may be nil.
	crd     string
	metrics measure.Sink
	log     *slog.Logger // nil: slow calls are not logged
}

// Values of the label failure_type of the conversion metrics.
const (
	callFailed    = "conversion_webhook_call_failure"
	badAnswer     = "conversion_webhook_malformed_response_failure"
	partialAnswer = "conversion_webhook_partial_response_failure"
	noAnswer      = "conversion_webhook_no_objects_returned_failure"
	badObject     = "conversion_webhook_invalid_converted_object_failure"
)

// countCall counts a call; failure is "" for success.
func (h *hook) countCall(began time.Time, failure string) {
	result := "success"
	if failure != "" {
		result = "failure"
	}
	measure.Count(h.metrics, measure.ConversionRequests, result, failure)
	measure.Since(h.metrics, began, measure.ConversionDuration, result, failure)
}

func newHook(client *webhook.Client, c *apiextensions.WebhookConversion) *hook {
	h := &hook{client: client, versions: slices.Clone(c.ConversionReviewVersions)}
	config := c.ClientConfig
	if config == nil {
		return h
	}
	if len(bytes.TrimSpace(config.CABundle)) > 0 {
		h.endpoint.CABundle = bytes.Clone(config.CABundle)
	}
	if config.URL != nil {
		h.endpoint.URL = *config.URL
	}
	if s := config.Service; s != nil {
		h.endpoint.Service = &webhook.Service{Namespace: s.Namespace, Name: s.Name, Port: 443}
		if s.Port != nil {
			h.endpoint.Service.Port = *s.Port
		}
		if s.Path != nil {
			h.endpoint.Service.Path = *s.Path
		}
	}
	return h
}

func (h *hook) isExpensive() bool { return true }

func (h *hook) convert(objs []resource.Object, apiVersion string) (converted []resource.Object, err error) {
	if len(objs) > 0 && h.metrics != nil {
		from, began := objs[0].GetObjectKind().GroupVersionKind().Version, time.Now()
		if _, to, _ := strings.Cut(apiVersion, "/"); from != to {
			defer func() {
				if !isRefusal(err) {
					measure.Since(h.metrics, began, measure.CRDConversionDuration, h.crd, from, to, strconv.FormatBool(err == nil))
				}
			}()
		}
	}
	return h.convertAll(objs, apiVersion)
}

func (h *hook) convertAll(objs []resource.Object, apiVersion string) ([]resource.Object, error) {
	out := slices.Clone(objs)
	var send []runtime.RawExtension
	var places []int
	for i, obj := range objs {
		if content(obj)["apiVersion"] == apiVersion {
			continue
		}
		if isBare(obj) {
			renamed, _ := noneConverter{}.convert(objs[i:i+1], apiVersion)
			out[i] = renamed[0]
			continue
		}
		raw, err := json.Marshal(content(obj))
		if err != nil {
			return nil, err
		}
		send = append(send, runtime.RawExtension{Raw: raw})
		places = append(places, i)
	}
	if len(send) == 0 {
		return out, nil
	}
	kind := objs[places[0]].GetObjectKind().GroupVersionKind()
	began := time.Now()
	hold, release := h.client.Holding(context.Background(), answerFactor)
	defer release()
	converted, failure, err := h.callWebhook(send, apiVersion, hold)
	if isRefusal(err) { // the webhook has not failed: the call counts neither as a failure nor as a success
		return nil, fmt.Errorf("the answer of the conversion webhook for %v was not read: %w", kind, err)
	}
	if err != nil {
		h.countCall(began, failure)
		return nil, fmt.Errorf("conversion webhook for %v failed: %w", kind, err)
	}
	if len(converted) != len(send) {
		failure := partialAnswer
		if len(converted) == 0 {
			failure = noAnswer
		}
		h.countCall(began, failure)
		return nil, fmt.Errorf("conversion webhook for %v returned %d objects, expected %d", kind, len(converted), len(send))
	}
	for n, i := range places {
		u, err := checkConverted(converted[n].Raw, objs[i].(*unstructured.Unstructured), apiVersion)
		if err != nil {
			h.countCall(began, badObject)
			return nil, &invalidObject{kind: kind, index: i, inList: len(objs) > 1, err: err}
		}
		out[i] = u
	}
	h.countCall(began, "")
	return out, nil
}

// isRefusal reports whether a call has failed because this server has no memory for the answer.
func isRefusal(err error) bool { return errors.As(err, new(*webhook.Refusal)) }

// isBare reports whether an object has nothing but apiVersion and kind, or is the object
// of a bookmark. Such objects are not sent to webhooks.
func isBare(obj resource.Object) bool {
	members := len(content(obj))
	if _, ok := content(obj)["metadata"]; ok && obj.GetName() == "" && obj.GetGenerateName() == "" {
		members--
	}
	return members <= 2
}

// invalidObject is the error about one object of an answer. It implements resource.ItemError.
type invalidObject struct {
	kind   schema.GroupVersionKind
	index  int // of the object
	inList bool
	err    error
}

// Error implements error.
func (e *invalidObject) Error() string {
	var where *badMeta
	what := "converted object"
	if errors.As(e.err, &where) {
		what = "metadata in object"
	}
	switch {
	case e.inList:
		what = fmt.Sprintf("%s at index %d", what, e.index)
	case where != nil:
		what = "metadata"
	case errors.As(e.err, new(*otherObject)):
		what = "object"
	default:
		what = "object at index 0"
	}
	return fmt.Sprintf("conversion webhook for %v returned invalid %s: %v", e.kind, what, e.err)
}

// Unwrap returns what is wrong with the object.
func (e *invalidObject) Unwrap() error { return e.err }

// InList implements resource.ItemError.
func (e *invalidObject) InList(position func(index int) int) error {
	return &invalidObject{kind: e.kind, index: position(e.index), inList: true, err: e.err}
}

// answerFactor is how many times its bytes an answer takes: its text and the objects in it, which may
// have many small values.
const answerFactor = 32

// callWebhook sends a ConversionReview and returns the converted objects, or the failure type
// and the error.
func (h *hook) callWebhook(objs []runtime.RawExtension, apiVersion string, hold func(bytes int64) error) (converted []runtime.RawExtension, failure string, err error) {
	var review apiextensions.ConversionReview
	for _, v := range h.versions {
		if v == "v1" || v == "v1beta1" {
			// Both versions have the same fields.
			review.APIVersion, review.Kind = Group+"/"+v, "ConversionReview"
			break
		}
	}
	if review.Kind == "" {
		return nil, callFailed, errors.New("no supported conversion review versions")
	}
	id := uuid.NewUUID()
	review.Request = &apiextensions.ConversionRequest{UID: id, DesiredAPIVersion: apiVersion, Objects: objs}
	body, err := json.Marshal(&review)
	if err != nil {
		return nil, callFailed, err
	}
	// The result is cached and shared, so the context of the request is not used.
	ctx, cancel := context.WithTimeout(context.Background(), convertWithin)
	defer cancel()
	line := request.NewTimeline("Call conversion webhook", slowCall+time.Duration(len(objs))*slowObject,
		request.Field{Key: "custom-resource-definition", Value: h.crd}, request.Field{Key: "desired-api-version", Value: apiVersion},
		request.Field{Key: "object-count", Value: len(objs)}, request.Field{Key: "UID", Value: id})
	defer h.logSlow(line)
	answer, err := h.client.Post(ctx, &h.endpoint, body, hold)
	if err != nil {
		return nil, callFailed, err
	}
	line.Step("Request completed")
	converted, err = checkReview(answer, review.APIVersion, id)
	return converted, badAnswer, err
}

// logSlow logs a slow call.
func (h *hook) logSlow(line *request.Timeline) {
	line.End()
	if h.log == nil {
		return
	}
	for _, slow := range line.Slow(time.Now()) {
		h.log.Info(slow.Text(rand.Uint32()>>1, false))
	}
}

// checkReview returns the objects of a ConversionReview response, or why it is invalid.
func checkReview(answer []byte, apiVersion string, id types.UID) ([]runtime.RawExtension, error) {
	var review apiextensions.ConversionReview
	if err := json.Unmarshal(answer, &review); err != nil {
		return nil, err
	}
	want := schema.FromAPIVersionAndKind(apiVersion, "ConversionReview")
	strict := want.Version != "v1beta1" // v1beta1 does not check
	if got := review.GroupVersionKind(); strict && got != want {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want.String(), got.String())
	}
	r := review.Response
	switch {
	case r == nil:
		return nil, errors.New("no response provided")
	case strict && r.UID != id:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", id, r.UID)
	case r.Result.Status != metav1.StatusSuccess && r.Result.Message != "":
		return nil, errors.New(r.Result.Message)
	case r.Result.Status != metav1.StatusSuccess:
		return nil, fmt.Errorf("response.result.status was '%s', not 'Success'", r.Result.Status)
	}
	return r.ConvertedObjects, nil
}

// checkConverted checks one converted object.
func checkConverted(raw []byte, from *unstructured.Unstructured, apiVersion string) (*unstructured.Unstructured, error) {
	to := &unstructured.Unstructured{}
	if err := to.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	if got := to.GetAPIVersion(); got != apiVersion {
		return nil, fmt.Errorf("invalid groupVersion (expected %v, received %v)", apiVersion, got)
	}
	if got := to.GetKind(); got != from.GetKind() {
		return nil, fmt.Errorf("invalid kind (expected %v, received %v)", from.GetKind(), got)
	}
	for _, same := range []struct{ what, want, got string }{
		{"name", from.GetName(), to.GetName()}, {"namespace", from.GetNamespace(), to.GetNamespace()}, {"UID", string(from.GetUID()), string(to.GetUID())},
	} {
		if same.want != same.got {
			return nil, &otherObject{same.what, same.want, same.got}
		}
	}
	if err := restoreMeta(from, to); err != nil {
		return nil, &badMeta{err}
	}
	return to, nil
}

// badMeta is an error about the metadata of an object.
type badMeta struct{ err error }

func (e *badMeta) Error() string { return e.err.Error() }

// otherObject is the error that the response changed the name, namespace or uid.
type otherObject struct{ what, want, got string }

func (e *otherObject) Error() string {
	return fmt.Sprintf("must have the same %s: %v != %v", e.what, e.want, e.got)
}

// restoreMeta gives a converted object the metadata of the original, except for labels
// and annotations.
func restoreMeta(from, to *unstructured.Unstructured) error {
	v, ok := to.Object["metadata"]
	if !ok {
		return errors.New("missing metadata in converted object")
	}
	answered, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("invalid metadata of type %T in converted object", v)
	}
	meta := map[string]any{}
	if v, ok := from.Object["metadata"]; ok {
		if meta, ok = runtime.DeepCopyJSONValue(v).(map[string]any); !ok {
			return fmt.Errorf("invalid metadata of type %T in input object", v)
		}
	}
	to.Object["metadata"] = meta
	for _, name := range []string{"labels", "annotations"} {
		v, ok := answered[name]
		if !ok || v == nil {
			delete(meta, name)
			continue
		}
		texts, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("invalid metadata.%s of type %T in converted object", name, v)
		}
		values := make(map[string]string, len(texts))
		for key, v := range texts {
			text, ok := v.(string)
			if !ok {
				return fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", name, key, v)
			}
			values[key] = text
		}
		before, _, _ := unstructured.NestedStringMap(from.Object, "metadata", name)
		if !maps.Equal(before, values) {
			var errs field.ErrorList
			if name == "labels" {
				errs = metav1validation.ValidateLabels(values, field.NewPath("metadata", "labels"))
			} else {
				errs = apivalidation.ValidateAnnotations(values, field.NewPath("metadata", "annotation"))
			}
			if len(errs) > 0 {
				return errs.ToAggregate()
			}
		}
		meta[name] = texts
	}
	return nil
}
