// Package quota keeps the objects of a namespace within its resource quotas.
//
// # Never too much
//
// A write that uses something is charged before it is committed: the use is
// added to the status of every quota that is about it, each with a guarded write
// that is refused if somebody else was faster, and is then tried on what they
// have made of it. So the sum of what is committed is never more than what is
// charged, and that never more than what is allowed, however many servers write
// at once.
//
// Requests that wait for the same namespace are charged together: one of them
// does it for all (charge.go).
//
// A write that fails after it was charged is given back, if nobody else has
// changed the quota since: somebody who counts anew, as the controller of
// quotas does, may have left it out already. What is not given back is corrected
// when the controller counts.
package quota

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/lru"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
)

// Objects is where quotas are.
type Objects interface {
	admission.Objects
	// UpdateStatus changes the status of an object, in the name of the server,
	// and returns the result. change may run several times, each time on a fresh
	// copy; its error ends the update.
	UpdateStatus(ctx context.Context, group, resource, namespace, name string, change func(obj resource.Object) error) (resource.Object, error)
}

// Limited is a resource that may only be used where a quota allows it.
type Limited struct {
	APIGroup string `json:"apiGroup"`
	Resource string `json:"resource"`
	// MatchContains are parts of the names of what is limited.
	MatchContains []string `json:"matchContains"`
	// MatchScopes are the scopes in which the resource is limited.
	MatchScopes []corev1.ScopedResourceSelectorRequirement `json:"matchScopes"`
}

