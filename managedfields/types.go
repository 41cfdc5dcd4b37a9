package managedfields

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

//go:generate go run ./internal/gen types.txt

// Types knows the types of kinds: which lists are sets, maps or atomic. It says
// false for a kind that it does not know.
type Types interface {
	Type(kind schema.GroupVersionKind) (typed.ParseableType, bool)
}

// builtinTypes is written by internal/gen, which describes the format.
//
//go:embed types.txt
var builtinTypes string

// Builtin is the Types of the kinds of Kubernetes. It reads a type when a kind
// that reaches it is asked for the first time; types that kinds have in common
// are shared. The zero value is ready to use.
type Builtin struct {
	mu    sync.Mutex
	types map[string]smd.TypeDef
	kinds map[schema.GroupVersionKind]typed.ParseableType

	// resolved has what a Cache knows of kinds: GroupVersionKind → *kindType. It
	// depends on nothing but the types, so all caches share it.
	resolved sync.Map
}

// sharedBuiltin returns the Builtin of all Owners in the process: the types of
// Kubernetes are the same for every server.
var sharedBuiltin = sync.OnceValue(func() *Builtin { return &Builtin{} })

// Type implements Types.
func (b *Builtin) Type(kind schema.GroupVersionKind) (typed.ParseableType, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t, ok := b.kinds[kind]; ok {
		return t, true
	}
	root, ok := typeName(kind)
	if !ok {
		return typed.ParseableType{}, false
	}
	if _, ok := findType(root); !ok {
		return typed.ParseableType{}, false
	}
	if b.types == nil {
		b.types, b.kinds = map[string]smd.TypeDef{}, map[schema.GroupVersionKind]typed.ParseableType{}
	}
	reached := &smd.Schema{}
	seen := map[string]bool{}
	b.reach(root, seen, reached)
	t := typed.ParseableType{Schema: reached, TypeRef: smd.TypeRef{NamedType: &root}}
	b.kinds[kind] = t
	return t, true
}

// reach adds a type and all that it refers to.
func (b *Builtin) reach(name string, seen map[string]bool, into *smd.Schema) {
	if seen[name] {
		return
	}
	seen[name] = true
	def, ok := b.types[name]
	if !ok {
		text, ok := findType(name)
		if !ok {
			panic("managedfields: generated types refer to " + name)
		}
		p := typeParser{text: text}
		def = smd.TypeDef{Name: name, Atom: p.atom()}
		b.types[name] = def
	}
	into.Types = append(into.Types, def)
	b.reachAtom(def.Atom, seen, into)
}

func (b *Builtin) reachAtom(a smd.Atom, seen map[string]bool, into *smd.Schema) {
	ref := func(r smd.TypeRef) {
		if r.NamedType != nil {
			b.reach(*r.NamedType, seen, into)
		} else {
			b.reachAtom(r.Inlined, seen, into)
		}
	}
	if a.List != nil {
		ref(a.List.ElementType)
	}
	if a.Map != nil {
		for _, f := range a.Map.Fields {
			ref(f.Type)
		}
		ref(a.Map.ElementType)
	}
}

// typeName returns the name of a kind's type: the group by its first word.
func typeName(kind schema.GroupVersionKind) (string, bool) {
	group, domain, _ := strings.Cut(kind.Group, ".")
	switch {
	case kind.Group == "":
		group = "core"
	case kind.Group == "internal.apiserver.k8s.io":
		group = "apiserverinternal"
	case kind.Group == "apiextensions.k8s.io":
		return "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions." + kind.Version + "." + kind.Kind, true
	case kind.Group == "apiregistration.k8s.io":
		return "io.k8s.kube-aggregator.pkg.apis.apiregistration." + kind.Version + "." + kind.Kind, true
	case domain != "" && domain != "k8s.io" && !strings.HasSuffix(domain, ".k8s.io"):
		return "", false
	}
	return "io.k8s.api." + group + "." + kind.Version + "." + kind.Kind, true
}

// findType returns the definition of a type by binary search over the lines, so
// that nothing has to be indexed.
func findType(name string) (string, bool) {
	lo, hi := 0, len(builtinTypes)
	for lo < hi {
		line := strings.LastIndexByte(builtinTypes[lo:(lo+hi)/2], '\n') + 1 + lo
		end := line + strings.IndexByte(builtinTypes[line:], '\n')
		got, definition, _ := strings.Cut(builtinTypes[line:end], "\t")
		switch {
		case got == name:
			return definition, true
		case got < name:
			lo = end + 1
		default:
			hi = line
		}
	}
	return "", false
}

// typeParser reads a definition. The text is generated, so that an error in it
// is a broken invariant.
type typeParser struct {
	text string
}

func (p *typeParser) take() byte {
	c := p.text[0]
	p.text = p.text[1:]
	return c
}

func (p *typeParser) accept(c byte) bool {
	if p.text != "" && p.text[0] == c {
		p.text = p.text[1:]
		return true
	}
	return false
}

func (p *typeParser) until(c byte) string {
	i := strings.IndexByte(p.text, c)
	s := p.text[:i]
	p.text = p.text[i+1:]
	return s
}

func (p *typeParser) relationship() smd.ElementRelationship {
	switch c := p.take(); c {
	case 'a':
		return smd.Atomic
	case 'm':
		return smd.Associative
	case 'p':
		return smd.Separable
	case '-':
		return ""
	default:
		panic(fmt.Sprintf("managedfields: relationship %q in generated types", c))
	}
}

func (p *typeParser) atom() (a smd.Atom) {
	for _, s := range []smd.Scalar{smd.String, smd.Numeric, smd.Boolean, smd.Untyped} {
		if p.accept(s[0]) {
			a.Scalar = &s
			break
		}
	}
	if p.accept('[') {
		l := &smd.List{ElementRelationship: p.relationship()}
		for !p.accept(':') {
			l.Keys = append(l.Keys, p.until(','))
		}
		l.ElementType = p.ref()
		p.accept(']')
		a.List = l
	}
	if p.accept('{') {
		m := &smd.Map{ElementRelationship: p.relationship()}
		for !p.accept('}') {
			if p.accept('*') {
				m.ElementType = p.ref()
				continue
			}
			f := smd.StructField{Name: p.until(':'), Type: p.ref()}
			if p.accept('=') {
				f.Default = p.json()
			}
			p.accept(';')
			m.Fields = append(m.Fields, f)
		}
		a.Map = m
	}
	return a
}

// json reads a value. Most are empty, and need no decoder.
func (p *typeParser) json() any {
	switch {
	case strings.HasPrefix(p.text, `"";`):
		p.text = p.text[2:]
		return ""
	case strings.HasPrefix(p.text, "{};"):
		p.text = p.text[2:]
		return map[string]any{}
	}
	var v any
	dec := json.NewDecoder(strings.NewReader(p.text))
	if err := dec.Decode(&v); err != nil {
		panic("managedfields: default in generated types: " + err.Error())
	}
	p.text = p.text[dec.InputOffset():]
	return v
}

func (p *typeParser) ref() (r smd.TypeRef) {
	if p.accept('@') {
		name := p.until(',')
		r.NamedType = &name
	} else {
		p.accept('(')
		r.Inlined = p.atom()
		p.accept(')')
	}
	if p.accept('!') {
		rel := p.relationship()
		r.ElementRelationship = &rel
	}
	return r
}
