package rules

import (
	"crypto/sha256"
	"encoding/json"
	"sync"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// maxAccepted is how many schemas a Judge remembers.
const maxAccepted = 4096

// accepted remembers schemas with which nothing was wrong though nothing was
// tolerated. Schemas are alike within a family of definitions, and when
// definitions are made anew, and to judge one is most of the cost of a definition.
type accepted struct {
	mu   sync.Mutex
	seen map[verdict]struct{}
}

// verdict is what was judged: a schema, and what was asked of it.
type verdict struct {
	schema             [sha256.Size]byte
	status, structural bool
}

// verdictOn returns whether a schema can have a verdict too. One with dependencies
// or a list of what is required cannot if they are empty: its JSON does not show them
// then.
func verdictOn(p *v1.JSONSchemaProps, status, structural bool) (verdict, bool) {
	raw, err := json.Marshal(p)
	return verdict{sha256.Sum256(raw), status, structural}, err == nil && !has(p, func(p *v1.JSONSchemaProps) bool {
		return p.Dependencies != nil || p.Required != nil && len(p.Required) == 0
	})
}

func (a *accepted) has(v verdict) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.seen[v]
	return ok
}

func (a *accepted) add(v verdict) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == nil {
		a.seen = map[verdict]struct{}{}
	}
	for old := range a.seen {
		if len(a.seen) < maxAccepted {
			break
		}
		delete(a.seen, old) // any will do
	}
	a.seen[v] = struct{}{}
}
