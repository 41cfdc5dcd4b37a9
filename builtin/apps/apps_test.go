package apps

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

func definition(t *testing.T, name string) *resource.Definition {
	t.Helper()
	c, err := resource.NewCatalog(Group())
	if err != nil {
		t.Fatal(err)
	}
	d, ok := c.Definition("apps", name)
	if !ok {
		t.Fatalf("no %s", name)
	}
	return d
}

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}, {Name: "d", Image: "j:v1"}}},
	}
}

// newDeployment is a valid one, with defaults.
func newDeployment(change func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "n"},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}, Template: template()},
	}
	defaultDeployment(d)
	if change != nil {
		change(d)
	}
	return d
}

// newReplicaSet is a valid one, with defaults.
func newReplicaSet(change func(*appsv1.ReplicaSet)) *appsv1.ReplicaSet {
	r := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "n"},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}, Template: template()},
	}
	ReplicaSets().Versions[0].Default(r)
	if change != nil {
		change(r)
	}
	return r
}

// texts are errors as "field: text", sorted.
func texts(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		out = append(out, e.Error())
	}
	slices.Sort(out)
	return out
}

func wantErrors(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	if got := texts(errs); !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestNames(t *testing.T) {
	for name, short := range map[string]string{"deployments": "deploy", "replicasets": "rs"} {
		d := definition(t, name)
		if d.StorageKey != name || !slices.Equal(d.ShortNames, []string{short}) || !slices.Equal(d.Categories, []string{"all"}) || !d.Namespaced {
			t.Errorf("%s: %+v", name, d)
		}
		for _, sub := range []string{"status", "scale"} {
			if _, ok := d.Subresource(sub); !ok {
				t.Errorf("%s has no %s", name, sub)
			}
		}
	}
}

func TestDeploymentDefaults(t *testing.T) {
	d := newDeployment(nil)
	quarter := intstr.FromString("25%")
	if *d.Spec.Replicas != 1 || *d.Spec.RevisionHistoryLimit != 10 || *d.Spec.ProgressDeadlineSeconds != 600 ||
		d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType ||
		*d.Spec.Strategy.RollingUpdate.MaxSurge != quarter || *d.Spec.Strategy.RollingUpdate.MaxUnavailable != quarter {
		t.Errorf("defaults: %+v", d.Spec)
	}
	if d.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Error("the template has no defaults")
	}
	recreate := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}}}
	if defaultDeployment(recreate); recreate.Spec.Strategy.RollingUpdate != nil {
		t.Error("Recreate has parameters of a rolling update")
	}
	for text, want := range map[string]string{"": "gone", "007": "7", "x": "x"} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{appsv1.DeprecatedRollbackTo: text}}}
		defaultDeployment(d)
		got, ok := d.Annotations[appsv1.DeprecatedRollbackTo]
		if !ok {
			got = "gone"
		}
		if got != want {
			t.Errorf("rollback to %q became %q, want %q", text, got, want)
		}
	}
}

