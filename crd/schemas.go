package crd

import (
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/apikeel/kelson/crd/schema"
)

const (
	// maxWeight bounds the estimated memory, in bytes, of all compiled schemas, if
	// Server.MaxSchemas does not. A usual schema takes 100 KiB. One that is larger than the
	// bound by itself, without its rules, is kept until the next one is compiled.
	maxWeight = 128 << 20
	// ruleShare is the part, 1/ruleShare, of the bound that the compiled rules of one schema
	// may take.
	ruleShare = 2
	// idleSchema is how long an unused schema is kept.
	idleSchema = 10 * time.Minute
)

// schemas is an LRU cache of compiled schemas, by the hash of their text. Schemas that
// have not been used for idleSchema are dropped when another one is added.
type schemas struct {
	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*list.Element
	recent *list.List // of *kept
	weight int        // sum of the weights
}

type cachedSchema struct {
	hash   [sha256.Size]byte
	schema *schema.Schema
	weight int
	used   time.Time
}

// get returns the compiled schema of a version, from the cache or newly compiled. bound is how
// many bytes the cache may take.
func (s *schemas) get(text *schemaText, bound int) (*schema.Schema, [sha256.Size]byte, error) {
	hash := text.hash()
	if found := s.find(hash); found != nil {
		return found, hash, nil
	}
	props, err := text.props()
	if err != nil {
		return nil, hash, err
	}
	compiled, err := schema.Compile(props, bound/ruleShare)
	if err != nil {
		return nil, hash, err
	}
	return s.put(hash, compiled, bound), hash, nil
}

// maxSchemas returns how many bytes all compiled schemas may take.
func (s *Server) maxSchemas() int {
	if s.MaxSchemas > 0 {
		return int(s.MaxSchemas)
	}
	return maxWeight
}

// HeldSchemas returns the estimated memory in bytes of the compiled schemas.
func (s *Server) HeldSchemas() int64 {
	s.schemas.mu.Lock()
	defer s.schemas.mu.Unlock()
	return int64(s.schemas.weight)
}

// find returns a schema of the cache, nil if it has none.
func (s *schemas) find(hash [sha256.Size]byte) *schema.Schema {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byHash[hash]
	if e == nil {
		return nil
	}
	k := e.Value.(*cachedSchema)
	k.used = time.Now()
	s.recent.MoveToFront(e)
	return k.schema
}

func (s *schemas) put(hash [sha256.Size]byte, compiled *schema.Schema, bound int) *schema.Schema {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byHash[hash]; e != nil {
		return e.Value.(*cachedSchema).schema
	}
	if s.recent == nil {
		s.recent, s.byHash = list.New(), map[[sha256.Size]byte]*list.Element{}
	}
	now := time.Now()
	added := &cachedSchema{hash, compiled, compiled.Weight(), now}
	s.byHash[hash] = s.recent.PushFront(added)
	s.weight += added.weight
	for e := s.recent.Back(); e != nil; e = s.recent.Back() {
		k := e.Value.(*cachedSchema)
		if k == added || s.weight <= bound && now.Sub(k.used) < idleSchema {
			break
		}
		s.recent.Remove(e)
		delete(s.byHash, k.hash)
		s.weight -= k.weight
	}
	return compiled
}

// source is the stored JSON of a definition. While nothing changes that schemas are made
// of, set replaces it with the newest bytes, which the watch cache has anyway, so that
// older bytes can be freed.
type source struct {
	json atomic.Pointer[[]byte]
	// deleting says that the definition is being deleted.
	deleting atomic.Bool
}

func (s *source) set(json []byte) { s.json.Store(&json) }

// lazySchema compiles the schema of one version when it is first used.
type lazySchema struct {
	server  *Server
	stored  *source
	version string

	mu     sync.Mutex
	hash   [sha256.Size]byte
	hashed bool
}

// get returns the compiled schema.
func (l *lazySchema) get() (*schema.Schema, error) {
	l.mu.Lock()
	hash, hashed := l.hash, l.hashed
	l.mu.Unlock()
	if hashed {
		if s := l.server.schemas.find(hash); s != nil {
			return s, nil
		}
	}
	text, err := l.text()
	if err != nil {
		return nil, err
	}
	s, hash, err := l.server.schemas.get(text, l.server.maxSchemas())
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.hash, l.hashed = hash, true
	l.mu.Unlock()
	return s, nil
}

// schemaText is a schema as JSON.
type schemaText struct {
	json json.RawMessage // nil if there is none
	// preserve is spec.preserveUnknownFields.
	preserve bool
}

// text finds the schema in the stored definition.
func (l *lazySchema) text() (*schemaText, error) {
	var crd struct {
		Spec struct {
			PreserveUnknownFields bool `json:"preserveUnknownFields"`
			Versions              []struct {
				Name   string `json:"name"`
				Schema struct {
					OpenAPIV3Schema json.RawMessage `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(*l.stored.json.Load(), &crd); err != nil {
		return nil, err
	}
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Name == l.version {
			return &schemaText{v.Schema.OpenAPIV3Schema, crd.Spec.PreserveUnknownFields}, nil
		}
	}
	return nil, fmt.Errorf("the definition has no version %s", l.version)
}

func (t *schemaText) hash() [sha256.Size]byte {
	if t.preserve {
		return sha256.Sum256(append([]byte{'+'}, t.json...))
	}
	return sha256.Sum256(t.json)
}

// props decodes the schema.
func (t *schemaText) props() (*apiextensions.JSONSchemaProps, error) {
	if t.json == nil {
		return nil, nil
	}
	props := &apiextensions.JSONSchemaProps{}
	if err := json.Unmarshal(t.json, props); err != nil {
		return nil, err
	}
	if t.preserve {
		props.XPreserveUnknownFields = &t.preserve
	}
	return props, nil
}
