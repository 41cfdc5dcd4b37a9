package core

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	eventsv1beta1 "k8s.io/api/events/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Length limits of fields, where events are validated strictly.
const (
	maxEventWord = 128
	maxEventNote = 1024
)

// Events defines events, one resource in two groups: the core group, and events.k8s.io with
// other field names and stricter validation. They expire after ttl.
func Events(ttl time.Duration) resource.Definition {
	return resource.Definition{
		Resource:   "events",
		Kind:       "Event",
		ShortNames: []string{"ev"},
		Namespaced: true,
		Uncached:   true,
		TTL:        func(resource.Object) time.Duration { return ttl },
		Versions: []resource.Version{
			resource.VersionOf[corev1.Event, corev1.EventList, *corev1.Event]("v1", nil),
			{
				Name:       "v1",
				Group:      eventsv1.GroupName,
				New:        func() resource.Object { return &eventsv1.Event{} },
				NewList:    func() runtime.Object { return &eventsv1.EventList{} },
				ToHub:      func(obj resource.Object) (resource.Object, error) { return toCoreEvent(obj.(*eventsv1.Event)), nil },
				FromHub:    func(obj resource.Object) (resource.Object, error) { return fromCoreEvent(obj.(*corev1.Event)), nil },
				FieldNames: newEventFields(),
			},
		},
		Old: []resource.Version{oldEvents()},
		Strategy: resource.Rules[*corev1.Event]{
			// The name rule depends on the group.
			ValidateName:   rules.AnyName,
			CreateOnUpdate: true,
			NoPropagation:  true,
			JudgesMetadata: true,
			Validate: func(ctx context.Context, e *corev1.Event) field.ErrorList {
				errs := validateEvent(ctx, e)
				switch {
				case strictEvents(ctx):
					errs = append(errs, validateEventMetadata(ctx, e)...)
					return append(errs, validateNewEvent(e)...)
				case len(errs) > 0:
					return errs // in the core group, further errors are reported only if this passes
				}
				return validateEventMetadata(ctx, e)
			},
			ValidateUpdate: func(ctx context.Context, e, old *corev1.Event) field.ErrorList {
				errs := validateEvent(ctx, e)
				if strictEvents(ctx) {
					errs = append(errs, validateNewEventUpdate(e, old)...)
				}
				return errs
			},
		}.Strategy(),
		Columns: eventColumns(),
		Cells:   resource.CellsFunc(eventCells),
		Fields:  eventFields(),
	}
}

// strictEvents reports whether the request is for events.k8s.io.
func strictEvents(ctx context.Context) bool { return request.From(ctx).Group == eventsv1.GroupName }

// oldEvents returns events.k8s.io/v1beta1, which has the fields of v1.
func oldEvents() resource.Version {
	return resource.Version{
		Name: eventsv1beta1.SchemeGroupVersion.Version, Group: eventsv1beta1.GroupName,
		New: func() resource.Object { return &eventsv1beta1.Event{} },
		ToHub: func(obj resource.Object) (resource.Object, error) {
			var event eventsv1.Event
			resource.CopyAlike(&event, obj.(*eventsv1beta1.Event))
			return toCoreEvent(&event), nil
		},
	}
}

func toCoreEvent(e *eventsv1.Event) *corev1.Event {
	out := &corev1.Event{
		ObjectMeta:          e.ObjectMeta,
		InvolvedObject:      e.Regarding,
		Reason:              e.Reason,
		Message:             e.Note,
		Source:              e.DeprecatedSource,
		FirstTimestamp:      e.DeprecatedFirstTimestamp,
		LastTimestamp:       e.DeprecatedLastTimestamp,
		Count:               e.DeprecatedCount,
		Type:                e.Type,
		EventTime:           e.EventTime,
		Action:              e.Action,
		Related:             e.Related,
		ReportingController: e.ReportingController,
		ReportingInstance:   e.ReportingInstance,
	}
	if s := e.Series; s != nil {
		out.Series = &corev1.EventSeries{Count: s.Count, LastObservedTime: s.LastObservedTime}
	}
	return out
}

