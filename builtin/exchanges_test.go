package builtin_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/internal/recorded"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// TestExchanges replays writes that kube-apiserver has answered, on definitions
// alone: what the verbs do to every kind is done here in its simplest form. It
// leaves out answers that do not come from a definition, such as those to
// bodies that cannot be decoded.
func TestExchanges(t *testing.T) {
	for file, cidrs := range map[string][]string{
		"exchanges":  {"10.0.0.0/16"},
		"dual-stack": {"10.0.0.0/16", "fd00:1::/108"},
	} {
		var cfg core.MemoryAllocatorConfig
		for _, cidr := range cidrs {
			cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.MustParsePrefix(cidr))
		}
		w := newWorld()
		for _, line := range recorded.Read[json.RawMessage](t, "testdata/"+file+".jsonl.gz") {
			var c exchange
			text := expand(string(line))
			if err := json.Unmarshal([]byte(text), &c); err != nil {
				t.Fatal(err)
			}
			t.Run(c.ID, func(t *testing.T) {
				clear(w.objects)
				w.Allocator = core.NewMemoryAllocator(cfg)
				for i := 0; i < len(c.Steps); i++ {
					if !w.step(t, c.Steps, i) {
						break
					}
					// An address at random may be the one that a later step asks for.
					if i == 0 && strings.Contains(text, givenAddress(c.Steps[0])) {
						clear(w.objects)
						w.Allocator, i = core.NewMemoryAllocator(cfg), -1
					}
				}
			})
		}
	}
}

// givenAddress returns the address that a service got which did not ask for one, in quotes.
func givenAddress(s *step) string {
	answer, _ := s.answer.(map[string]any)
	spec, _ := answer["spec"].(map[string]any)
	if ip, ok := spec["clusterIP"].(string); ok && ip != "" && ip != corev1.ClusterIPNone && !strings.Contains(string(s.Body), strconv.Quote(ip)) {
		return strconv.Quote(ip)
	}
	return "\x00" // which no text contains
}

type exchange struct {
	ID    string `json:"id"`
	Steps []*step
}

type step struct {
	Method, Path string
	Headers      map[string]string
	Body         json.RawMessage
	BodyFrom     *int
	Brief        bool
	Status       int
	ResponseBody any
	Warnings     []string

	answer any
}

// world is a server with no more than a map. Each case gets another allocator.
type world struct {
	core.Allocator
	definitions map[schema.GroupResource]resource.Definition
	objects     map[string]resource.Object
	revision    int
}

func newWorld() *world {
	w := &world{definitions: map[schema.GroupResource]resource.Definition{}, objects: map[string]resource.Object{}}
	for _, g := range builtin.Groups(builtin.Config{Core: core.Config{Allocator: w}}) {
		for _, d := range g.Resources {
			if d.Kind == "Node" {
				prepare := d.Strategy.PrepareCreate
				d.Strategy.PrepareCreate = func(ctx context.Context, obj resource.Object) {
					prepare(ctx, obj)
					taintUnready(obj.(*corev1.Node))
				}
			}
			for _, v := range d.Versions {
				w.definitions[schema.GroupResource{Group: cmp.Or(v.Group, d.Group), Resource: d.Resource}] = d
			}
		}
	}
	return w
}

// taintUnready does what the admission plugin TaintNodesByCondition does, which was on
// when the exchanges were recorded.
func taintUnready(n *corev1.Node) {
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		n.Spec.Taints = append(n.Spec.Taints, taint)
	}
}