func TestDeploymentValidation(t *testing.T) {
	number, percentage := intstr.FromInt32, intstr.FromString
	rolling := func(unavailable, surge intstr.IntOrString) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &unavailable, MaxSurge: &surge}
		}
	}
	mismatch := "spec.template.metadata.labels: Invalid value: {\"app\":\"a\"}: `selector` does not match template `labels`"
	for name, test := range map[string]struct {
		change func(*appsv1.Deployment)
		want   []string
	}{
		"valid": {nil, nil},
		"negative": {func(d *appsv1.Deployment) {
			*d.Spec.Replicas, d.Spec.MinReadySeconds, *d.Spec.RevisionHistoryLimit = -1, -2, -3
		}, []string{
			"spec.minReadySeconds: Invalid value: -2: must be greater than or equal to 0",
			"spec.replicas: Invalid value: -1: must be greater than or equal to 0",
			"spec.revisionHistoryLimit: Invalid value: -3: must be greater than or equal to 0",
		}},
		"deadline": {func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 600 }, []string{
			"spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds",
		}},
		"no selector": {func(d *appsv1.Deployment) { d.Spec.Selector = nil }, []string{
			"spec.selector: Required value", mismatch,
		}},
		"empty selector": {func(d *appsv1.Deployment) { d.Spec.Selector = &metav1.LabelSelector{} }, []string{
			"spec.selector: Invalid value: {}: empty selector is invalid for deployment",
		}},
		"other selector": {func(d *appsv1.Deployment) { d.Spec.Selector.MatchLabels["app"] = "b" }, []string{mismatch}},
		"restart": {func(d *appsv1.Deployment) { d.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever }, []string{
			`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`,
		}},
		"active deadline": {func(d *appsv1.Deployment) { rules.DefaultPointer(&d.Spec.Template.Spec.ActiveDeadlineSeconds, 5) }, []string{
			"spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
		}},
		"recreate": {func(d *appsv1.Deployment) { d.Spec.Strategy.Type = "Recreate" }, []string{
			"spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
		}},
		"strategy": {func(d *appsv1.Deployment) { d.Spec.Strategy.Type = "Nope" }, []string{
			`spec.strategy: Unsupported value: {"Type":"Nope","RollingUpdate":{"MaxUnavailable":"25%","MaxSurge":"25%"}}: supported values: "Recreate", "RollingUpdate"`,
		}},
		"standstill": {rolling(number(0), percentage("0%")), []string{
			"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
		}},
		"too many": {rolling(percentage("101%"), number(1)), []string{
			`spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%`,
		}},
		"surge above all": {rolling(number(1), percentage("300%")), nil},
		"no percentage": {rolling(percentage("x"), number(-1)), []string{
			"spec.strategy.rollingUpdate.maxSurge: Invalid value: -1: must be greater than or equal to 0",
			`spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "x": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')`,
		}},
		"rollback": {func(d *appsv1.Deployment) { d.Annotations = map[string]string{appsv1.DeprecatedRollbackTo: "-1"} }, []string{
			"spec.rollback.version: Invalid value: -1: must be greater than or equal to 0",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			wantErrors(t, Deployments().Strategy.Validate(context.Background(), newDeployment(test.change)), test.want...)
		})
	}
}

func TestDeploymentUpdate(t *testing.T) {
	ctx, s := context.Background(), Deployments().Strategy
	old := newDeployment(func(d *appsv1.Deployment) { d.Status.Replicas = 3 })
	changed := newDeployment(func(d *appsv1.Deployment) {
		d.Spec.Selector.MatchLabels["tier"] = "web"
		d.Spec.Template.Labels["tier"] = "web"
		d.Status.Replicas = 9
	})
	s.PrepareUpdate(ctx, changed, old)
	if changed.Status.Replicas != 3 {
		t.Error("an update has changed the status")
	}
	wantErrors(t, s.ValidateUpdate(ctx, changed, old), `spec.selector: Invalid value: {"matchLabels":{"app":"a","tier":"web"}}: field is immutable`)
	for name, test := range map[string]struct {
		change func(*appsv1.Deployment)
		want   bool
	}{
		"nothing":    {func(*appsv1.Deployment) {}, false},
		"label":      {func(d *appsv1.Deployment) { d.Labels = map[string]string{"a": "b"} }, false},
		"annotation": {func(d *appsv1.Deployment) { d.Annotations = map[string]string{"a": "b"} }, true},
		"replicas":   {func(d *appsv1.Deployment) { *d.Spec.Replicas = 7 }, true},
	} {
		if got := s.Generation(newDeployment(test.change), newDeployment(nil)); got != test.want {
			t.Errorf("%s: the generation moves: %v", name, got)
		}
	}
}

