// Package schema applies the schema of a custom resource to objects: pruning, defaulting,
// coercion of metadata and validation. Start at Compile and Schema. The package must not
// know definitions or how objects are stored.
//
// A Schema is compiled from the JSONSchemaProps of a definition on first use, and shared
// by all versions with an equal schema. It assumes that the schema is structural: package
// crd/rules validates that.
//
// # Validation in two steps
//
// Nearly every object is valid, so a fast pass over the object (node.holds) looks first
// whether it surely is. Only if the fast pass cannot tell, explainer runs; it decides, and its
// error messages are those of kube-apiserver. Both spend of the same boundedregexp.Work.
package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/apikeel/kelson/crd/cel"
	"github.com/apikeel/kelson/internal/boundedregexp"
)

// maxDepth bounds how deeply schemas nest.
const maxDepth = 128

// Schema is a compiled schema. It is immutable.
type Schema struct {
	root     *node
	props    *apiextensions.JSONSchemaProps
	patterns *boundedregexp.Set
	room     int // bytes of compiled rules that are kept
	slow     slow
	rules    rules
}

// node is the schema of one value.
type node struct {
	kind       kind
	nullable   bool
	preserve   bool // x-kubernetes-preserve-unknown-fields
	embedded   bool // x-kubernetes-embedded-resource
	properties map[string]*node
	// additional is the schema of additionalProperties; open says that properties that
	// are not listed are allowed.
	additional *node
	open       bool
	items      *node

	fallback any // the default
	// fallbackSize is how long the default is as a text.
	fallbackSize int
	// defaults says that there is a default here or below; so do the next for theirs.
	defaults bool
	// metadata says that there is an embedded resource here or below.
	metadata bool
	// keyed says that there is a list of type set or map here or below.
	keyed bool
	// ruled says that there are CEL rules here or below.
	ruled bool
	// bare says that there is a format without a type here or below.
	bare bool

	listType string
	listKeys []string

	// Validation keywords. unsure says that there are others, which holds does not
	// know.
	required     []string
	enum         []any
	minimum      *float64
	maximum      *float64
	above, below bool // the bounds are exclusive
	multipleOf   *float64
	minLength    *int64
	maxLength    *int64
	minItems     *int64
	maxItems     *int64
	minProps     *int64
	maxProps     *int64
	pattern      *boundedregexp.Pattern
	format       string
	allOf, anyOf []*node
	unsure       bool
}

// kind is a JSON type; kindAny stands for a schema without a type.
type kind uint8

const (
	kindAny kind = iota
	kindObject
	kindArray
	kindString
	kindInteger
	kindNumber
	kindBoolean
	kindIntOrString
)

// Compile makes a Schema, which keeps so many bytes of compiled rules. It returns an error for a
// schema that no definition may have.
func Compile(props *apiextensions.JSONSchemaProps, room int) (*Schema, error) {
	patterns := boundedregexp.NewSet()
	root, err := compile(props, patterns, 0)
	if err != nil {
		return nil, err
	}
	if root == nil {
		root = &node{kind: kindObject, preserve: true}
	}
	s := &Schema{root: root, props: props, patterns: patterns, room: room}
	// Defaults must not have unknown fields themselves.
	pruneDefaults(root)
	return s, nil
}

// schemaWeight is the estimated memory in bytes of each nested schema.
const schemaWeight = 2 << 10

// Weight returns the estimated memory in bytes of the schema when all of it is in use.
func (s *Schema) Weight() int {
	nested, rules := weigh(s.props)
	return nested + min(rules, s.room) + s.patterns.Weight()
}

// weigh returns the estimated memory of a schema without its rules, and of these.
func weigh(p *apiextensions.JSONSchemaProps) (nested, rules int) {
	if p == nil {
		return 0, 0
	}
	nested, rules = schemaWeight, cel.Weight(p.XValidations)
	add := func(p *apiextensions.JSONSchemaProps) {
		n, r := weigh(p)
		nested, rules = nested+n, rules+r
	}
	for name := range p.Properties {
		below := p.Properties[name]
		add(&below)
	}
	if p.Items != nil {
		add(p.Items.Schema)
	}
	if p.AdditionalProperties != nil {
		add(p.AdditionalProperties.Schema)
	}
	return nested, rules
}

