package controller_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
)

// model is what should become of objects that own each other, in the simplest
// words: rules that are applied until none has anything to say.
type model struct {
	objs map[types.UID]*modelled
}

type modelled struct {
	uid                        types.UID
	kind                       schema.GroupVersionResource
	name                       string
	owners                     []metav1.OwnerReference
	held                       bool // by a finalizer of somebody else
	deleting, waiting, letting bool // waiting for dependents to go, or to be let go
}

const hold = "example.com/hold"

func (m *model) dependents(uid types.UID) (all []*modelled) {
	for _, o := range m.objs {
		if o.to(uid) != nil {
			all = append(all, o)
		}
	}
	return all
}

func (o *modelled) to(uid types.UID) *metav1.OwnerReference {
	for i := range o.owners {
		if o.owners[i].UID == uid {
			return &o.owners[i]
		}
	}
	return nil
}

func (o *modelled) drop(uid types.UID) {
	o.owners = slices.DeleteFunc(o.owners, func(r metav1.OwnerReference) bool { return r.UID == uid })
}

func (o *modelled) delete(policy metav1.DeletionPropagation) {
	o.deleting = true
	o.waiting = policy == metav1.DeletePropagationForeground
	o.letting = policy == metav1.DeletePropagationOrphan
}

// settle applies the rules.
func (m *model) settle() {
	for changed := true; changed; {
		changed = false
		for _, o := range m.objs {
			changed = m.rule(o) || changed
		}
	}
}

// rule does to an object what has to be done.
func (m *model) rule(o *modelled) bool {
	switch {
	case o.letting:
		for _, d := range m.dependents(o.uid) {
			d.drop(o.uid)
		}
		o.letting = false
		return true
	case o.waiting:
		loose := m.dependents(o.uid)
		for _, d := range loose {
			if *d.to(o.uid).BlockOwnerDeletion {
				return false
			}
		}
		for _, d := range loose {
			if !d.deleting {
				m.rule(d)
			}
		}
		o.waiting = false
		return true
	case o.deleting && !o.held:
		delete(m.objs, o.uid)
		return true
	case o.deleting || len(o.owners) == 0:
		return false
	}
	solid, waits := 0, false
	var useless []types.UID
	for _, r := range o.owners {
		switch owner := m.objs[r.UID]; {
		case owner == nil:
			useless = append(useless, r.UID)
		case owner.deleting && owner.waiting:
			useless, waits = append(useless, r.UID), true
		default:
			solid++
		}
	}
	switch {
	case len(useless) == 0:
		return false
	case solid > 0:
		for _, uid := range useless {
			o.drop(uid)
		}
	case waits && len(m.dependents(o.uid)) > 0:
		o.delete(metav1.DeletePropagationForeground)
	default:
		o.delete(metav1.DeletePropagationBackground)
	}
	return true
}

// describe is all there is to be seen of an object.
func (o *modelled) describe() string {
	var refs, finalizers []string
	for _, r := range o.owners {
		refs = append(refs, fmt.Sprint(r.UID, *r.BlockOwnerDeletion))
	}
	for name, has := range map[string]bool{hold: o.held, metav1.FinalizerDeleteDependents: o.waiting, metav1.FinalizerOrphanDependents: o.letting} {
		if has {
			finalizers = append(finalizers, name)
		}
	}
	slices.Sort(refs)
	slices.Sort(finalizers)
	return fmt.Sprintf("%s %s deleting:%v %v %v", o.kind.Resource, o.name, o.deleting, refs, finalizers)
}

// read makes of an object of the API what the model knows of one.
func read(kind schema.GroupVersionResource, u *unstructured.Unstructured) *modelled {
	f := u.GetFinalizers()
	return &modelled{
		uid: u.GetUID(), kind: kind, name: u.GetName(), owners: u.GetOwnerReferences(), deleting: u.GetDeletionTimestamp() != nil,
		held: slices.Contains(f, hold), waiting: slices.Contains(f, metav1.FinalizerDeleteDependents), letting: slices.Contains(f, metav1.FinalizerOrphanDependents),
	}
}

// agrees waits until the server has what the model has.
func (c *cluster) agrees(m *model, history []string) {
	c.Helper()
	for _, kind := range modelKinds() {
		want := map[string]string{}
		for _, o := range m.objs {
			if o.kind == kind {
				want[ns+"/"+o.name] = o.describe()
			}
		}
		var got map[string]string
		defer func() {
			if c.Failed() && !maps.Equal(got, want) {
				c.Logf("after\n%s\nthere is\n%s\nand should be\n%s", strings.Join(history, "\n"), lines(got), lines(want))
			}
		}()
		c.until(kind, ns, func(objs map[string]*unstructured.Unstructured) bool {
			got = map[string]string{}
			for key, u := range objs {
				if u.GetName() != "kube-root-ca.crt" {
					got[key] = read(kind, u).describe()
				}
			}
			return maps.Equal(got, want)
		})
	}
}

