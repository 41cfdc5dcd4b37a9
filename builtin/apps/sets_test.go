package apps

import (
	"context"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	appsv1beta1 "k8s.io/api/apps/v1beta1"
	corev1 "k8s.io/api/core/v1"
	extensionsv1beta1 "k8s.io/api/extensions/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	kelson "github.com/apikeel/kelson/resource"
)

// newStatefulSet is a valid one, with defaults.
func newStatefulSet(change func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "n"},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}, Template: template(), ServiceName: "svc",
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}},
		},
	}
	s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	defaultStatefulSet(s)
	if change != nil {
		change(s)
	}
	return s
}

// newDaemonSet is a valid one, with defaults.
func newDaemonSet(change func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "n"},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}, Template: template()},
	}
	defaultDaemonSet(d)
	if change != nil {
		change(d)
	}
	return d
}

func TestStatefulSet(t *testing.T) {
	ctx, s := context.Background(), StatefulSets().Strategy
	for name, test := range map[string]struct {
		change func(*appsv1.StatefulSet)
		want   []string
	}{
		"valid": {nil, nil},
		// The controller overwrites these.
		"host name": {func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Hostname = "Bad!" }, nil},
		"mount":     {func(s *appsv1.StatefulSet) { s.Spec.VolumeClaimTemplates = nil }, []string{`spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data"`}},
		"recreate": {func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: recreate} }, []string{
			`spec.updateStrategy: Invalid value: {"Type":"Recreate","RollingUpdate":null}: must be 'RollingUpdate' or 'OnDelete'`,
		}},
		"on delete": {func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType }, []string{
			`spec.updateStrategy.rollingUpdate: Invalid value: {"Partition":0,"MaxUnavailable":1}: only allowed for updateStrategy 'RollingUpdate'`,
		}},
		"nobody": {func(s *appsv1.StatefulSet) { *s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = intstr.FromInt32(0) }, []string{
			"spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0",
		}},
		"ordinals": {func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: -1} }, []string{
			"spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0",
		}},
	} {
		t.Run(name, func(t *testing.T) { wantErrors(t, s.Validate(ctx, newStatefulSet(test.change)), test.want...) })
	}
	// A set with the strategy keeps it, and one that breaks today's rules can
	// still be changed.
	had := newStatefulSet(func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy, s.Spec.Template.Spec.Containers[1].Name = appsv1.StatefulSetUpdateStrategy{Type: recreate}, "Bad!"
	})
	changed := had.DeepCopy()
	*changed.Spec.Replicas = 7
	wantErrors(t, s.ValidateUpdate(ctx, changed, had))
	wantErrors(t, s.ValidateUpdate(ctx, newStatefulSet(func(s *appsv1.StatefulSet) { s.Spec.ServiceName = "other" }), newStatefulSet(nil)),
		`spec.serviceName: Invalid value: "other": field is immutable`)
	got := s.Warnings(ctx, newStatefulSet(func(s *appsv1.StatefulSet) {
		*s.Spec.RevisionHistoryLimit = -1
		s.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1500m")
	}), nil)
	if want := []string{
		`spec.volumeClaimTemplates[0].resources.requests[storage]: fractional byte value "1500m" is invalid, must be an integer`,
		"spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended",
	}; !slices.Equal(got, want) {
		t.Errorf("warnings: %q", got)
	}
}

func TestDaemonSet(t *testing.T) {
	ctx, s := context.Background(), DaemonSets().Strategy
	number := intstr.FromInt32
	rolling := func(unavailable, surge intstr.IntOrString) func(*appsv1.DaemonSet) {
		return func(d *appsv1.DaemonSet) {
			d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &unavailable, MaxSurge: &surge}
		}
	}
	for name, test := range map[string]struct {
		change func(*appsv1.DaemonSet)
		want   []string
	}{
		"valid": {nil, nil},
		"both": {rolling(number(1), number(1)), []string{
			"spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
		}},
		"neither": {rolling(number(0), intstr.FromString("0%")), []string{
			"spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0",
		}},
		"empty selector": {func(d *appsv1.DaemonSet) { d.Spec.Selector = &metav1.LabelSelector{} }, []string{
			"spec.selector: Invalid value: {}: empty selector is invalid for daemonset",
		}},
	} {
		t.Run(name, func(t *testing.T) { wantErrors(t, s.Validate(ctx, newDaemonSet(test.change)), test.want...) })
	}

	old := newDaemonSet(nil)
	s.PrepareCreate(ctx, old)
	same, other := newDaemonSet(nil), newDaemonSet(func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = "x" })
	setTemplateGeneration(same, 9)
	s.PrepareUpdate(ctx, same, old)
	s.PrepareUpdate(ctx, other, old)
	if a, b, c := templateGeneration(old), templateGeneration(same), templateGeneration(other); a != 1 || b != 1 || c != 2 {
		t.Errorf("generations of the template: %d, %d, %d", a, b, c)
	}
	check := DaemonSets().Versions[0].Check
	if err := check(newDaemonSet(func(d *appsv1.DaemonSet) { d.Annotations[appsv1.DeprecatedTemplateGeneration] = "x" })); err == nil {
		t.Error("a generation that is no number")
	}
}

