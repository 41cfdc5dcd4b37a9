package openapi

import (
	"cmp"
	"maps"
	"slices"

	"github.com/apikeel/kelson/resource"
)

// source is the input of paths and definitions: a resource in one of its versions, or a
// route.
type source struct {
	served *resource.Served // nil for a route
	route  *Route
	// id is unique, also among sources that do not exist any more.
	id uint64
	// at are its paths.
	at []string
	// refs are the names of the definitions that its operations refer to.
	refs []string
	// object and list are the definitions of a resource.
	object, list string
}

func (s *source) isCustom() bool { return s.served != nil && s.served.Unstructured }

// paths returns the path that is wanted, or all.
func (s *source) paths(options *parameters, only string) []path {
	if s.route != nil {
		return s.route.paths()
	}
	return options.paths(s.served, only)
}

// newSource returns a source for one of the two.
func (h *Handler) newSource(served *resource.Served, route *Route, l *library) *source {
	h.sources++
	s := &source{served: served, route: route, id: h.sources}
	refs := map[string]bool{}
	for _, p := range l.pathsOf(s, h.options(), "") {
		s.at = append(s.at, p.path)
		for _, op := range p.operations {
			refs[op.body] = true
			for _, r := range op.responses {
				refs[r.definition] = true
			}
		}
	}
	if served != nil {
		s.object, s.list = objectName(served), listName(served)
	}
	if s.isCustom() {
		// What their schemas refer to is known without making them.
		refs[metaPrefix+"ObjectMeta"], refs[metaPrefix+"ListMeta"] = true, true
	}
	delete(refs, "")
	s.refs = slices.AppendSeq(make([]string, 0, len(refs)), maps.Keys(refs))
	return s
}

// pathsOf returns the path of a source that is wanted, or all. They are wanted one
// after the other; but in version 2, those of custom resources may be too many to
// keep them.
func (l *library) pathsOf(s *source, options *parameters, only string) []path {
	if l.two && s.isCustom() {
		return s.paths(options, only)
	}
	known, ok := l.paths[s]
	if !ok {
		known = s.paths(options, "")
		l.paths[s] = known
	}
	return known
}

// sourcesOf returns the sources of a document. Those that it had before stay
// the same. The caller holds h.building.
func (h *Handler) sourcesOf(d *document, l *library) []*source {
	if known := d.sources.Load(); known != nil {
		return *known
	}
	before := map[*resource.Served]*source{}
	var all []*source
	if was := d.before.Swap(nil); was != nil {
		for _, s := range *was {
			if s.route != nil {
				all = append(all, s) // a document has but one
			} else {
				before[s.served] = s
			}
		}
	}
	if route := d.part.discovery(h.media.objects); route != nil && len(all) == 0 {
		all = append(all, h.newSource(nil, route, l))
	}
	if d.part.version != nil {
		for _, served := range d.part.version.Resources {
			s := before[served]
			if s == nil {
				s = h.newSource(served, nil, l)
			}
			all = append(all, s)
		}
	}
	d.sources.Store(&all)
	return all
}

// entry is a path of a document and where it comes from.
type entry struct {
	at   string
	from *source
	// text is the content of a path that another server serves.
	text []byte
}

func (e entry) isCustom() bool { return e.from != nil && e.from.isCustom() }

// entriesOf returns the paths of sources, sorted.
func entriesOf(sources []*source) []entry {
	var entries []entry
	for _, s := range sources {
		for _, at := range s.at {
			entries = append(entries, entry{at: at, from: s})
		}
	}
	sortEntries(entries)
	return entries
}

func sortEntries(entries []entry) {
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.at, b.at) })
}

// definition is a definition of a document and where it comes from.
type definition struct {
	name string
	// number in the pack, if it is generated; -1 otherwise.
	number int
	from   *source // nil if it is generated, or nobody knows it
	// text is that of a definition which is not, or not only, ours.
	text []byte
}

// definitionsOf returns the definitions that sources refer to, with all that
// those refer to, sorted by name.
func (h *Handler) definitionsOf(sources []*source, l *library) ([]definition, error) {
	l.own = make(map[string]*source, 2*len(sources))
	for _, s := range sources {
		if s.served != nil {
			l.own[s.object], l.own[s.list] = s, s
		}
	}
	generated, others := make([]bool, l.pack.Len()), map[string]bool{}
	var all []definition
	var visitGenerated func(n int)
	visitGenerated = func(n int) {
		if generated[n] {
			return
		}
		generated[n] = true
		all = append(all, definition{name: l.pack.Name(n), number: n})
		for _, ref := range l.pack.Refs(n) {
			visitGenerated(int(ref))
		}
	}
	var visit func(name string) error
	visit = func(name string) error {
		if n, ok := l.pack.Find(name); ok {
			visitGenerated(n)
			return nil
		}
		if others[name] {
			return nil
		}
		others[name] = true
		from := l.own[name]
		all = append(all, definition{name: name, number: -1, from: from})
		if from == nil || from.isCustom() {
			return nil // what those refer to is among the refs of the source
		}
		d, err := l.ownDefinition(name)
		if d == nil || err != nil {
			return err
		}
		for _, ref := range d.refs() {
			if err := visit(ref); err != nil {
				return err
			}
		}
		return nil
	}
	for _, s := range sources {
		for _, ref := range s.refs {
			if err := visit(ref); err != nil {
				return nil, err
			}
		}
	}
	sortDefinitions(all)
	return all, nil
}

func sortDefinitions(all []definition) {
	slices.SortFunc(all, func(a, b definition) int { return cmp.Compare(a.name, b.name) })
}
