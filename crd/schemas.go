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
	// maxWeight is how much memory compiled schemas may take together, about. A
	// usual one takes 100 KiB; one that is larger than all may be still goes on
	// being used until the next is.
	maxWeight = 128 << 20
	// idleSchema is how long one is kept that nobody uses.
	idleSchema = 10 * time.Minute
)

// schemas keeps compiled schemas, the ones used last first. Equal ones are
// kept once. What has not been used for long goes when another is asked for.
type schemas struct {
	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*list.Element
	recent *list.List // of *kept
	weight int        // of all
}

type kept struct {
	hash   [sha256.Size]byte
	schema *schema.Schema
	weight int
	used   time.Time
}

// get returns the compiled form of the schema of a version.
func (s *schemas) get(text *schemaText) (*schema.Schema, [sha256.Size]byte, error) {
	hash := text.hash()
	if found := s.find(hash); found != nil {
		return found, hash, nil
	}
	props, err := text.props()
	if err != nil {
		return nil, hash, err
	}
	compiled, err := schema.Compile(props)
	if err != nil {
		return nil, hash, err
	}
	return s.put(hash, compiled), hash, nil
}

// find returns a schema that is kept, nil if it is not.
func (s *schemas) find(hash [sha256.Size]byte) *schema.Schema {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byHash[hash]
	if e == nil {
		return nil
	}
	k := e.Value.(*kept)
	k.used = time.Now()
	s.recent.MoveToFront(e)
	return k.schema
}

func (s *schemas) put(hash [sha256.Size]byte, compiled *schema.Schema) *schema.Schema {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byHash[hash]; e != nil {
		return e.Value.(*kept).schema
	}
	if s.recent == nil {
		s.recent, s.byHash = list.New(), map[[sha256.Size]byte]*list.Element{}
	}
	now := time.Now()
	added := &kept{hash, compiled, compiled.Weight(), now}
	s.byHash[hash] = s.recent.PushFront(added)
	s.weight += added.weight
	for e := s.recent.Back(); e != nil; e = s.recent.Back() {
		k := e.Value.(*kept)
		if k == added || s.weight <= maxWeight && now.Sub(k.used) < idleSchema {
			break
		}
		s.recent.Remove(e)
		delete(s.byHash, k.hash)
		s.weight -= k.weight
	}
	return compiled
}

// source is a definition as it is stored now. As long as nothing is changed that
// schemas are made of, its bytes are replaced by newer ones, which the cache has
// anyway: the older ones need not be kept.
type source struct{ json atomic.Pointer[[]byte] }

func (s *source) set(json []byte) { s.json.Store(&json) }

// lazySchema is the schema of one version of a definition, made when it is
// needed from the stored definition.
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
	s, hash, err := l.server.schemas.get(text)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.hash, l.hashed = hash, true
	l.mu.Unlock()
	return s, nil
}

// schemaText is a schema as it is stored.
type schemaText struct {
	json json.RawMessage // nil if there is none
	// preserve tells that the definition keeps what the schema does not know.
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
