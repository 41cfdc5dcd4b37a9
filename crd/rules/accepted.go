package rules

import (
	"crypto/sha256"
	"encoding/json"
	"sync"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// maxAccepted is how many valid schemas a Judge remembers.
const maxAccepted = 4096

// accepted caches the hashes of schemas that were valid without any tolerance. Families of
// definitions share schemas, and definitions are recreated with the same schema; validating
// the schema is most of the cost of a definition.
type accepted struct {
	mu   sync.Mutex
	seen map[verdict]struct{}
}

// verdict is the key of the cache: a schema, and how it was validated.
type verdict struct {
	schema             [sha256.Size]byte
	status, structural bool
}

// verdictOn returns the key of a schema, and whether the schema may be cached. Its JSON
// does not show empty dependencies and an empty required list, so schemas with those are
// not cached.
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
		delete(a.seen, old) // evict any
	}
	a.seen[v] = struct{}{}
}