func TestDeploymentStatus(t *testing.T) {
	ctx := context.Background()
	sub, _ := definition(t, "deployments").Subresource("status")
	old := newDeployment(func(d *appsv1.Deployment) { rules.DefaultPointer(&d.Status.CollisionCount, 2) })
	d := newDeployment(func(d *appsv1.Deployment) {
		d.Labels, *d.Spec.Replicas = map[string]string{"a": "b"}, 9
		d.Status = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 2, AvailableReplicas: 3, ReadyReplicas: -1}
	})
	sub.Part.PrepareUpdate(ctx, d, old)
	if d.Labels != nil || *d.Spec.Replicas != 1 {
		t.Error("a change of the status has changed more")
	}
	wantErrors(t, sub.Part.ValidateUpdate(ctx, d, old),
		"status.availableReplicas: Invalid value: 3: cannot be greater than readyReplicas",
		"status.availableReplicas: Invalid value: 3: cannot be greater than status.replicas",
		"status.collisionCount: Invalid value: 0: cannot be decremented",
		"status.readyReplicas: Invalid value: -1: must be greater than or equal to 0",
		"status.updatedReplicas: Invalid value: 2: cannot be greater than status.replicas",
	)
	if sub.Part.Generation != nil {
		t.Error("the status moves the generation")
	}
}

func TestReplicaSet(t *testing.T) {
	ctx, def := context.Background(), definition(t, "replicasets")
	s := def.Strategy
	wantErrors(t, s.Validate(ctx, newReplicaSet(nil)))
	wantErrors(t, s.Validate(ctx, newReplicaSet(func(r *appsv1.ReplicaSet) {
		*r.Spec.Replicas, r.Spec.MinReadySeconds, r.Spec.Selector = -1, -1, nil
	})),
		"spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
		"spec.replicas: Invalid value: -1: must be greater than or equal to 0",
		"spec.selector: Required value",
		"spec.template.metadata.labels: Invalid value: {\"app\":\"a\"}: `selector` does not match template `labels`",
	)
	wantErrors(t, s.ValidateUpdate(ctx, newReplicaSet(func(r *appsv1.ReplicaSet) {
		r.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Exists"}}}
	}), newReplicaSet(nil)),
		`spec.selector: Invalid value: {"matchExpressions":[{"key":"app","operator":"Exists"}]}: field is immutable`)

	sub, _ := def.Subresource("status")
	r := newReplicaSet(func(r *appsv1.ReplicaSet) {
		*r.Spec.Replicas = 9
		r.Status = appsv1.ReplicaSetStatus{Replicas: 1, FullyLabeledReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 3}
	})
	sub.Part.PrepareUpdate(ctx, r, newReplicaSet(nil))
	if *r.Spec.Replicas != 1 {
		t.Error("a change of the status has changed more")
	}
	wantErrors(t, sub.Part.ValidateUpdate(ctx, r, newReplicaSet(nil)),
		"status.availableReplicas: Invalid value: 3: cannot be greater than readyReplicas",
		"status.availableReplicas: Invalid value: 3: cannot be greater than status.replicas",
		"status.fullyLabeledReplicas: Invalid value: 2: cannot be greater than status.replicas",
		"status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
	)
	// kube-apiserver computes status.replicas for selectors, but lets none name
	// it.
	if len(def.Fields) != 0 {
		t.Errorf("selectable fields: %v", def.Fields)
	}
}

func TestWarnings(t *testing.T) {
	ctx, s := context.Background(), Deployments().Strategy
	got := s.Warnings(ctx, newDeployment(func(d *appsv1.Deployment) { d.Name = "a.b" }), nil)
	want := "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]"
	if !slices.Equal(got, []string{want}) {
		t.Errorf("warnings %q", got)
	}
	if got := s.Warnings(ctx, newDeployment(func(d *appsv1.Deployment) { d.Name = "a.b" }), newDeployment(nil)); got != nil {
		t.Errorf("warnings of an update: %q", got)
	}
}