func compile(p *apiextensions.JSONSchemaProps, patterns *boundedregexp.Set, depth int) (*node, error) {
	if p == nil {
		return nil, nil
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("the schema is nested more than %d levels deep", maxDepth)
	}
	n := &node{
		nullable: p.Nullable, embedded: p.XEmbeddedResource, required: p.Required,
		minimum: p.Minimum, maximum: p.Maximum, above: p.ExclusiveMinimum, below: p.ExclusiveMaximum, multipleOf: p.MultipleOf,
		minLength: p.MinLength, maxLength: p.MaxLength, minItems: p.MinItems, maxItems: p.MaxItems,
		minProps: p.MinProperties, maxProps: p.MaxProperties,
		listKeys: p.XListMapKeys, metadata: p.XEmbeddedResource, ruled: len(p.XValidations) > 0,
		bare: p.Type == "" && p.Format != "",
	}
	switch {
	case p.XIntOrString:
		n.kind, n.unsure = kindIntOrString, p.Type != ""
	case p.Type == "object":
		n.kind = kindObject
	case p.Type == "array":
		n.kind = kindArray
	case p.Type == "string":
		n.kind = kindString
	case p.Type == "integer":
		n.kind = kindInteger
	case p.Type == "number":
		n.kind = kindNumber
	case p.Type == "boolean":
		n.kind = kindBoolean
	case p.Type != "":
		n.unsure = true
	}
	if p.XPreserveUnknownFields != nil {
		n.preserve = *p.XPreserveUnknownFields
	}
	if p.XListType != nil {
		n.listType = *p.XListType
		n.keyed = n.listType == "set" || n.listType == "map"
	}
	switch n.kind {
	case kindAny, kindString, kindIntOrString:
		if checkedFormat("", p.Format) {
			n.format = p.Format
		}
	}
	if p.Pattern != "" {
		n.pattern = patterns.Pattern(p.Pattern)
	}
	n.unsure = n.unsure || p.UniqueItems || len(p.OneOf) > 0 || p.Not != nil || len(p.PatternProperties) > 0 ||
		len(p.Dependencies) > 0 || p.Ref != nil || p.AdditionalItems != nil
	if p.Default != nil {
		if err := utiljson.Unmarshal(p.Default.Raw, &n.fallback); err != nil {
			return nil, fmt.Errorf("default: %w", err)
		}
		n.defaults = n.fallback != nil
		var compact bytes.Buffer
		if err := json.Compact(&compact, p.Default.Raw); err != nil {
			return nil, fmt.Errorf("default: %w", err)
		}
		n.fallbackSize = compact.Len()
	}
	for _, raw := range p.Enum {
		var v any // null leaves v nil
		if err := utiljson.Unmarshal(raw.Raw, &v); err != nil && len(raw.Raw) > 0 {
			return nil, fmt.Errorf("enum: %w", err)
		}
		n.enum = append(n.enum, v)
	}
	if err := n.compileChildren(p, patterns, depth+1); err != nil {
		return nil, err
	}
	var err error
	if n.allOf, err = compileAll(p.AllOf, patterns, depth+1); err != nil {
		return nil, err
	}
	n.anyOf, err = compileAll(p.AnyOf, patterns, depth+1)
	for _, part := range slices.Concat(n.allOf, n.anyOf) {
		n.bare = n.bare || part.bare
	}
	return n, err
}

func compileAll(list []apiextensions.JSONSchemaProps, patterns *boundedregexp.Set, depth int) ([]*node, error) {
	var nodes []*node
	for i := range list {
		n, err := compile(&list[i], patterns, depth)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func (n *node) compileChildren(p *apiextensions.JSONSchemaProps, patterns *boundedregexp.Set, depth int) (err error) {
	for name := range p.Properties {
		sub := p.Properties[name]
		child, err := compile(&sub, patterns, depth)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if n.properties == nil {
			n.properties = make(map[string]*node, len(p.Properties))
		}
		n.properties[name] = child
		n.adopt(child)
	}
	if a := p.AdditionalProperties; a != nil {
		n.open = a.Allows || a.Schema != nil
		if n.additional, err = compile(a.Schema, patterns, depth); err != nil {
			return err
		}
		n.adopt(n.additional)
		n.unsure = n.unsure || !n.open
	}
	if p.Items != nil {
		if n.items, err = compile(p.Items.Schema, patterns, depth); err != nil {
			return err
		}
		n.adopt(n.items)
		n.unsure = n.unsure || len(p.Items.JSONSchemas) > 0
	}
	return nil
}

// adopt sets the flags that a child has.
func (n *node) adopt(child *node) {
	if child != nil {
		n.defaults = n.defaults || child.defaults
		n.metadata = n.metadata || child.metadata
		n.keyed = n.keyed || child.keyed
		n.ruled = n.ruled || child.ruled
		n.bare = n.bare || child.bare
	}
}

// child returns the schema of a property, and whether the property is allowed.
func (n *node) child(name string) (c *node, known bool) {
	if c, ok := n.properties[name]; ok {
		return c, true
	}
	return n.additional, n.open
}

// ChecksFormat reports whether a format is validated for values of a type.
func ChecksFormat(kind, format string) bool { return checkedFormat(kind, format) }

// checkedFormat reports whether a format is validated for values of a type; other formats
// are documentation. The type "" stands for schemas with no type or several.
func checkedFormat(kind, format string) bool {
	switch kind {
	case "", "string":
		switch strings.ReplaceAll(format, "-", "") {
		case "bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3", "uuid4", "uuid5",
			"isbn", "isbn10", "isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "password", "date", "duration",
			"datetime", "k8sshortname", "k8slongname":
			return true
		}
	case "integer":
		return format == "int32" || format == "int64"
	case "number":
		return format == "float" || format == "double"
	}
	return false
}