// Load reads the configuration of the plugin: what is limited by default.
func Load(data []byte) ([]Limited, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var file struct {
		APIVersion       string    `json:"apiVersion"`
		Kind             string    `json:"kind"`
		LimitedResources []Limited `json:"limitedResources"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return nil, err
	}
	switch file.APIVersion + " " + file.Kind {
	case "apiserver.config.k8s.io/v1 ResourceQuotaConfiguration",
		"resourcequota.admission.k8s.io/v1beta1 Configuration", "resourcequota.admission.k8s.io/v1alpha1 Configuration":
	default:
		return nil, fmt.Errorf("no kind %q is registered for version %q: it is ResourceQuotaConfiguration of apiserver.config.k8s.io/v1", file.Kind, file.APIVersion)
	}
	var errs field.ErrorList
	for i := range file.LimitedResources {
		if file.LimitedResources[i].Resource == "" {
			errs = append(errs, field.Required(field.NewPath("limitedResources").Index(i).Child("resource"), ""))
		}
	}
	return file.LimitedResources, errs.ToAggregate()
}

// maxNamespaces bounds the namespaces whose quotas are remembered.
const maxNamespaces = 1024

// Plugin is the admission plugin ResourceQuota.
type Plugin struct {
	objects Objects
	limited []Limited
	log     *slog.Logger

	mu     sync.Mutex
	queues *lru.Cache // namespace → *queue
}

var _ admission.Validator = (*Plugin)(nil)

// New returns the plugin.
func New(objects Objects, limited []Limited, log *slog.Logger) *Plugin {
	return &Plugin{objects: objects, limited: limited, log: log, queues: lru.New(maxNamespaces)}
}

// Name implements admission.Plugin.
func (p *Plugin) Name() string { return "ResourceQuota" }

// Handles implements admission.Plugin.
func (p *Plugin) Handles(t admission.Target) bool {
	e := For(context.Background(), p.objects, t.Group, t.Resource)
	return e != nil && e.handles(t)
}

// Validate implements admission.Validator.
func (p *Plugin) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Namespace == "" {
		return nil
	}
	quotas, err := p.quotas(ctx, a.Namespace)
	if err != nil {
		return fmt.Errorf("error resolving quota: %w", err)
	}
	if len(quotas) == 0 && len(p.limited) == 0 {
		return nil
	}
	t := a.Target()
	e := For(ctx, p.objects, t.Group, t.Resource)
	if e.concerns != nil && !e.concerns(a) {
		return nil
	}
	c, err := p.claim(a, e, quotas)
	if err != nil || len(c.deltas) == 0 {
		return err
	}
	if a.DryRun {
		for _, q := range quotas {
			if _, err := c.charge(q, q.Status.Used); err != nil {
				return err
			}
		}
		return nil
	}
	queue := p.queue(a.Namespace)
	if err := queue.enter(ctx, c); err != nil {
		return err
	}
	a.OnEnd(func(committed bool) {
		if !committed {
			queue.release(ctx, c)
		}
	})
	return nil
}

// quotas returns those of a namespace.
func (p *Plugin) quotas(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	objs, err := p.objects.List(ctx, "", "resourcequotas", namespace)
	if err != nil || len(objs) == 0 {
		return nil, err
	}
	quotas := make([]*corev1.ResourceQuota, 0, len(objs))
	for _, obj := range objs {
		if q, ok := obj.(*corev1.ResourceQuota); ok {
			quotas = append(quotas, q)
		}
	}
	return quotas, nil
}

// claim is what a write uses, by the quotas that are about it.
type claim struct {
	a      *admission.Attributes
	deltas map[string]corev1.ResourceList // by the name of the quota

	// What the queue does with it (charge.go).
	lead    chan struct{} // closed when it is to charge for all who wait
	done    chan struct{} // closed when err is known
	err     error
	charged []charge
	back    *claim // one that is given back instead
}

// charge returns what is used of a quota with the claim, or why it is too much.
func (c *claim) charge(q *corev1.ResourceQuota, used corev1.ResourceList) (corev1.ResourceList, error) {
	requested := corev1.ResourceList{}
	for name, quantity := range c.deltas[q.Name] {
		if _, limited := q.Status.Hard[name]; limited {
			requested[name] = quantity
		}
	}
	if len(requested) == 0 {
		return used, nil
	}
	next := corev1.ResourceList{}
	addTo(next, used)
	addTo(next, requested)
	var exceeded []corev1.ResourceName
	for name := range requested {
		if sum := next[name]; sum.Cmp(q.Status.Hard[name]) > 0 {
			exceeded = append(exceeded, name)
		}
	}
	if len(exceeded) > 0 && c.a.Subresource != "status" {
		slices.Sort(exceeded)
		return nil, c.a.Forbidden(fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s",
			q.Name, pretty(requested, exceeded), pretty(used, exceeded), pretty(q.Status.Hard, exceeded)))
	}
	return next, nil
}

// pretty writes some amounts of a list.
func pretty(list corev1.ResourceList, names []corev1.ResourceName) string {
	var parts []string
	for _, name := range names {
		if q, ok := list[name]; ok {
			parts = append(parts, string(name)+"="+q.String())
		}
	}
	return strings.Join(parts, ",")
}

func join(names []corev1.ResourceName) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = string(name)
	}
	return strings.Join(texts, ",")
}

// claim finds out what a write uses, and of which quotas. What they lack, or the
// write, is an error; whether it is too much is not looked at.
func (p *Plugin) claim(a *admission.Attributes, e *Evaluator, quotas []*corev1.ResourceQuota) (*claim, error) {
	var about []*corev1.ResourceQuota
	var restricted []corev1.ResourceName
	var scopes []corev1.ScopedResourceSelectorRequirement
	for _, q := range quotas {
		for _, s := range Scopes(q) {
			in, err := e.inScope(s, a.Object)
			if err != nil {
				return nil, fmt.Errorf("error matching scopes of quota %s, err: error on matching scope %v: %w", q.Name, s, err)
			}
			if in {
				scopes = append(scopes, s)
			}
		}
		match, err := e.Matches(q, a.Object)
		if err != nil {
			return nil, err
		}
		if !match {
			continue
		}
		names := e.Counted(q.Status.Hard)
		if e.requires != nil {
			if err := e.requires(names, a.Object); err != nil {
				return nil, a.Forbidden(fmt.Errorf("failed quota: %s: %w", q.Name, err))
			}
		}
		for _, name := range names {
			if _, known := q.Status.Used[name]; !known {
				return nil, a.Forbidden(fmt.Errorf("status unknown for quota: %s, resources: %s", q.Name, join(names)))
			}
		}
		about = append(about, q)
		restricted = append(restricted, names...)
	}
	usage := e.usage(a.Object)
	var negative []corev1.ResourceName
	for name, quantity := range usage {
		if quantity.Sign() < 0 {
			negative = append(negative, name)
		}
	}
	if slices.Sort(negative); len(negative) > 0 {
		return nil, a.Forbidden(fmt.Errorf("quota usage is negative for resource(s): %s", join(negative)))
	}
	c := &claim{a: a, deltas: map[string]corev1.ResourceList{}, lead: make(chan struct{}), done: make(chan struct{})}
	delta := usage
	if a.Operation == admission.Update {
		delta = growth(usage, e.usage(a.Old))
	}
	for _, q := range about {
		more := usage
		if a.Operation == admission.Update {
			if was, err := e.Matches(q, a.Old); err != nil {
				return nil, err
			} else if was {
				more = delta
			}
		}
		if more = withoutZeros(more); len(more) > 0 {
			c.deltas[q.Name] = more
		}
	}
	if len(about) > 0 && len(c.deltas) == 0 || len(about) == 0 && len(withoutZeros(delta)) == 0 {
		return c, nil
	}
	return c, p.covered(a, e, usage, restricted, scopes)
}

// covered checks that what is limited by default has a quota.
func (p *Plugin) covered(a *admission.Attributes, e *Evaluator, usage corev1.ResourceList, restricted []corev1.ResourceName, scopes []corev1.ScopedResourceSelectorRequirement) error {
	var lacking []corev1.ResourceName
	var unscoped []corev1.ScopedResourceSelectorRequirement
	for i := range p.limited {
		l := &p.limited[i]
		for _, s := range l.MatchScopes {
			in, err := e.inScope(s, a.Object)
			if err != nil {
				return nil // as if nothing were limited
			}
			covered := slices.ContainsFunc(scopes, func(q corev1.ScopedResourceSelectorRequirement) bool { return q.ScopeName == s.ScopeName })
			if in && !covered {
				unscoped = append(unscoped, s)
			}
		}
		if resource := a.GroupResource(); l.APIGroup != resource.Group || l.Resource != resource.Resource {
			continue
		}
		for name, quantity := range usage {
			named := slices.ContainsFunc(l.MatchContains, func(part string) bool { return strings.Contains(string(name), part) })
			if named && quantity.Sign() > 0 && !slices.Contains(restricted, name) && !slices.Contains(lacking, name) {
				lacking = append(lacking, name)
			}
		}
	}
	if slices.Sort(lacking); len(lacking) > 0 {
		return a.Forbidden(fmt.Errorf("insufficient quota to consume: %v", join(lacking)))
	}
	if len(unscoped) > 0 {
		return fmt.Errorf("insufficient quota to match these scopes: %v", unscoped)
	}
	return nil
}

// growth returns how much more is used than before; what is less is zero.
func growth(now, before corev1.ResourceList) corev1.ResourceList {
	more := corev1.ResourceList{}
	for name, quantity := range now {
		quantity = quantity.DeepCopy()
		quantity.Sub(before[name])
		if quantity.Sign() > 0 {
			more[name] = quantity
		}
	}
	return more
}

func withoutZeros(list corev1.ResourceList) corev1.ResourceList {
	if !slices.ContainsFunc(slices.Collect(maps.Values(list)), func(q apiresource.Quantity) bool { return q.IsZero() }) {
		return list
	}
	kept := maps.Clone(list)
	maps.DeleteFunc(kept, func(_ corev1.ResourceName, q apiresource.Quantity) bool { return q.IsZero() })
	return kept
}

// queue returns that of a namespace.
func (p *Plugin) queue(namespace string) *queue {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q, ok := p.queues.Get(namespace); ok {
		return q.(*queue)
	}
	q := &queue{plugin: p, namespace: namespace, chains: map[string]*chain{}}
	p.queues.Add(namespace, q)
	return q
}

// errTimeout is for who waits too long.
func errTimeout() error {
	return apierrors.NewInternalError(fmt.Errorf("resource quota evaluation timed out"))
}