func TestScale(t *testing.T) {
	ctx := context.Background()
	meta := func(o *metav1.ObjectMeta) { o.UID, o.ResourceVersion, o.Labels = "u", "5", map[string]string{"a": "b"} }
	for name, obj := range map[string]resource.Object{
		"deployments": newDeployment(func(d *appsv1.Deployment) { meta(&d.ObjectMeta); d.Name, d.Status.Replicas = "x", 2 }),
		"replicasets": newReplicaSet(func(r *appsv1.ReplicaSet) { meta(&r.ObjectMeta); r.Name, r.Status.Replicas = "x", 2 }),
	} {
		sub, _ := definition(t, name).Subresource("scale")
		p := sub.Projection
		got, err := p.Get(obj)
		if err != nil {
			t.Fatal(err)
		}
		want := &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "n", UID: "u", ResourceVersion: "5"},
			Spec:       autoscalingv1.ScaleSpec{Replicas: 1},
			Status:     autoscalingv1.ScaleStatus{Replicas: 2, Selector: "app=a"},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: scale %+v, want %+v", name, got, want)
		}
		if cells, err := p.Cells(got); err != nil || !reflect.DeepEqual(cells, []any{"x", int64(1), int64(2), resource.Since{}}) {
			t.Errorf("%s: cells %v, %v", name, cells, err)
		}
		s := sub.New().(*autoscalingv1.Scale)
		s.Spec.Replicas = 7
		if err := p.Set(ctx, obj, s); err != nil {
			t.Fatal(err)
		}
		if again, _ := p.Get(obj); again.(*autoscalingv1.Scale).Spec.Replicas != 7 {
			t.Errorf("%s: scaled to %+v", name, again)
		}
		s.Spec.Replicas = -1
		wantErrors(t, p.Validate(ctx, s), "spec.replicas: Invalid value: -1: must be greater than or equal to 0")
	}
}

func TestCells(t *testing.T) {
	for _, test := range []struct {
		def  resource.Definition
		obj  resource.Object
		want string
	}{
		{Deployments(), newDeployment(func(d *appsv1.Deployment) {
			d.Status = appsv1.DeploymentStatus{ReadyReplicas: 1, UpdatedReplicas: 2, AvailableReplicas: 3}
		}), `["d","1/1",2,3,"<unknown>","c,d","i,j:v1","app=a"]`},
		{Deployments(), newDeployment(func(d *appsv1.Deployment) {
			d.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "?"}}}
		}), `["d","0/1",0,0,"<unknown>","c,d","i,j:v1","<invalid>"]`},
		{ReplicaSets(), newReplicaSet(func(r *appsv1.ReplicaSet) {
			r.Status = appsv1.ReplicaSetStatus{Replicas: 3, ReadyReplicas: 2}
		}), `["r",1,3,2,"<unknown>","c,d","i,j:v1","app=a"]`},
	} {
		cells, err := test.def.Cells(test.obj)
		if err != nil || len(cells) != len(test.def.Columns) {
			t.Errorf("%d cells for %d columns, %v", len(cells), len(test.def.Columns), err)
		}
		var got strings.Builder
		enc := json.NewEncoder(&got)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(cells); err != nil || strings.TrimSpace(got.String()) != test.want {
			t.Errorf("cells %s, want %s", got.String(), test.want)
		}
	}
	for name, want := range map[string]string{
		"deployments": "Name Ready Up-to-date Available Age Containers Images Selector",
		"replicasets": "Name Desired Current Ready Age Containers Images Selector",
	} {
		var names []string
		for _, c := range definition(t, name).Columns {
			names = append(names, c.Name)
			if c.Description == "" {
				t.Errorf("%s: column %s has no description", name, c.Name)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("columns %s, want %s", got, want)
		}
	}
}

// TestRevisionsEmbedJSON wants data that only protobuf can carry to be recognized.
func TestRevisionsEmbedJSON(t *testing.T) {
	check := ControllerRevisions().Versions[0].Check
	for raw, want := range map[string]error{`{}`: nil, `1`: nil, ``: resource.ErrNotJSON, `{`: resource.ErrNotJSON, `1z`: resource.ErrNotJSON} {
		if got := check(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(raw)}}); !errors.Is(got, want) {
			t.Errorf("data %q: got %v, want %v", raw, got, want)
		}
	}
	if got := check(&appsv1.ControllerRevision{}); got != nil {
		t.Errorf("no data: got %v, want nil", got)
	}
}