// step makes a request, and reports whether the case can go on.
func (w *world) step(t *testing.T, steps []*step, i int) bool {
	s := steps[i]
	if !ofDefinition(s) {
		return s.Method == "GET"
	}
	u, err := url.Parse(fill(t, s.Path, steps))
	if err != nil {
		t.Fatal(err)
	}
	info := parse(u.Path)
	d, ok := w.definitions[schema.GroupResource{Group: info.Group, Resource: info.Resource}]
	if !ok || d.Kind == "" {
		return false
	}
	v := d.Versions[slices.IndexFunc(d.Versions, func(v resource.Version) bool { return cmp.Or(v.Group, d.Group) == info.Group })]
	req := &request.Request{Info: info, Warned: &request.Warnings{}, DryRun: u.Query().Has("dryRun")}
	ctx := request.With(context.Background(), req)

	if s.Method == "GET" {
		w.table(t, d, info, s)
		return true
	}
	old := w.objects[info.Namespace+"/"+info.Name]
	var base []byte
	if old != nil {
		base = encode(t, v, old, info)
	}
	body := w.body(t, s, steps, base, v)
	obj := v.New()
	if err := json.Unmarshal(body, obj); err != nil {
		t.Fatalf("step %d: %v", i, err)
	}
	if v.Default != nil {
		v.Default(obj)
	}
	if v.ToHub != nil {
		if obj, err = v.ToHub(obj); err != nil {
			t.Fatal(err)
		}
	}
	err = w.write(ctx, d, info, obj, old)
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		st := status.Status()
		st.Kind, st.APIVersion = "Status", "v1"
		s.answer = generic(t, st)
		if int(st.Code) != s.Status {
			t.Errorf("step %d: %d %s, want %d", i, st.Code, st.Message, s.Status)
			return false
		}
	case err != nil:
		if s.Status != 500 {
			t.Errorf("step %d: %v, want %d", i, err, s.Status)
		}
		return false
	default:
		var warnings []string
		for _, text := range req.Warnings() {
			warnings = append(warnings, fmt.Sprintf("299 - %q", text))
		}
		if !slices.Equal(warnings, s.Warnings) && !s.Brief {
			t.Errorf("step %d: warnings %q, want %q", i, warnings, s.Warnings)
		}
		var out any
		if err := json.Unmarshal(encode(t, v, obj, info), &out); err != nil {
			t.Fatal(err)
		}
		s.answer = out
		if s.Status >= 300 {
			t.Errorf("step %d: done, want %d %v", i, s.Status, s.ResponseBody)
			return false
		}
	}
	if s.Brief || s.ResponseBody == nil {
		return true
	}
	for _, diff := range compare("", prune(s.ResponseBody), prune(s.answer)) {
		t.Errorf("step %d: %s", i, diff)
	}
	return true
}

// ofDefinition tells whether an answer comes from a definition.
func ofDefinition(s *step) bool {
	answer, _ := s.ResponseBody.(map[string]any)
	details, _ := answer["details"].(map[string]any)
	switch {
	case s.Method == "GET":
		return answer["kind"] == "Table"
	case s.Method == "DELETE", s.Method == "PATCH" && !strings.Contains(s.Headers["Content-Type"], "merge-patch"):
		return false
	case s.Status < 300:
		return true
	case s.Status == 500:
		return strings.Contains(fmt.Sprint(answer["message"]), "duplicate nodePort")
	case s.Status != 422, details["group"] == metav1.GroupName, details["kind"] == nil:
		return false
	}
	// Admission judges the labels of pod security.
	return !strings.Contains(fmt.Sprint(answer["message"]), "pod-security.kubernetes.io")
}

// table compares the cells of the objects that there are.
func (w *world) table(t *testing.T, d resource.Definition, info request.Info, s *step) {
	var rows []any
	for _, key := range slices.Sorted(maps.Keys(w.objects)) {
		if info.Name != "" && key != info.Namespace+"/"+info.Name {
			continue
		}
		cells, err := d.Cells(w.objects[key])
		if err != nil {
			t.Fatal(err)
		}
		if len(cells) != len(d.Columns) {
			t.Errorf("%d cells in %d columns", len(cells), len(d.Columns))
		}
		rows = append(rows, generic(t, cells))
	}
	var want []any
	recorded, _ := s.ResponseBody.(map[string]any)["rows"].([]any)
	for _, row := range recorded {
		want = append(want, row.(map[string]any)["cells"])
	}
	for _, diff := range compare("cells", want, rows) {
		t.Error(diff)
	}
}

