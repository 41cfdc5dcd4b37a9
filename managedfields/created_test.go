package managedfields

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/internal/randomtest"
)

// TestCreatedLikeWalk: the set of a new object is what walk finds, for random objects.
func TestCreatedLikeWalk(t *testing.T) {
	scopes := []Scope{{}, {Except: []string{"status"}}, {Except: []string{"spec", "metadata.labels", "data"}}}
	for _, kind := range []schema.GroupVersionKind{podKind, deploymentKind, configMapKind,
		{Version: "v1", Kind: "Node"}, {Version: "v1", Kind: "Service"}, {Version: "v1", Kind: "Secret"},
		{Group: "batch", Version: "v1", Kind: "CronJob"}, {Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
		{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}} {
		t.Run(kind.Kind, func(t *testing.T) {
			known, runs := 0, 0
			for seed := range randomtest.Seeds(t, scale(100)) {
				opts := goOptions(kind)
				opts.Scope = scopes[seed%uint64(len(scopes))]
				m, err := New(opts)
				if err != nil {
					t.Fatal(err)
				}
				obj := opts.New()
				filler{randomtest.Rand(seed, 7)}.fill(reflect.ValueOf(obj).Elem(), 1+int(seed%9))
				obj.GetObjectKind().SetGroupVersionKind(kind)
				runs++
				set := m.createdSet(obj)
				if set == nil {
					continue
				}
				known++
				changes, err := (&comparisons{m: m, new: obj}).in(m.version)
				if err != nil {
					t.Fatalf("seed %d: walk says %v, but it was not asked\n%s", seed, err, text(obj))
				}
				if want := string(changes.members().minus(m.strip, member).encode(nil)); set.raw != want {
					t.Fatalf("seed %d: got\n%s\nwant\n%s\nof %s", seed, set.raw, want, text(obj))
				}
			}
			if known*2 < runs {
				t.Errorf("%d of %d sets are left to walk", runs-known, runs)
			}
		})
	}
}
