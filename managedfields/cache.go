package managedfields

import (
	"container/list"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

const (
	// maxSets is how many decoded field sets are kept. Objects made from one
	// template have the same sets, so a few serve many objects.
	maxSets = 1024
	// maxSetSize is the size in bytes of the largest encoded set that is kept.
	maxSetSize = 16 << 10
)

// Cache is shared by managers: the types of kinds with their walk plans. Decoded field
// sets are shared by all caches of a process: a set depends on nothing but its encoding,
// and servers with the same objects have the same sets. The zero value is ready to use;
// it must not be copied.
type Cache struct {
	kinds sync.Map // kindKey → *kindType; those of a Builtin are there
}

// setCache is an LRU cache of decoded field sets.
type setCache struct {
	mu    sync.Mutex
	sets  map[string]*list.Element
	order list.List // of *cachedSet, the last used first
}

var sharedSets = sync.OnceValue(func() *setCache { return &setCache{sets: map[string]*list.Element{}} })

// cachedSet is a decoded field set. It is immutable, but for values computed on first
// use.
type cachedSet struct {
	raw string
	// nodes are what tree returns, which decodes raw if they are not there yet.
	nodes    *node
	decoding sync.Once
	// canonical is the encoding of tree; it equals raw if this server wrote it.
	canonical string

	// fits is the type for which reconciled found nothing to change.
	fits atomic.Pointer[typ]
	once sync.Once
	set  *fieldpath.Set
}

// fields returns the set in the form of structured-merge-diff. It must not be changed.
func (c *cachedSet) fields() *fieldpath.Set {
	c.once.Do(func() { c.set = c.tree().set() })
	return c.set
}

// tree returns the set as a tree. It must not be changed.
func (c *cachedSet) tree() *node {
	c.decoding.Do(func() {
		if c.nodes != nil {
			return
		}
		nodes, err := decode([]byte(c.raw))
		if err != nil {
			nodes = &node{} // cannot be: raw was written by encode or by created
		}
		c.nodes = nodes
	})
	return c.nodes
}

// decoded returns the set that raw encodes.
func (c *Cache) decoded(raw []byte) (*cachedSet, error) {
	if s := sharedSets().find(raw); s != nil {
		return s, nil
	}
	tree, err := decode(raw)
	if err != nil {
		return nil, err
	}
	s := &cachedSet{raw: string(raw), nodes: tree}
	if s.canonical = string(tree.encode(nil)); s.canonical == s.raw {
		s.canonical = s.raw // once in memory
	}
	sharedSets().keep(s)
	return s, nil
}

// written returns the set that raw encodes, in its canonical form. It is decoded when it is
// used: that of an object that is only created is not.
func (c *Cache) written(raw []byte) *cachedSet {
	if s := sharedSets().find(raw); s != nil {
		return s
	}
	text := string(raw)
	s := &cachedSet{raw: text, canonical: text}
	sharedSets().keep(s)
	return s
}

// encoded returns a computed set together with its encoding.
func (c *Cache) encoded(tree *node) *cachedSet {
	buf := tree.encode(make([]byte, 0, 4096))
	if s := sharedSets().find(buf); s != nil {
		return s
	}
	raw := string(buf)
	s := &cachedSet{raw: raw, nodes: tree, canonical: raw}
	sharedSets().keep(s)
	return s
}

func (c *setCache) find(raw []byte) *cachedSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.sets[string(raw)]
	if !ok {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*cachedSet)
}

func (c *setCache) keep(s *cachedSet) {
	if len(s.raw) > maxSetSize {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.sets[s.raw]; ok {
		c.order.MoveToFront(e)
		return
	}
	c.sets[s.raw] = c.order.PushFront(s)
	if c.order.Len() > maxSets {
		last := c.order.Remove(c.order.Back()).(*cachedSet)
		delete(c.sets, last.raw)
	}
}

// kindType is the schema type of a kind, and the plans for walking its Go type.
type kindType struct {
	parseable typed.ParseableType
	typ       *typ
	plans     plans
}

type kindKey struct {
	types Types
	kind  schema.GroupVersionKind
}

// kind returns the type of a kind, and false if Types does not know the kind.
func (c *Cache) kind(types Types, kind schema.GroupVersionKind) (*kindType, bool) {
	kinds, key := &c.kinds, any(kindKey{types, kind})
	if types == nil {
		key = kindKey{}
	}
	if builtin, ok := types.(*Builtin); ok {
		kinds, key = &builtin.resolved, kind
	}
	if k, ok := kinds.Load(key); ok {
		return k.(*kindType), true
	}
	parseable, ok := typed.DeducedParseableType, true
	if types != nil {
		parseable, ok = types.Type(kind)
	}
	if !ok {
		return nil, false
	}
	root, err := resolve(parseable)
	if err != nil {
		return nil, false
	}
	k, _ := kinds.LoadOrStore(key, &kindType{parseable: parseable, typ: root})
	return k.(*kindType), true
}

// plan returns the plan for an object's Go type.
func (k *kindType) plan(obj any) *plan {
	return k.plans.get(reflect.TypeOf(obj).Elem(), k.typ)
}