func fromCoreEvent(e *corev1.Event) *eventsv1.Event {
	out := &eventsv1.Event{
		ObjectMeta:               e.ObjectMeta,
		Regarding:                e.InvolvedObject,
		Reason:                   e.Reason,
		Note:                     e.Message,
		DeprecatedSource:         e.Source,
		DeprecatedFirstTimestamp: e.FirstTimestamp,
		DeprecatedLastTimestamp:  e.LastTimestamp,
		DeprecatedCount:          e.Count,
		Type:                     e.Type,
		EventTime:                e.EventTime,
		Action:                   e.Action,
		Related:                  e.Related,
		ReportingController:      e.ReportingController,
		ReportingInstance:        e.ReportingInstance,
	}
	if s := e.Series; s != nil {
		out.Series = &eventsv1.EventSeries{Count: s.Count, LastObservedTime: s.LastObservedTime}
	}
	return out
}

// validateEventMetadata validates new events. In the core group a name is any path segment.
func validateEventMetadata(ctx context.Context, e *corev1.Event) field.ErrorList {
	rule := apivalidation.NameIsDNSSubdomain
	if !strictEvents(ctx) {
		rule = func(name string, prefix bool) []string {
			if prefix {
				return content.IsPathSegmentPrefix(name)
			}
			return content.IsPathSegmentName(name)
		}
	}
	return apivalidation.ValidateObjectMeta(&e.ObjectMeta, true, rule, field.NewPath("metadata"))
}

// validateEvent is the validation of both groups. An event without eventTime is from an old
// reporter, and hardly validated.
func validateEvent(ctx context.Context, e *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	ns := e.InvolvedObject.Namespace
	elsewhere := field.Invalid(field.NewPath("involvedObject", "namespace"), ns, "does not match event.namespace")
	if e.EventTime.IsZero() {
		if ns == "" && e.Namespace != metav1.NamespaceNone && e.Namespace != metav1.NamespaceDefault || ns != "" && ns != e.Namespace {
			errs = append(errs, elsewhere)
		}
		return errs
	}
	if ns == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
		errs = append(errs, elsewhere)
	}

	controller := field.NewPath("reportingController")
	if !strictEvents(ctx) {
		controller = field.NewPath("reportingComponent")
	}
	if e.ReportingController == "" {
		errs = append(errs, field.Required(controller, ""))
	}
	errs = append(errs, rules.Invalid(controller, e.ReportingController, validation.IsQualifiedName(e.ReportingController))...)
	for _, f := range []struct {
		name, value string
		max         int
		optional    bool
	}{
		{name: "reportingInstance", value: e.ReportingInstance, max: maxEventWord},
		{name: "action", value: e.Action, max: maxEventWord},
		{name: "reason", value: e.Reason, max: maxEventWord},
		{name: "message", value: e.Message, max: maxEventNote, optional: true},
	} {
		if f.value == "" && !f.optional {
			errs = append(errs, field.Required(field.NewPath(f.name), ""))
		}
		if len(f.value) > f.max {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", fmt.Sprintf("can have at most %v characters", f.max)))
		}
	}
	return errs
}

// validateNewEvent is the stricter validation of events created in events.k8s.io.
func validateNewEvent(e *corev1.Event) field.ErrorList {
	errs := rules.ValidateFinalizers(e.Finalizers, field.NewPath("metadata", "finalizers"))
	errs = append(errs, validateSeries(e.Series)...)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		// The first moment of all counts as a time: only what was not sent is unset.
		{"firstTimestamp", e.FirstTimestamp != metav1.Time{}},
		{"lastTimestamp", e.LastTimestamp != metav1.Time{}},
		{"count", e.Count != 0},
		{"source", e.Source != corev1.EventSource{}},
	} {
		if f.set {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return errs
}

// validateNewEventUpdate is the stricter validation of updates in events.k8s.io: only the
// series may change.
func validateNewEventUpdate(e, old *corev1.Event) field.ErrorList {
	errs := rules.ValidateFinalizers(e.Finalizers, field.NewPath("metadata", "finalizers"))
	if !equality.Semantic.DeepEqual(e.Series, old.Series) {
		errs = append(errs, validateSeries(e.Series)...)
	}
	at := func(name string) *field.Path { return field.NewPath(name) }
	errs = append(errs, rules.ValidateImmutable(e.InvolvedObject, old.InvolvedObject, at("involvedObject"), rules.GoForm(e.InvolvedObject))...)
	errs = append(errs, rules.ValidateImmutable(e.Reason, old.Reason, at("reason"))...)
	errs = append(errs, rules.ValidateImmutable(e.Message, old.Message, at("message"))...)
	errs = append(errs, rules.ValidateImmutable(e.Source, old.Source, at("source"), rules.GoForm(e.Source))...)
	errs = append(errs, rules.ValidateImmutable(e.FirstTimestamp, old.FirstTimestamp, at("firstTimestamp"))...)
	errs = append(errs, rules.ValidateImmutable(e.LastTimestamp, old.LastTimestamp, at("lastTimestamp"))...)
	errs = append(errs, rules.ValidateImmutable(e.Count, old.Count, at("count"))...)
	errs = append(errs, rules.ValidateImmutable(e.Type, old.Type, at("type"))...)
	// Clients differ in the precision of times.
	if !e.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) {
		errs = append(errs, rules.ValidateImmutable(e.EventTime, old.EventTime, at("eventTime"))...)
	}
	errs = append(errs, rules.ValidateImmutable(e.Action, old.Action, at("action"))...)
	errs = append(errs, rules.ValidateImmutable(e.Related, old.Related, at("related"), rules.GoForm(e.Related))...)
	errs = append(errs, rules.ValidateImmutable(e.ReportingController, old.ReportingController, at("reportingController"))...)
	return append(errs, rules.ValidateImmutable(e.ReportingInstance, old.ReportingInstance, at("reportingInstance"))...)
}