// write is a create or an update.
func (w *world) write(ctx context.Context, d resource.Definition, info request.Info, obj, old resource.Object) error {
	strategy := d.Strategy
	for _, sub := range d.Subresources {
		if sub.Name == info.Subresource {
			strategy = *sub.Part
		}
	}
	obj.SetNamespace(info.Namespace)
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		obj.SetName(obj.GetGenerateName() + "xxxxx")
	}
	meta, namer := field.NewPath("metadata"), strategy.ValidateName
	if namer == nil {
		namer = apivalidation.NameIsDNSSubdomain
	}
	if old != nil {
		obj.SetUID(old.GetUID())
		obj.SetCreationTimestamp(old.GetCreationTimestamp())
		old = old.DeepCopyObject().(resource.Object)
	} else {
		obj.SetDeletionTimestamp(nil)
		obj.SetDeletionGracePeriodSeconds(nil)
		obj.SetUID("u")
		obj.SetCreationTimestamp(metav1.Now())
	}
	obj.SetManagedFields(nil)
	if old == nil && strategy.PrepareCreate != nil {
		strategy.PrepareCreate(ctx, obj)
	} else if old != nil {
		obj.SetResourceVersion(old.GetResourceVersion())
		if strategy.PrepareUpdate != nil {
			strategy.PrepareUpdate(ctx, obj, old)
		}
	}
	end := func(resource.Outcome) {}
	if strategy.Begin != nil {
		var err error
		if end, err = strategy.Begin(ctx, obj, old); err != nil {
			return err
		}
	}
	var errs field.ErrorList
	switch {
	case old == nil && strategy.JudgesMetadata:
		errs = strategy.Validate(ctx, obj)
	case old == nil:
		errs = append(apivalidation.ValidateObjectMetaAccessor(obj, d.Namespaced, namer, meta), strategy.Validate(ctx, obj)...)
	case strategy.ValidateUpdate != nil:
		errs = append(apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, meta), strategy.ValidateUpdate(ctx, obj, old)...)
	default:
		errs = append(apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, meta), strategy.Validate(ctx, obj)...)
	}
	if errs = resource.DeclaredLast(errs); len(errs) > 0 {
		end(resource.NotWritten)
		return apierrors.NewInvalid(schema.GroupKind{Group: d.Group, Kind: d.Kind}, obj.GetName(), errs)
	}
	if strategy.Warnings != nil {
		for _, text := range strategy.Warnings(ctx, obj, old) {
			request.From(ctx).Warn(text)
		}
	}
	dry := request.From(ctx).DryRun
	end(map[bool]resource.Outcome{true: resource.NotWritten, false: resource.Written}[dry])
	if !dry {
		w.revision++
		obj.SetResourceVersion(strconv.Itoa(w.revision))
		w.objects[info.Namespace+"/"+obj.GetName()] = obj
	}
	return nil
}

// body makes the body of a request: its own, that of another with changes, or a
// patched object.
func (w *world) body(t *testing.T, s *step, steps []*step, base []byte, v resource.Version) []byte {
	text := string(s.Body)
	if strings.HasPrefix(text, `"`) {
		if err := json.Unmarshal(s.Body, &text); err != nil {
			t.Fatal(err)
		}
	}
	text = fill(t, text, steps)
	if s.Method == "PATCH" {
		if strings.HasPrefix(s.Headers["Content-Type"], "application/merge-patch") {
			var object, patch any
			if json.Unmarshal(base, &object) != nil || json.Unmarshal([]byte(text), &patch) != nil {
				t.Fatal("bad patch")
			}
			out, _ := json.Marshal(merge(object, patch))
			return out
		}
		out, err := strategicpatch.StrategicMergePatch(base, []byte(text), v.New())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if s.BodyFrom == nil {
		return []byte(text)
	}
	var changes map[string]any
	if err := json.Unmarshal([]byte(text), &changes); err != nil {
		t.Fatal(err)
	}
	object := generic(t, steps[*s.BodyFrom].answer)
	for pointer, value := range changes {
		object = set(object, strings.Split(pointer, "/")[1:], value)
	}
	out, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