func TestControllerRevision(t *testing.T) {
	s := ControllerRevisions().Strategy
	for data, want := range map[string]string{
		`{"a":1}`: "", "null": "data: Required value: data is mandatory", "[]": "data: Required value: data must be a valid JSON object",
		"{": `data: Invalid value: "<value omitted>": error parsing data: unexpected end of JSON input`,
	} {
		r := &appsv1.ControllerRevision{}
		r.Data.Raw = []byte(data)
		var wants []string
		if want != "" {
			wants = append(wants, want)
		}
		wantErrors(t, s.Validate(context.Background(), r), wants...)
	}
}

// version finds one by where it is served.
func version(t *testing.T, d kelson.Definition, group, name string) kelson.Version {
	t.Helper()
	for _, v := range d.Versions {
		if v.Group == group && v.Name == name {
			return v
		}
	}
	t.Fatalf("%s has no %s/%s", d.Resource, group, name)
	return kelson.Version{}
}

func TestOldVersions(t *testing.T) {
	hub := func(v kelson.Version, obj kelson.Object) kelson.Object {
		v.Default(obj)
		out, err := v.ToHub(obj)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	v := version(t, Deployments(), "extensions", "v1beta1")
	d := hub(v, &extensionsv1beta1.Deployment{Spec: extensionsv1beta1.DeploymentSpec{
		Template: template(), RollbackTo: &extensionsv1beta1.RollbackConfig{Revision: 3},
	}}).(*appsv1.Deployment)
	one := intstr.FromInt32(1)
	if r := d.Spec.Strategy.RollingUpdate; *r.MaxSurge != one || *r.MaxUnavailable != one || *d.Spec.RevisionHistoryLimit != 1<<31-1 ||
		*d.Spec.ProgressDeadlineSeconds != 1<<31-1 || d.Spec.Selector.MatchLabels["app"] != "a" || d.Labels["app"] != "a" ||
		d.Annotations[appsv1.DeprecatedRollbackTo] != "3" {
		t.Errorf("extensions/v1beta1: %+v", d)
	}
	v = version(t, Deployments(), "apps", "v1beta1")
	d = hub(v, &appsv1beta1.Deployment{Spec: appsv1beta1.DeploymentSpec{Template: template()}}).(*appsv1.Deployment)
	if *d.Spec.RevisionHistoryLimit != 2 || *d.Spec.ProgressDeadlineSeconds != 600 {
		t.Errorf("apps/v1beta1: %+v", d.Spec)
	}
	v = version(t, StatefulSets(), "apps", "v1beta1")
	s := hub(v, &appsv1beta1.StatefulSet{Spec: appsv1beta1.StatefulSetSpec{Template: template()}}).(*appsv1.StatefulSet)
	if s.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType || s.Spec.UpdateStrategy.RollingUpdate != nil {
		t.Errorf("apps/v1beta1: %+v", s.Spec.UpdateStrategy)
	}
	v = version(t, DaemonSets(), "extensions", "v1beta1")
	ds := hub(v, &extensionsv1beta1.DaemonSet{Spec: extensionsv1beta1.DaemonSetSpec{Template: template(), TemplateGeneration: 5}}).(*appsv1.DaemonSet)
	back, err := v.FromHub(ds)
	if old := back.(*extensionsv1beta1.DaemonSet); err != nil || templateGeneration(ds) != 5 || old.Spec.TemplateGeneration != 5 || len(old.Annotations) != 0 {
		t.Errorf("extensions/v1beta1: %+v, %v", old, err)
	}
}
