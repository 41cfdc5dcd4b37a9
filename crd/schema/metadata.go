package schema

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// Embedded resources have apiVersion, kind and metadata like the object itself. The schema
// does not describe them.

// Coerce brings the metadata of the object and of embedded resources into the form of
// ObjectMeta, and returns the paths of unknown fields, sorted. A field of the wrong type is
// an error; if drop is set, as for stored objects, it is removed.
func (s *Schema) Coerce(obj map[string]any, drop bool) (unknown []string, err *field.Error) {
	c := coercer{drop: drop}
	err = c.object(nil, obj, s.root, true)
	slices.Sort(c.unknown)
	return c.unknown, err
}

type coercer struct {
	drop    bool
	unknown []string
}

func (c *coercer) value(path *field.Path, v any, n *node) *field.Error {
	if n == nil || !n.metadata {
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		return c.object(path, v, n, n.embedded)
	case []any:
		for i, item := range v {
			if err := c.value(path.Index(i), item, n.items); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *coercer) object(path *field.Path, obj map[string]any, n *node, resource bool) *field.Error {
	if resource {
		for _, name := range []string{"apiVersion", "kind"} {
			v, ok := obj[name]
			if _, isText := v.(string); !ok || isText {
				continue
			}
			if !c.drop {
				return field.Invalid(path.Child(name), v, "must be a string")
			}
			delete(obj, name)
		}
		if err := c.metadata(path, obj); err != nil {
			return err
		}
	}
	if !n.metadata {
		return nil
	}
	for name, v := range obj {
		if resource && isMeta(name) && n.properties[name] == nil {
			continue
		}
		var err *field.Error
		if child := n.properties[name]; child != nil {
			err = c.value(path.Child(name), v, child)
		} else if n.additional != nil {
			err = c.value(path.Key(name), v, n.additional)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// metadata coerces the metadata of one resource.
func (c *coercer) metadata(path *field.Path, obj map[string]any) *field.Error {
	v, ok := obj["metadata"]
	if !ok {
		return nil
	}
	if members, ok := v.(map[string]any); ok && isCanonicalMeta(members) {
		return nil
	}
	meta, unknown, err := decodeMeta(v)
	if err != nil && c.drop {
		members, ok := v.(map[string]any)
		if !ok {
			return nil // stored in a form that cannot be decoded
		}
		meta, unknown = decodeMetaLoosely(members)
	} else if err != nil {
		return field.Invalid(path.Child("metadata"), v, err.Error())
	}
	for _, u := range unknown {
		c.unknown = append(c.unknown, path.Child("metadata").String()+"."+u)
	}
	form, err := runtime.DefaultUnstructuredConverter.ToUnstructured(meta)
	if err != nil {
		return field.Invalid(path.Child("metadata"), v, err.Error())
	}
	if meta.CreationTimestamp.IsZero() {
		delete(form, "creationTimestamp")
	}
	obj["metadata"] = form
	return nil
}

// decodeMeta decodes metadata and returns the paths of unknown fields.
func decodeMeta(v any) (*metav1.ObjectMeta, []string, error) {
	raw, err := utiljson.Marshal(v)
	if err != nil {
		return nil, nil, err
	}
	meta := &metav1.ObjectMeta{}
	strict, err := kjson.UnmarshalStrict(raw, meta)
	if err != nil {
		return nil, nil, err
	}
	var unknown []string
	for _, problem := range strict {
		if at, ok := problem.(kjson.FieldError); ok {
			unknown = append(unknown, at.FieldPath())
		}
	}
	return meta, unknown, nil
}

// decodeMetaLoosely leaves out the fields that cannot be decoded.
func decodeMetaLoosely(members map[string]any) (*metav1.ObjectMeta, []string) {
	readable := map[string]any{}
	for name, v := range members {
		if _, _, err := decodeMeta(map[string]any{name: v}); err == nil {
			readable[name] = v
		}
	}
	meta, unknown, err := decodeMeta(readable)
	if err != nil {
		return &metav1.ObjectMeta{}, nil
	}
	return meta, unknown
}

// validateResources checks apiVersion, kind and metadata of embedded resources.
func validateResources(path *field.Path, v any, n *node) (errs field.ErrorList) {
	if n == nil || !n.metadata {
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		if n.embedded {
			errs = validateResource(path, v)
		}
		for name, member := range v {
			if child := n.properties[name]; child != nil && child.metadata {
				errs = append(errs, validateResources(path.Child(name), member, child)...)
			} else if child == nil && n.additional != nil && n.additional.metadata {
				errs = append(errs, validateResources(path.Key(name), member, n.additional)...)
			}
		}
	case []any:
		for i, item := range v {
			errs = append(errs, validateResources(path.Index(i), item, n.items)...)
		}
	}
	return errs
}

func validateResource(path *field.Path, obj map[string]any) (errs field.ErrorList) {
	text, v, state := member(obj, "apiVersion")
	switch {
	case state == absent:
		errs = append(errs, field.Required(path.Child("apiVersion"), ""))
	case state == notText:
		errs = append(errs, field.Invalid(path.Child("apiVersion"), v, "must be a string"))
	case text == "":
		errs = append(errs, field.Invalid(path.Child("apiVersion"), text, "must not be empty"))
	default:
		if _, err := schema.ParseGroupVersion(text); err != nil {
			errs = append(errs, field.Invalid(path.Child("apiVersion"), text, err.Error()))
		}
	}
	text, v, state = member(obj, "kind")
	switch {
	case state == absent:
		errs = append(errs, field.Required(path.Child("kind"), ""))
	case state == notText:
		errs = append(errs, field.Invalid(path.Child("kind"), v, "must be a string"))
	case text == "":
		errs = append(errs, field.Invalid(path.Child("kind"), text, "must not be empty"))
	default:
		if msgs := validation.IsDNS1035Label(strings.ToLower(text)); len(msgs) > 0 {
			errs = append(errs, field.Invalid(path.Child("kind"), text, "may have mixed case, but should otherwise match: "+strings.Join(msgs, ",")))
		}
	}
	if v, ok := obj["metadata"]; ok {
		meta, _, err := decodeMeta(v)
		if err != nil {
			return append(errs, field.Invalid(path.Child("metadata"), v, err.Error()))
		}
		if meta.Name == "" {
			meta.Name = "fakename" // an embedded resource needs no name
		}
		errs = append(errs, apivalidation.ValidateObjectMeta(meta, meta.Namespace != "", pathSegment, path.Child("metadata"))...)
	}
	return errs
}

// States of a field that should be a string.
const (
	isText = iota
	notText
	absent
)

func member(obj map[string]any, name string) (text string, v any, state int) {
	v, ok := obj[name]
	if !ok {
		return "", nil, absent
	}
	if text, ok = v.(string); !ok {
		return "", v, notText
	}
	return text, v, isText
}

func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// validateLists finds duplicate items in lists of type set and map.
func validateLists(path *field.Path, v any, n *node) (errs field.ErrorList) {
	if n == nil || !n.keyed {
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if n.additional != nil && n.additional.keyed {
				errs = append(errs, validateLists(path.Key(name), member, n.additional)...)
			}
			if child := n.properties[name]; child != nil && child.keyed {
				errs = append(errs, validateLists(path.Child(name), member, child)...)
			}
		}
	case []any:
		switch n.listType {
		case "set":
			for _, i := range repeated(v) {
				errs = append(errs, field.Duplicate(path.Index(i), v[i]))
			}
		case "map":
			if distinct(v, n.listKeys) {
				break
			}
			errs = append(errs, validateKeys(path, v, n.listKeys)...)
		}
		if n.items == nil || !n.items.keyed {
			break
		}
		for i, item := range v {
			errs = append(errs, validateLists(path.Index(i), item, n.items)...)
		}
	}
	return errs
}

// validateKeys finds items of a map list that have the same keys.
func validateKeys(path *field.Path, list []any, names []string) (errs field.ErrorList) {
	keys := make([]any, len(list))
	for i, item := range list {
		obj, ok := item.(map[string]any)
		if !ok && item != nil {
			return field.ErrorList{field.Invalid(path.Index(i), item, "must be an object for an array of list-type map")}
		}
		key := map[string]any{}
		for _, name := range names {
			if v, ok := obj[name]; ok {
				key[name] = v
			}
		}
		keys[i] = key
	}
	for _, i := range repeated(keys) {
		errs = append(errs, field.Duplicate(path.Index(i), keys[i]))
	}
	return errs
}

// distinct reports whether all items surely have different keys. It decides only the usual
// case of up to 16 items with one string key.
func distinct(list []any, names []string) bool {
	if len(names) != 1 {
		return false
	}
	for i, item := range list {
		obj, _ := item.(map[string]any)
		key, ok := obj[names[0]].(string)
		if !ok || i >= 16 {
			return false
		}
		for _, before := range list[:i] {
			if before.(map[string]any)[names[0]] == key {
				return false
			}
		}
	}
	return true
}

// repeated returns the indexes of values that occur for the second time.
func repeated(list []any) (at []int) {
	if len(list) < 2 {
		return nil
	}
	if len(list) == 2 {
		if a, ok := list[0].(string); ok && a != list[1] {
			return nil
		}
	}
	seen := make(map[any]int, len(list))
	for i, v := range list {
		var key any = v
		switch v.(type) {
		case map[string]any, []any:
			b, err := json.Marshal(v)
			if err != nil {
				continue
			}
			key = rawKey(b)
		}
		if seen[key]++; seen[key] == 2 {
			at = append(at, i)
		}
	}
	return at
}

// rawKey is a value as JSON; its type makes it differ from any string.
type rawKey string
