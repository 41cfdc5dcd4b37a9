package controlplane

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/status"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/usage"
)

// largestShown is how many of the largest kinds and objects are told.
const largestShown = 20

// serveFindings tells what an operator should know about the use of the API. What a user
// may not list is left out.
func (a *assembly) serveFindings(w http.ResponseWriter, r *http.Request) {
	ctx, may := r.Context(), a.viewer(r)
	report := a.usage.Report(may)
	const group = admissionregistrationv1.GroupName
	if may(group, "mutatingwebhookconfigurations", "") && may(group, "validatingwebhookconfigurations", "") {
		report.Webhooks = a.webhookCosts()
	}
	if may(apiextensionsv1.GroupName, crd.Resource, "") {
		report.Unused = a.unusedDefinitions(ctx)
	}
	a.largest(ctx, may, report)
	status.WriteJSON(w, r, report, nil)
}

// webhookCosts reads what the metrics of admission webhooks have counted.
func (a *assembly) webhookCosts() []usage.Webhook {
	const prefix = "apiserver_admission_webhook_"
	families, _ := a.registry.Gather() // what can be read is enough
	all := map[[2]string]*usage.Webhook{}
	for _, family := range families {
		name, ok := strings.CutPrefix(family.GetName(), prefix)
		if !ok {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			key := [2]string{labels["name"], labels["type"]}
			if all[key] == nil {
				all[key] = &usage.Webhook{Name: key[0], Type: key[1]}
			}
			switch hook := all[key]; name {
			case "admission_duration_seconds":
				hook.Requests += int64(m.GetHistogram().GetSampleCount())
				hook.TotalSeconds += m.GetHistogram().GetSampleSum()
			case "rejection_count":
				if n := int64(m.GetCounter().GetValue()); labels["error_type"] == "no_error" {
					hook.Rejected += n
				} else {
					hook.Failed += n
				}
			case "fail_open_count":
				n := int64(m.GetCounter().GetValue())
				hook.FailedOpen += n
				hook.Failed += n
			}
		}
	}
	hooks := []usage.Webhook{}
	for _, hook := range all {
		hook.MeanSeconds = hook.TotalSeconds / float64(max(1, hook.Requests))
		hooks = append(hooks, *hook)
	}
	slices.SortFunc(hooks, func(a, b usage.Webhook) int {
		return cmp.Or(cmp.Compare(b.TotalSeconds, a.TotalSeconds), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Type, b.Type))
	})
	return hooks
}

// unusedDefinitions are the names of definitions whose resources nobody has asked for.
func (a *assembly) unusedDefinitions(ctx context.Context) []string {
	unused := []string{}
	definitions, err := a.resources.Objects(apiextensionsv1.GroupName, crd.Resource).List(ctx, "")
	if err != nil {
		a.Logger.Warn("definitions cannot be listed; those that nobody uses are not told", "error", err)
		return unused
	}
	for _, object := range definitions {
		if d, ok := object.(*apiextensionsv1.CustomResourceDefinition); ok && !a.usage.Used(d.Spec.Group, d.Spec.Names.Plural) {
			unused = append(unused, d.Name)
		}
	}
	slices.Sort(unused)
	return unused
}

// largest looks at all objects that are in memory. It loads none.
func (a *assembly) largest(ctx context.Context, may usage.Viewer, report *usage.Report) {
	kinds := map[[2]string]*usage.Size{}
	var loaded []*resource.Definition
	for _, p := range a.places.all {
		p.objects.Caches(func(def *resource.Definition, _ store.CacheStats) { loaded = append(loaded, def) })
	}
	for _, def := range loaded {
		objects, ok := a.resources.Stored(def.Group, def.Resource)
		if !ok {
			continue
		}
		snapshot, err := objects.Snapshot(ctx, store.Read{Any: true})
		if err != nil {
			continue // the cache has been dropped meanwhile
		}
		allowed := map[string]bool{}
		everywhere := may(def.Group, def.Resource, "")
		name := def.Resource
		if def.Group != "" {
			name += "." + def.Group
		}
		snapshot.Range("", "", func(rec *store.Record) bool {
			size := usage.Size{Resource: name, Bytes: int64(rec.StoredSize())}
			path := strings.Split(rec.Key, "/")
			size.Name = path[len(path)-1]
			if def.Namespaced && len(path) > 1 {
				size.Namespace = path[len(path)-2]
			}
			ok, known := allowed[size.Namespace]
			if !known {
				ok = everywhere || size.Namespace != "" && may(def.Group, def.Resource, size.Namespace)
				allowed[size.Namespace] = ok
			}
			if !ok {
				return true
			}
			kind := kinds[[2]string{name, size.Namespace}]
			if kind == nil {
				kind = &usage.Size{Resource: name, Namespace: size.Namespace}
				kinds[[2]string{name, size.Namespace}] = kind
			}
			kind.Objects++
			kind.Bytes += size.Bytes
			report.Objects = insertLargest(report.Objects, size)
			return true
		})
	}
	for _, key := range slices.SortedFunc(maps.Keys(kinds), func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) }) {
		report.Kinds = insertLargest(report.Kinds, *kinds[key])
	}
}

// insertLargest adds a size to a list of the largest, largest first.
func insertLargest(list []usage.Size, size usage.Size) []usage.Size {
	if len(list) == largestShown && size.Bytes <= list[largestShown-1].Bytes {
		return list
	}
	at, _ := slices.BinarySearchFunc(list, size, func(a, b usage.Size) int {
		if a.Bytes >= b.Bytes {
			return -1
		}
		return 1
	})
	list = slices.Insert(list, at, size)
	return list[:min(len(list), largestShown)]
}
