// Package quota is the admission plugin ResourceQuota. Start at Plugin and Evaluator, which
// computes the usage of objects.
//
// # Quotas are never exceeded
//
// A write is charged before it is committed: its usage is added to status.used of every
// quota that matches, by an update with a resourceVersion precondition; after a conflict the
// update is retried on the newer status. So the sum of what is committed is never more than
// what is charged, and that never more than spec.hard, however many servers write at once.
// A write must never be committed uncharged.
//
// Concurrent requests in a namespace are charged together by one of them (charge.go).
//
// The controller lowers used to what it counts (controller.Quotas). The Ledger tells it of the charges whose
// writes may not be committed yet, which it adds.
//
// If a write fails after it was charged, the charge is returned. Where usage is recounted by another program,
// which knows no ledger, it is returned unless somebody else has updated the quota since: usage may have been
// recounted without it. A charge that is not returned is corrected by the next recount.
package quota

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/lru"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/resource"
)

// Objects reads and updates quotas.
type Objects interface {
	admission.Objects
	// UpdateStatus changes the status of an object as the server itself, and returns
	// the result. change may run several times, each time on a fresh copy; its error
	// ends the update.
	UpdateStatus(ctx context.Context, group, resource, namespace, name string, change func(obj resource.Object) error) (resource.Object, error)
}

// Limited is a limitedResource of the plugin configuration: it may be used only where a
// quota allows it.
type Limited struct {
	APIGroup string `json:"apiGroup"`
	Resource string `json:"resource"`
	// MatchContains are substrings of the resource names that are limited.
	MatchContains []string `json:"matchContains"`
	// MatchScopes are the scopes in which the resource is limited.
	MatchScopes []corev1.ScopedResourceSelectorRequirement `json:"matchScopes"`
}

// Load decodes the configuration of the plugin.
func Load(data []byte) ([]Limited, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var file struct {
		APIVersion       string    `json:"apiVersion"`
		Kind             string    `json:"kind"`
		LimitedResources []Limited `json:"limitedResources"`
	}
	if err := configfile.UnmarshalYAML(data, &file); err != nil {
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

// maxNamespaces bounds the LRU cache of queues.
const maxNamespaces = 1024

// Plugin is the admission plugin ResourceQuota.
type Plugin struct {
	objects  Objects
	limited  []Limited
	settings Settings
	ledger   *Ledger
	log      *slog.Logger

	mu     sync.Mutex
	queues *lru.Cache // namespace → *queue
}

var _ admission.Validator = (*Plugin)(nil)

// New returns the plugin. ledger is that of the controller that recounts usage in this process; nil if
// recounts are made elsewhere.
func New(objects Objects, limited []Limited, settings Settings, ledger *Ledger, log *slog.Logger) *Plugin {
	if ledger == nil {
		ledger = NewLedger(nil, nil)
		ledger.elsewhere = true
	}
	return &Plugin{objects: objects, limited: limited, settings: settings, ledger: ledger, log: log, queues: lru.New(maxNamespaces)}
}

// Name implements admission.Plugin.
func (p *Plugin) Name() string { return "ResourceQuota" }

// Handles implements admission.Plugin.
func (p *Plugin) Handles(t admission.Target) bool {
	e := p.settings.For(context.Background(), p.objects, t.Group, t.Resource)
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
	e := p.settings.For(ctx, p.objects, t.Group, t.Resource)
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
	a.OnEnd(func(o resource.Outcome) { queue.end(ctx, c, o) })
	if p.ledger.others != nil && a.Abandon != nil {
		timer := time.AfterFunc(chargeLife, a.Abandon)
		a.OnEnd(func(resource.Outcome) { timer.Stop() })
	}
	return nil
}

// quotas returns the quotas of a namespace.
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

// claim is the usage of a write, by the quotas that match it.
type claim struct {
	a      *admission.Attributes
	deltas map[string]corev1.ResourceList // by the name of the quota

	// State of the queue (charge.go).
	lead    chan struct{} // closed when this claim has to charge for all that wait
	done    chan struct{} // closed when err is known
	err     error
	charged []charge
	back    *claim // the claim whose charges are to be returned
}

// charge returns the new usage of a quota with the claim, or the refusal.
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

// pretty formats some quantities of a list.
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

// claim computes the usage of a write and the quotas that match it. It does not check
// whether it fits.
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
	return c, p.checkCovered(a, e, usage, restricted, scopes)
}

// checkCovered checks that limitedResources are covered by a quota.
func (p *Plugin) checkCovered(a *admission.Attributes, e *Evaluator, usage corev1.ResourceList, restricted []corev1.ResourceName, scopes []corev1.ScopedResourceSelectorRequirement) error {
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

// growth returns by how much usage grows; a decrease is zero.
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

// queue returns the queue of a namespace.
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

// errTimeout is the error of a request that has waited too long.
func errTimeout() error {
	return apierrors.NewInternalError(fmt.Errorf("resource quota evaluation timed out"))
}