func lines(m map[string]string) string { return strings.Join(slices.Sorted(maps.Values(m)), "\n") }

func modelKinds() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{configMaps, secrets}
}

// Random trees of owners in which random objects are deleted in random ways, with
// servers that are killed in the middle of it and start again, end up as the
// rules have it.
func TestModel(t *testing.T) {
	seeds, steps := testsize.Pick(1, 2, 20), testsize.Pick(40, 60, 300)
	for seed := range randomtest.Seeds(t, seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, seed, steps) })
	}
}

func runModel(t *testing.T, seed uint64, steps int) {
	random := randomtest.Rand(seed, 1)
	// What an object that is held has lost of several owners depends on which of
	// them was looked at first. So there are either several owners or holds.
	holds, owners := seed%2 == 1, 3
	if holds {
		owners = 1
	}
	c := startMortal(t, t.TempDir())
	m := &model{objs: map[types.UID]*modelled{}}
	var history []string
	// pick returns an object, nil if there is none such.
	pick := func(like func(*modelled) bool) *modelled {
		var all []*modelled
		for _, uid := range slices.Sorted(maps.Keys(m.objs)) {
			if like(m.objs[uid]) {
				all = append(all, m.objs[uid])
			}
		}
		slices.SortFunc(all, func(a, b *modelled) int { return strings.Compare(a.name, b.name) })
		if len(all) == 0 {
			return nil
		}
		return all[random.IntN(len(all))]
	}
	set := func(o *modelled, patch string) {
		t.Helper()
		must(c.dynamic.Resource(o.kind).Namespace(ns).Patch(t.Context(), o.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	}
	release := func(o *modelled) {
		if o == nil {
			return
		}
		history = append(history, "release "+o.name)
		// A test: others may change the finalizers at the same time.
		live := must(c.dynamic.Resource(o.kind).Namespace(ns).Get(t.Context(), o.name, metav1.GetOptions{}))(t)
		at := slices.Index(live.GetFinalizers(), hold)
		must(c.dynamic.Resource(o.kind).Namespace(ns).Patch(t.Context(), o.name, types.JSONPatchType, fmt.Appendf(nil,
			`[{"op":"test","path":"/metadata/finalizers/%d","value":%q},{"op":"remove","path":"/metadata/finalizers/%d"}]`, at, hold, at), metav1.PatchOptions{}))(t)
		o.held = false
	}
	policies := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan}
	for step := range steps {
		switch dice := random.IntN(100); {
		case dice < 50 || len(m.objs) == 0:
			o := &modelled{kind: modelKinds()[random.IntN(2)], name: fmt.Sprint("o-", step), held: holds && random.IntN(4) == 0}
			for range random.IntN(owners + 1) {
				block := random.IntN(2) == 0
				ref := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "absent", UID: types.UID(fmt.Sprint("absent-", random.IntN(100))), BlockOwnerDeletion: &block}
				if owner := pick(func(*modelled) bool { return true }); owner != nil && random.IntN(12) > 0 {
					ref.Name, ref.UID = owner.name, owner.uid
					if owner.kind == secrets {
						ref.Kind = "Secret"
					}
				}
				if o.to(ref.UID) == nil {
					o.owners = append(o.owners, ref)
				}
			}
			meta := metav1.ObjectMeta{Name: o.name, OwnerReferences: o.owners}
			if o.held {
				meta.Finalizers = []string{hold}
			}
			if o.kind == secrets {
				o.uid = must(c.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{}))(t).UID
			} else {
				o.uid = must(c.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{}))(t).UID
			}
			m.objs[o.uid] = o
			history = append(history, fmt.Sprintf("create %s %s", o.describe(), o.uid))
		case dice < 80:
			o := pick(func(o *modelled) bool { return !o.deleting })
			if o == nil {
				continue
			}
			policy := policies[random.IntN(len(policies))]
			if err := c.dynamic.Resource(o.kind).Namespace(ns).Delete(t.Context(), o.name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			o.delete(policy)
			history = append(history, fmt.Sprintf("delete %s %s", o.name, policy))
		case dice < 90:
			release(pick(func(o *modelled) bool { return o.held }))
		case dice < 95:
			if o := pick(func(o *modelled) bool { return len(o.owners) > 0 }); o != nil {
				set(o, `{"metadata":{"ownerReferences":null}}`)
				o.owners = nil
				history = append(history, "free "+o.name)
			}
		default:
			c.crash(t)
			history = append(history, "crash")
			continue
		}
		m.settle()
		if random.IntN(10) == 0 {
			c.crash(t) // in the middle of the work, since nobody has waited
			history = append(history, "crash")
		}
		c.agrees(m, history)
	}
	for o := pick(func(o *modelled) bool { return o.held }); o != nil; o = pick(func(o *modelled) bool { return o.held }) {
		release(o)
		m.settle()
		c.agrees(m, history)
	}
	t.Logf("%d objects are left", len(m.objs))
}
