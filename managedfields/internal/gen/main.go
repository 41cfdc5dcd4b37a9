// Command gen writes the types of the built-in kinds, as the apply configurations
// of their clients have them, in the compact form that package managedfields
// reads: a line a type, sorted by name.
//
//	type  = name TAB atom LF
//	atom  = [scalar] [list] [map]
//	scalar = "s" | "n" | "b" | "u"                 string, numeric, boolean, untyped
//	list  = "[" rel {key ","} ":" ref "]"
//	map   = "{" rel {name ":" ref ["=" JSON] ";"} ["*" ref] "}"
//	rel   = "a" | "m" | "p" | "-"                   atomic, associative, separable, unset
//	ref   = ("@" name "," | "(" atom ")") ["!" rel]
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/yaml"
)

// more are types of built-in kinds that client-go has no apply configuration for
// and that are applied nevertheless, and IntOrString, which can be anything until
// it is decoded.
const more = `
- name: io.k8s.apimachinery.pkg.util.intstr.IntOrString
  scalar: untyped
  list: {elementType: {namedType: __untyped_atomic_}, elementRelationship: atomic}
  map: {elementType: {namedType: __untyped_deduced_}, elementRelationship: separable}
- name: io.k8s.api.authorization.v1.FieldSelectorAttributes
  map:
    fields:
    - name: rawSelector
      type: {scalar: string}
    - name: requirements
      type: {list: {elementType: {namedType: __untyped_atomic_}, elementRelationship: atomic}}
- name: io.k8s.api.authorization.v1.LabelSelectorAttributes
  map:
    fields:
    - name: rawSelector
      type: {scalar: string}
    - name: requirements
      type: {list: {elementType: {namedType: __untyped_atomic_}, elementRelationship: atomic}}
- name: io.k8s.api.authorization.v1.NonResourceAttributes
  map:
    fields:
    - name: path
      type: {scalar: string}
    - name: verb
      type: {scalar: string}
- name: io.k8s.api.authorization.v1.ResourceAttributes
  map:
    fields:
    - name: fieldSelector
      type: {namedType: io.k8s.api.authorization.v1.FieldSelectorAttributes}
    - name: group
      type: {scalar: string}
    - name: labelSelector
      type: {namedType: io.k8s.api.authorization.v1.LabelSelectorAttributes}
    - name: name
      type: {scalar: string}
    - name: namespace
      type: {scalar: string}
    - name: resource
      type: {scalar: string}
    - name: subresource
      type: {scalar: string}
    - name: verb
      type: {scalar: string}
    - name: version
      type: {scalar: string}
- name: io.k8s.api.authorization.v1.SelfSubjectAccessReviewSpec
  map:
    fields:
    - name: nonResourceAttributes
      type: {namedType: io.k8s.api.authorization.v1.NonResourceAttributes}
    - name: resourceAttributes
      type: {namedType: io.k8s.api.authorization.v1.ResourceAttributes}
- name: io.k8s.api.authorization.v1.SubjectAccessReviewSpec
  map:
    fields:
    - name: extra
      type: {map: {elementType: {list: {elementType: {scalar: string}, elementRelationship: atomic}}}}
    - name: groups
      type: {list: {elementType: {scalar: string}, elementRelationship: atomic}}
    - name: nonResourceAttributes
      type: {namedType: io.k8s.api.authorization.v1.NonResourceAttributes}
    - name: resourceAttributes
      type: {namedType: io.k8s.api.authorization.v1.ResourceAttributes}
    - name: uid
      type: {scalar: string}
    - name: user
      type: {scalar: string}
- name: io.k8s.api.authorization.v1.SubjectAccessReviewStatus
  map:
    fields:
    - name: allowed
      type: {scalar: boolean}
      default: false
    - name: denied
      type: {scalar: boolean}
    - name: evaluationError
      type: {scalar: string}
    - name: reason
      type: {scalar: string}
- name: io.k8s.api.authorization.v1.SubjectAccessReview
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
    - name: kind
      type: {scalar: string}
    - name: metadata
      type: {namedType: io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta}
      default: {}
    - name: spec
      type: {namedType: io.k8s.api.authorization.v1.SubjectAccessReviewSpec}
      default: {}
    - name: status
      type: {namedType: io.k8s.api.authorization.v1.SubjectAccessReviewStatus}
      default: {}
- name: io.k8s.api.authorization.v1.LocalSubjectAccessReview
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
    - name: kind
      type: {scalar: string}
    - name: metadata
      type: {namedType: io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta}
      default: {}
    - name: spec
      type: {namedType: io.k8s.api.authorization.v1.SubjectAccessReviewSpec}
      default: {}
    - name: status
      type: {namedType: io.k8s.api.authorization.v1.SubjectAccessReviewStatus}
      default: {}
- name: io.k8s.api.authorization.v1.SelfSubjectAccessReview
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
    - name: kind
      type: {scalar: string}
    - name: metadata
      type: {namedType: io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta}
      default: {}
    - name: spec
      type: {namedType: io.k8s.api.authorization.v1.SelfSubjectAccessReviewSpec}
      default: {}
    - name: status
      type: {namedType: io.k8s.api.authorization.v1.SubjectAccessReviewStatus}
      default: {}
- name: io.k8s.api.authentication.v1.BoundObjectReference
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
    - name: kind
      type: {scalar: string}
    - name: name
      type: {scalar: string}
    - name: uid
      type: {scalar: string}
- name: io.k8s.api.authentication.v1.TokenRequest
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
    - name: kind
      type: {scalar: string}
    - name: metadata
      type: {namedType: io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta}
      default: {}
    - name: spec
      type: {namedType: io.k8s.api.authentication.v1.TokenRequestSpec}
      default: {}
    - name: status
      type: {namedType: io.k8s.api.authentication.v1.TokenRequestStatus}
      default: {}
- name: io.k8s.api.authentication.v1.TokenRequestSpec
  map:
    fields:
    - name: attestations
      type: {map: {elementType: {list: {elementType: {scalar: string}, elementRelationship: atomic}}}}
    - name: audiences
      type: {list: {elementType: {scalar: string}, elementRelationship: atomic}}
    - name: boundObjectRef
      type: {namedType: io.k8s.api.authentication.v1.BoundObjectReference}
    - name: expirationSeconds
      type: {scalar: numeric}
- name: io.k8s.api.authentication.v1.TokenRequestStatus
  map:
    fields:
    - name: expirationTimestamp
      type: {namedType: io.k8s.apimachinery.pkg.apis.meta.v1.Time}
    - name: token
      type: {scalar: string}
      default: ""
- name: io.k8s.api.authentication.v1.TokenReview
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
    - name: kind
      type: {scalar: string}
    - name: metadata
      type: {namedType: io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta}
      default: {}
    - name: spec
      type: {namedType: io.k8s.api.authentication.v1.TokenReviewSpec}
      default: {}
    - name: status
      type: {namedType: io.k8s.api.authentication.v1.TokenReviewStatus}
      default: {}
- name: io.k8s.api.authentication.v1.TokenReviewSpec
  map:
    fields:
    - name: audiences
      type: {list: {elementType: {scalar: string}, elementRelationship: atomic}}
    - name: token
      type: {scalar: string}
- name: io.k8s.api.authentication.v1.TokenReviewStatus
  map:
    fields:
    - name: audiences
      type: {list: {elementType: {scalar: string}, elementRelationship: atomic}}
    - name: authenticated
      type: {scalar: boolean}
    - name: error
      type: {scalar: string}
    - name: user
      type: {namedType: io.k8s.api.authentication.v1.UserInfo}
      default: {}
- name: io.k8s.api.authentication.v1.UserInfo
  map:
    fields:
    - name: extra
      type: {map: {elementType: {list: {elementType: {scalar: string}, elementRelationship: atomic}}}}
    - name: groups
      type: {list: {elementType: {scalar: string}, elementRelationship: atomic}}
    - name: uid
      type: {scalar: string}
    - name: username
      type: {scalar: string}
- name: io.k8s.api.autoscaling.v1.Scale
  map:
    fields:
    - name: apiVersion
      type: {scalar: string}
    - name: kind
      type: {scalar: string}
    - name: metadata
      type: {namedType: io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta}
      default: {}
    - name: spec
      type: {namedType: io.k8s.api.autoscaling.v1.ScaleSpec}
      default: {}
    - name: status
      type: {namedType: io.k8s.api.autoscaling.v1.ScaleStatus}
      default: {}
- name: io.k8s.api.autoscaling.v1.ScaleSpec
  map:
    fields:
    - name: replicas
      type: {scalar: numeric}
- name: io.k8s.api.autoscaling.v1.ScaleStatus
  map:
    fields:
    - name: replicas
      type: {scalar: numeric}
      default: 0
    - name: selector
      type: {scalar: string}
`

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gen FILE")
	}
	source, err := sources()
	if err != nil {
		log.Fatal(err)
	}
	data, err := encode(source)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], data, 0o644); err != nil {
		log.Fatal(err)
	}
}

