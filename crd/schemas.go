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
	// maxSchemas is how many compiled schemas are kept.
	maxSchemas = 512
	// idleSchema is how long one is kept that nobody uses.
	idleSchema = 10 * time.Minute
)

// schemas keeps compiled schemas, the ones used last first. Equal ones are
// kept once. What has not been used for long goes when another is asked for.
type schemas struct {
	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*list.Element
	recent *list.List // of *kept
}

type kept struct {
	hash   [sha256.Size]byte
	schema *schema.Schema
	used   time.Time
}

// get returns the compiled form of the schema of a version.
func (s *schemas) get(props *apiextensions.JSONSchemaProps) (*schema.Schema, [sha256.Size]byte, error) {
	raw, err := json.Marshal(props)
	if err != nil {
		return nil, [sha256.Size]byte{}, err
	}
	hash := sha256.Sum256(raw)
	if found := s.find(hash); found != nil {
		return found, hash, nil
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
	s.byHash[hash] = s.recent.PushFront(&kept{hash, compiled, now})
	for e := s.recent.Back(); e != nil; e = s.recent.Back() {
		k := e.Value.(*kept)
		if s.recent.Len() <= maxSchemas && now.Sub(k.used) < idleSchema {
			break
		}
		s.recent.Remove(e)
		delete(s.byHash, k.hash)
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
	props, err := l.props()
	if err != nil {
		return nil, err
	}
	s, hash, err := l.server.schemas.get(props)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.hash, l.hashed = hash, true
	l.mu.Unlock()
	return s, nil
}

// props decodes the schema.
func (l *lazySchema) props() (*apiextensions.JSONSchemaProps, error) {
	var crd apiextensions.CustomResourceDefinition
	if err := json.Unmarshal(*l.stored.json.Load(), &crd); err != nil {
		return nil, err
	}
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Name == l.version {
			if v.Schema == nil {
				return nil, nil
			}
			props := v.Schema.OpenAPIV3Schema
			if crd.Spec.PreserveUnknownFields && props != nil {
				preserve := true
				props.XPreserveUnknownFields = &preserve
			}
			return props, nil
		}
	}
	return nil, fmt.Errorf("the definition has no version %s", l.version)
}
