package apiserver

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/builtin/flowcontrol"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/internal/loopback"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Who owns what the server writes into flow schemas and priority levels.
const (
	flowProducer = "api-priority-and-fairness-config-producer-v1"
	flowConsumer = "api-priority-and-fairness-config-consumer-v1"
)

// The resources of flow control.
const (
	FlowSchemas    = "flowschemas"
	PriorityLevels = "prioritylevelconfigurations"

	flowPath = "/apis/" + flowcontrolv1.GroupName + "/v1/"

	// ensureFlowEvery is how often it is seen to that the objects are there.
	ensureFlowEvery = time.Minute
	// maxReports is how often a minute the condition of a schema is written:
	// another server may be of another opinion.
	maxReports = 6
)

// FlowControl keeps the flow schemas and priority levels that every cluster has, and
// writes into schemas whether their level is there.
type FlowControl struct {
	Server *Server

	// What Report has written in a minute, by schema. It is called by one goroutine.
	minute  int64
	reports map[string]int
}

// Start makes the schemas and levels, and sees to it that they stay.
func (f *FlowControl) Start(ctx context.Context) error {
	if err := f.Ensure(ctx); err != nil {
		return err
	}
	clock.Background(ctx, f.Server.Running, ensureFlowEvery, func() {
		if err := f.Ensure(ctx); err != nil && ctx.Err() == nil {
			f.Server.Logger.Warn("flow schemas and priority levels are not as they should be", "error", err)
		}
	})
	return nil
}

// Ensure creates schemas and levels that are not there, and brings others up to date.
func (f *FlowControl) Ensure(ctx context.Context) error {
	return errors.Join(
		f.ensureAll(ctx, PriorityLevels, bootstrap.PriorityLevels()),
		f.ensureAll(ctx, FlowSchemas, bootstrap.FlowSchemas()),
	)
}

func (f *FlowControl) ensureAll(ctx context.Context, name string, wanted []resource.Object) error {
	def, ok := f.Server.Catalog().Definition(flowcontrolv1.GroupName, name)
	if !ok {
		return nil // switched off
	}
	written := 0
	for _, want := range wanted {
		if f.Server.isWritten(def, want) {
			written++
		}
	}
	if written == len(wanted) {
		return nil
	}
	list, err := f.Server.Objects(serverManager, flowcontrolv1.GroupName, name).List(ctx, "")
	if err != nil {
		return err
	}
	existing := map[string]resource.Object{}
	for _, obj := range list {
		existing[obj.GetName()] = obj
	}
	client, path, owned := f.Server.client(), flowPath+name, url.Values{"fieldManager": {flowProducer}}
	objects := f.Server.Objects(flowProducer, flowcontrolv1.GroupName, name)
	var writes []func() error
	add := func(f func() error) { writes = append(writes, f) }
	for _, want := range wanted {
		have, ok := existing[want.GetName()]
		if !ok {
			add(func() error { return objects.Create(ctx, want) })
		} else if next, action := bootstrap.ReconcileFlowControl(have, want); action == bootstrap.Update {
			add(func() error {
				return client.Do(ctx, loopback.Call{Method: http.MethodPut, Path: path + "/" + want.GetName(), Query: owned, Body: next})
			})
		}
	}
	for _, have := range list {
		if bootstrap.Unwanted(have, wanted) {
			add(func() error {
				return client.Do(ctx, loopback.Call{Method: http.MethodDelete, Path: path + "/" + have.GetName()})
			})
		}
	}
	return protect.Each(len(writes), ensureWorkers, func(i int) error {
		err := writes[i]()
		// Another server, or a person, may be faster.
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// ReportAll writes the status of the schemas that every cluster has, whose levels are
// there.
func (f *FlowControl) ReportAll(ctx context.Context) error {
	for _, obj := range bootstrap.FlowSchemas() {
		if err := f.Report(ctx, obj.(*flowcontrolv1.FlowSchema), true); err != nil {
			return err
		}
	}
	return nil
}

// Report implements flow.Config.Report: it writes whether the level of a schema was
// found.
func (f *FlowControl) Report(ctx context.Context, s *flowcontrolv1.FlowSchema, found bool) error {
	now := time.Now()
	want := flowcontrol.Dangling(s.Spec.PriorityLevelConfiguration.Name, found, metav1.NewTime(request.From(ctx).Received))
	for _, have := range s.Status.Conditions {
		if have.Type == want.Type && have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message {
			return nil
		}
	}
	if minute := now.Unix() / 60; minute != f.minute {
		f.minute, f.reports = minute, map[string]int{}
	}
	if f.reports[s.Name]++; f.reports[s.Name] > maxReports {
		return nil
	}
	status := map[string]any{
		"apiVersion": flowcontrolv1.SchemeGroupVersion.String(), "kind": "FlowSchema",
		"metadata": map[string]any{"name": s.Name},
		"status":   flowcontrolv1.FlowSchemaStatus{Conditions: []flowcontrolv1.FlowSchemaCondition{want}},
	}
	err := f.Server.client().Do(ctx, loopback.Call{
		Method: http.MethodPatch, Path: flowPath + FlowSchemas + "/" + s.Name + "/status", Body: status,
		ContentType: "application/apply-patch+yaml", Query: url.Values{"force": {"true"}, "fieldManager": {flowConsumer}},
	})
	if apierrors.IsNotFound(err) {
		return nil // it is gone, which will be told
	}
	return err
}
