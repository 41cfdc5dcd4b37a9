package usage

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxFindings is how many findings of a kind are kept: those that occur most.
	maxFindings = 64
	// shortWatch is how long a watch lasts that was restarted too soon.
	shortWatch = 30 * time.Second
	// largeList is the response size in bytes, as it is sent, from which a list should
	// have had pages; lists are usually sent compressed.
	largeList = 64 << 10
	// maxUsed bounds the resources that are known to be used.
	maxUsed = 1 << 14
)

// FindingKind is what a client does that it should not.
type FindingKind int

// The kinds of findings.
const (
	DeprecatedVersion FindingKind = iota
	UnpagedList
	RestartedWatch
	findingKinds
)

// Finding is something that a client does and should not.
type Finding struct {
	User  string `json:"user"`
	Agent string `json:"agent"`
	// Resource is the resource with its group, and with its version if that is
	// deprecated.
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Times     int64  `json:"times"`
	// Bytes is the size of all responses.
	Bytes int64     `json:"bytesOut,omitempty"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Note is the warning about a deprecated version.
	Note string `json:"note,omitempty"`

	names
}

// findings are the findings of all kinds.
type findings struct {
	mu sync.Mutex
	by [findingKinds]map[names]*Finding
}

// find looks for findings in a request that has succeeded.
func (m *Meter) find(n *names, r *Request) {
	if r.Deprecation != "" {
		versioned := *n
		versioned.verb, versioned.level, versioned.namespace = r.Version, "", ""
		m.note(DeprecatedVersion, versioned, r)
	}
	kind := UnpagedList
	switch {
	case r.Verb == "list" && r.Unpaged && r.Bytes >= largeList:
	case r.Verb == "watch" && r.Took < shortWatch:
		kind = RestartedWatch
	default:
		return
	}
	merged := *n
	merged.level, merged.verb = "", ""
	m.note(kind, merged, r)
}

func (m *Meter) note(kind FindingKind, n names, r *Request) {
	f := &m.findings
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by[kind] == nil {
		f.by[kind] = map[names]*Finding{}
	}
	found := f.by[kind][n]
	now := m.cfg.Now()
	if found == nil {
		if len(f.by[kind]) >= maxFindings {
			f.forget(kind)
		}
		n = n.clone()
		note := r.Deprecation
		if len(note) > 2*maxName {
			note = note[:2*maxName]
		}
		found = &Finding{names: n, First: now, Note: note}
		f.by[kind][n] = found
	}
	found.Times++
	found.Bytes += r.Bytes
	found.Last = now
}

// forget makes room: the rarest finding goes, the oldest of those.
func (f *findings) forget(kind FindingKind) {
	var rarest *Finding
	for _, found := range f.by[kind] {
		if rarest == nil || cmp.Or(cmp.Compare(found.Times, rarest.Times), found.Last.Compare(rarest.Last)) < 0 {
			rarest = found
		}
	}
	delete(f.by[kind], rarest.names)
}

// Findings returns the findings of a kind that a viewer may see, the most frequent first.
// A watch that was restarted once or twice is none.
func (m *Meter) Findings(kind FindingKind, may Viewer) []Finding {
	const restarts = 3
	all := []Finding{}
	f := &m.findings
	f.mu.Lock()
	for _, found := range f.by[kind] {
		if kind != RestartedWatch || found.Times >= restarts {
			all = append(all, *found)
		}
	}
	f.mu.Unlock()
	may = remembered(may)
	all = slices.DeleteFunc(all, func(found Finding) bool { return !found.isVisible(may) })
	for i := range all {
		found := &all[i]
		found.User, found.Agent, found.Resource = found.user, found.agent, resourceName(found.group, found.resource)
		if kind == DeprecatedVersion {
			found.Resource = resourceName(strings.TrimSuffix(found.verb+"."+found.group, "."), found.resource)
		} else {
			found.Namespace = found.namespace
		}
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.User, b.User), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace))
	})
	return all
}

// isHousekeeper reports whether a user is a part of the cluster that reads every resource
// that there is, so that nothing would ever be unused.
func isHousekeeper(user string) bool {
	switch user {
	case "system:apiserver", "system:kube-controller-manager":
		return true
	}
	account, ok := strings.CutPrefix(user, "system:serviceaccount:kube-system:")
	switch account {
	case "generic-garbage-collector", "namespace-controller", "resourcequota-controller":
		return ok
	}
	return false
}

// usedResources knows which resources were used since the start, exactly: their number is
// that of the resources that are served.
type usedResources struct {
	mu    sync.RWMutex
	names map[[2]string]bool // by group and resource
}

func (u *usedResources) note(n *names) {
	key := [2]string{n.group, n.resource}
	u.mu.RLock()
	known := u.names[key]
	u.mu.RUnlock()
	if known {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.names) >= maxUsed { // definitions have come and gone
		u.names = nil
	}
	if u.names == nil {
		u.names = map[[2]string]bool{}
	}
	u.names[[2]string{strings.Clone(n.group), strings.Clone(n.resource)}] = true
}

// Used reports whether a resource was used since the start, by anybody but the parts of a
// cluster that read every resource. Open watches count.
func (m *Meter) Used(group, resource string) bool {
	m.used.mu.RLock()
	used := m.used.names[[2]string{group, resource}]
	m.used.mu.RUnlock()
	if used {
		return true
	}
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for n := range s.open {
			if n.group == group && n.resource == resource && !isHousekeeper(n.user) {
				s.mu.Unlock()
				return true
			}
		}
		s.mu.Unlock()
	}
	return false
}