// sources returns all types as YAML.
func sources() (string, error) {
	all := "types:" + more
	for _, pkg := range []string{
		"k8s.io/client-go/applyconfigurations/internal",
		"k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration/internal",
		"k8s.io/kube-aggregator/pkg/client/applyconfiguration/internal",
	} {
		types, err := applySchema(pkg)
		if err != nil {
			return "", err
		}
		all += strings.TrimPrefix(types, "types:\n")
	}
	return all, nil
}

// applySchema returns the YAML text in the longest string literal of an internal
// package, which cannot be imported.
func applySchema(pkg string) (string, error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		return "", fmt.Errorf("finding %s: %w", pkg, err)
	}
	file := filepath.Join(strings.TrimSpace(string(dir)), "internal.go")
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return "", err
	}
	longest := ""
	ast.Inspect(parsed, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && len(lit.Value) > len(longest) {
			longest = lit.Value
		}
		return true
	})
	return strconv.Unquote(longest)
}

func encode(source string) ([]byte, error) {
	// The library's struct tags are for another YAML package; its field names
	// are what the tags say, in lower case.
	document, err := yaml.YAMLToJSON([]byte(source))
	if err != nil {
		return nil, err
	}
	var in struct{ Types []node }
	if err := json.Unmarshal(document, &in); err != nil {
		return nil, err
	}
	sort.SliceStable(in.Types, func(i, j int) bool { return in.Types[i].Name < in.Types[j].Name })
	var out bytes.Buffer
	for i, t := range in.Types {
		if i > 0 && in.Types[i-1].Name == t.Name {
			continue // of the types that all refer to, the first is taken
		}
		out.WriteString(t.Name + "\t")
		t.atom(&out)
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}

// node is a type, a reference to one or a field in the YAML form.
type node struct {
	Name                string
	NamedType           string
	ElementRelationship string
	Scalar              string
	List                *struct {
		ElementType         node
		ElementRelationship string
		Keys                []string
	}
	Map *struct {
		Fields []struct {
			Name    string
			Type    node
			Default json.RawMessage
		}
		ElementType         *node
		ElementRelationship string
	}
}

func (n node) atom(out *bytes.Buffer) {
	if n.Scalar != "" {
		out.WriteByte(n.Scalar[0])
	}
	if l := n.List; l != nil {
		out.WriteByte('[')
		out.WriteByte(relationship(l.ElementRelationship))
		for _, key := range l.Keys {
			out.WriteString(key + ",")
		}
		out.WriteByte(':')
		l.ElementType.ref(out)
		out.WriteByte(']')
	}
	if m := n.Map; m != nil {
		out.WriteByte('{')
		out.WriteByte(relationship(m.ElementRelationship))
		for _, f := range m.Fields {
			out.WriteString(f.Name + ":")
			f.Type.ref(out)
			if len(f.Default) > 0 && string(f.Default) != "null" {
				var compact bytes.Buffer
				if err := json.Compact(&compact, f.Default); err != nil {
					log.Fatal(err)
				}
				out.WriteString("=" + compact.String())
			}
			out.WriteByte(';')
		}
		if m.ElementType != nil {
			out.WriteByte('*')
			m.ElementType.ref(out)
		}
		out.WriteByte('}')
	}
}

func (n node) ref(out *bytes.Buffer) {
	if n.NamedType != "" {
		out.WriteString("@" + n.NamedType + ",")
	} else {
		out.WriteByte('(')
		n.atom(out)
		out.WriteByte(')')
	}
	if n.ElementRelationship != "" {
		out.WriteByte('!')
		out.WriteByte(relationship(n.ElementRelationship))
	}
}

func relationship(r string) byte {
	switch schema.ElementRelationship(r) {
	case schema.Atomic:
		return 'a'
	case schema.Associative:
		return 'm'
	case schema.Separable:
		return 'p'
	}
	return '-'
}