func validateSeries(s *corev1.EventSeries) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	if s.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if s.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

func eventColumns() []resource.Column {
	doc, object := corev1.Event{}.SwaggerDoc(), corev1.ObjectReference{}.SwaggerDoc()
	name := rules.NameColumn()
	name.Priority = 1
	return []resource.Column{
		{Name: "Last Seen", Type: "string", Description: doc["lastTimestamp"]},
		{Name: "Type", Type: "string", Description: doc["type"]},
		{Name: "Reason", Type: "string", Description: doc["reason"]},
		{Name: "Object", Type: "string", Description: doc["involvedObject"]},
		{Name: "Subobject", Type: "string", Priority: 1, Description: object["fieldPath"]},
		{Name: "Source", Type: "string", Priority: 1, Description: doc["source"]},
		{Name: "Message", Type: "string", Description: doc["message"]},
		{Name: "First Seen", Type: "string", Priority: 1, Description: doc["firstTimestamp"]},
		{Name: "Count", Type: "string", Priority: 1, Description: doc["count"]},
		name,
	}
}

func eventCells(e *corev1.Event) []any {
	first := e.FirstTimestamp.Time
	if first.IsZero() {
		first = e.EventTime.Time
	}
	last, count := e.LastTimestamp.Time, e.Count
	if last.IsZero() {
		last = first
	}
	if e.Series != nil {
		last, count = e.Series.LastObservedTime.Time, e.Series.Count
	} else if count == 0 {
		count = 1
	}
	target := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		target += "/" + e.InvolvedObject.Name
	}
	source := orElse(e.Source.Component, e.ReportingController)
	if instance := orElse(e.Source.Host, e.ReportingInstance); instance != "" {
		source += ", " + instance
	}
	return []any{
		resource.Since(last), e.Type, e.Reason, target, e.InvolvedObject.FieldPath, source,
		strings.TrimSpace(e.Message), resource.Since(first), int64(count), e.Name,
	}
}

func eventFields() []resource.Field {
	f := resource.FieldFunc[*corev1.Event]
	return []resource.Field{
		f("involvedObject.kind", func(e *corev1.Event) string { return e.InvolvedObject.Kind }),
		f("involvedObject.namespace", func(e *corev1.Event) string { return e.InvolvedObject.Namespace }),
		f("involvedObject.name", func(e *corev1.Event) string { return e.InvolvedObject.Name }),
		f("involvedObject.uid", func(e *corev1.Event) string { return string(e.InvolvedObject.UID) }),
		f("involvedObject.apiVersion", func(e *corev1.Event) string { return e.InvolvedObject.APIVersion }),
		f("involvedObject.resourceVersion", func(e *corev1.Event) string { return e.InvolvedObject.ResourceVersion }),
		f("involvedObject.fieldPath", func(e *corev1.Event) string { return e.InvolvedObject.FieldPath }),
		f("reason", func(e *corev1.Event) string { return e.Reason }),
		f("reportingComponent", func(e *corev1.Event) string { return e.ReportingController }),
		f("source", func(e *corev1.Event) string { return orElse(e.Source.Component, e.ReportingController) }),
		f("type", func(e *corev1.Event) string { return e.Type }),
	}
}

// newEventFields maps the selectable fields of events.k8s.io, which has no source.
func newEventFields() map[string]string {
	names := map[string]string{"reason": "reason", "type": "type", "reportingController": "reportingComponent"}
	for _, f := range []string{"kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"} {
		names["regarding."+f] = "involvedObject." + f
	}
	return names
}
