package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/builtin/flowcontrol"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Who owns what the server writes into flow schemas and priority levels.
const (
	flowProducer = "api-priority-and-fairness-config-producer-v1"
	flowConsumer = "api-priority-and-fairness-config-consumer-v1"
)

const (
	flowSchemas = "flowschemas"
	flowLevels  = "prioritylevelconfigurations"
	flowPath    = "/apis/" + flowcontrolv1.GroupName + "/v1/"

	// ensureFlowEvery is how often it is seen to that the objects are there.
	ensureFlowEvery = time.Minute
	// maxReports is how often a minute the condition of a schema is written:
	// another server may be of another opinion.
	maxReports = 6
)

// control makes what decides which requests have to wait.
func (a *assembly) control() {
	cfg := a.Flow
	if cfg.Off {
		a.outer.Flow = flow.NewInFlight(cfg)
		return
	}
	cfg.Logger, cfg.RequestTimeout = a.Logger, a.RequestTimeout
	objects := a.resources.Follow(schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: flowLevels}, schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: flowSchemas})
	a.synced = objects.Synced
	cfg.Source = objects
	cfg.Stats = a.sizes
	cfg.Report = (&danglings{client: a.client(), written: map[string]int{}}).report
	a.flow = flow.New(cfg)
	a.outer.Flow = a.flow
}

// client is the server as a client of its own.
func (a *assembly) client() *http.Client {
	return &http.Client{Transport: a.outer.Loopback(loopbackUser())}
}

// sizes is a flow.Stats.
func (a *assembly) sizes(group, name string) (count, averageBytes int64) {
	if r, ok := a.resources.Stored(group, name); ok && r.Definition().Source == nil {
		return r.Stats()
	}
	return 0, 0
}

// runFlow has flow control follow what there is.
func (a *assembly) runFlow(ctx context.Context) error {
	a.running.Go(func() { a.flow.Run(ctx) })
	return nil
}

// ensureFlow makes the schemas and levels that a cluster has, and sees to it that
// they stay.
func (a *assembly) ensureFlow(ctx context.Context) error {
	if err := a.ensureFlowOnce(ctx); err != nil {
		return err
	}
	a.running.Go(func() {
		for range clock.Every(ctx, ensureFlowEvery) {
			if err := a.ensureFlowOnce(ctx); err != nil && ctx.Err() == nil {
				a.Logger.Warn("flow schemas and priority levels are not as they should be", "error", err)
			}
		}
	})
	return nil
}

func (a *assembly) ensureFlowOnce(ctx context.Context) error {
	return errors.Join(
		a.ensureFlowObjects(ctx, flowLevels, bootstrap.PriorityLevels()),
		a.ensureFlowObjects(ctx, flowSchemas, bootstrap.FlowSchemas()),
	)
}

func (a *assembly) ensureFlowObjects(ctx context.Context, name string, wanted []resource.Object) error {
	if _, ok := a.catalogs.get().Definition(flowcontrolv1.GroupName, name); !ok {
		return nil // switched off
	}
	list, err := a.resources.Objects(flowcontrolv1.GroupName, name).List(ctx, "")
	if err != nil {
		return err
	}
	existing := map[string]resource.Object{}
	for _, obj := range list {
		existing[obj.GetName()] = obj
	}
	client, path, owned := a.client(), flowPath+name, "?fieldManager="+flowProducer
	objects := a.resources.ObjectsAs(flowProducer, flowcontrolv1.GroupName, name)
	send := func(method, path string, obj resource.Object) error {
		body, err := json.Marshal(obj)
		if err != nil {
			return err
		}
		return call(ctx, client, method, path, "application/json", body, nil)
	}
	var writes []func() error
	add := func(f func() error) { writes = append(writes, f) }
	for _, want := range wanted {
		have, ok := existing[want.GetName()]
		if !ok {
			add(func() error { return objects.Create(ctx, want) })
		} else if next, action := bootstrap.ReconcileFlowControl(have, want); action == bootstrap.Update {
			add(func() error { return send(http.MethodPut, path+"/"+want.GetName()+owned, next) })
		}
	}
	for _, have := range list {
		if bootstrap.Unwanted(have, wanted) {
			add(func() error {
				return call(ctx, client, http.MethodDelete, path+"/"+have.GetName(), "application/json", nil, nil)
			})
		}
	}
	return inParallel(len(writes), func(i int) error {
		err := writes[i]()
		// Another server, or a person, may be faster.
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// danglings writes down which schemas have no level.
type danglings struct {
	client *http.Client

	minute  int64
	written map[string]int // in this minute, by schema
}

// report implements flow.Config.Report, which is called by one goroutine.
func (d *danglings) report(ctx context.Context, s *flowcontrolv1.FlowSchema, found bool) error {
	now := time.Now()
	want := flowcontrol.Dangling(s.Spec.PriorityLevelConfiguration.Name, found, metav1.NewTime(request.From(ctx).Received))
	for _, have := range s.Status.Conditions {
		if have.Type == want.Type && have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message {
			return nil
		}
	}
	if minute := now.Unix() / 60; minute != d.minute {
		d.minute = minute
		clear(d.written)
	}
	if d.written[s.Name]++; d.written[s.Name] > maxReports {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": flowcontrolv1.SchemeGroupVersion.String(), "kind": "FlowSchema",
		"metadata": map[string]any{"name": s.Name},
		"status":   flowcontrolv1.FlowSchemaStatus{Conditions: []flowcontrolv1.FlowSchemaCondition{want}},
	})
	if err != nil {
		return err
	}
	path := flowPath + flowSchemas + "/" + s.Name + "/status?force=true&fieldManager=" + flowConsumer
	err = call(ctx, d.client, http.MethodPatch, path, "application/apply-patch+yaml", body, nil)
	if apierrors.IsNotFound(err) {
		return nil // it is gone, which will be told
	}
	return err
}
