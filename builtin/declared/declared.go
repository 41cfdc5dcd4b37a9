// Package declared validates objects by rules in a text that follows the declarative
// validation of newer Kubernetes types. Start at Parse and Rules.Judge. It must not know any
// kind.
//
// Rules are lines of text. A line without an indent names a Go type and the rules for it as a
// whole; indented lines name fields, in JSON, and the rules for each:
//
//	WorkloadSpec oneof=podGroupTemplates,compositePodGroupTemplates
//	  controllerRef immutable optional
//	  podGroupTemplates max-items=8 optional fixed-items key=name
//
// An unchanged field is not validated again (ratcheting). If one of these rules fails, the
// value of the field and all below it are not validated:
//
//	gate=NAME     may only be there if the gate is on
//	immutable     never changes; immutable=on if the gate is on
//	max-items=N
//	optional, required
//	no-set, no-unset, no-modify   what an update may not do
//	fixed-items   items with other keys do not come, and none go
//
// The other rules are all checked and reported:
//
//	reserved=SUFFIX,…   domains that are not for everybody
//	short-name, long-name, label-key, prefixed-label-key, path-segment, uuid
//	reserved-below=N    priorities that are not for everybody
//	min=N, max=N, max-length=N, max-bytes=N, grows, enum=A,B
//	key=FIELD,…   what tells the items of a list apart
//	set           the items of a list differ
package declared

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Rules are the rules of types, by their Go names.
type Rules map[string]typeRules

type typeRules struct {
	oneOf  []string
	fields []fieldRules
}

type fieldRules struct {
	name string
	by   map[string]string
}

// Parse parses rules. It panics on invalid ones: they are constants of the program.
func Parse(text string) Rules {
	rules := Rules{}
	name := ""
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		by := map[string]string{}
		for _, word := range words[1:] {
			rule, value, _ := strings.Cut(word, "=")
			if !known(rule) {
				panic("unknown rule: " + word)
			}
			by[rule] = value
		}
		if line[0] != ' ' {
			name = words[0]
			rules[name] = typeRules{oneOf: list(by["oneof"])}
			continue
		}
		t := rules[name]
		t.fields = append(t.fields, fieldRules{words[0], by})
		rules[name] = t
	}
	return rules
}

func known(rule string) bool {
	switch rule {
	case "oneof", "gate", "immutable", "max-items", "optional", "required", "no-set", "no-unset", "no-modify", "fixed-items",
		"reserved", "reserved-below", "min", "max", "max-length", "max-bytes", "grows", "enum", "key", "set":
		return true
	}
	return format(rule) != nil
}

func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

type judge func(context.Context, operation.Operation, *field.Path, *string, *string) field.ErrorList

func format(name string) judge {
	switch name {
	case "short-name":
		return validate.ShortName[string]
	case "long-name":
		return validate.LongName[string]
	case "label-key":
		return validate.LabelKey[string]
	case "prefixed-label-key":
		return validate.PrefixedLabelKey[string]
	case "path-segment":
		return validate.PathSegmentName[string]
	case "uuid":
		return validate.UUID[string]
	}
	return nil
}

// Judge validates a part of an object at path, a pointer to a struct. old is the same part
// before, a nil pointer of the same type on create. Errors are marked as resource.Declared.
func (r Rules) Judge(ctx context.Context, obj, old any, path *field.Path) field.ErrorList {
	v := &visit{rules: r, gates: features.From(ctx)}
	was := reflect.ValueOf(old)
	if v.update = !was.IsNil(); v.update {
		was = was.Elem()
	} else {
		was = reflect.Value{}
	}
	if now := reflect.ValueOf(obj).Elem(); !v.update || !same(now, was) {
		v.object(now, was, path)
	}
	return resource.Declared(v.errs...)
}

// visit is one walk through an object. Old values that do not exist are invalid
// reflect.Values.
type visit struct {
	rules  Rules
	gates  features.Gates
	update bool
	errs   field.ErrorList
}

func same(a, b reflect.Value) bool {
	return equality.Semantic.DeepEqual(a.Interface(), b.Interface())
}

func isSet(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() > 0
	case reflect.Invalid:
		return false
	}
	return !v.IsZero()
}

// member returns the field of a struct with a JSON name.
func member(v reflect.Value, name string) reflect.Value {
	if !v.IsValid() {
		return v
	}
	for i := range v.NumField() {
		if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == name {
			return v.Field(i)
		}
	}
	panic(v.Type().String() + " has no " + name)
}

func (v *visit) object(now, old reflect.Value, path *field.Path) {
	t, ok := v.rules[now.Type().Name()]
	if !ok {
		return
	}
	if len(t.oneOf) > 0 {
		v.oneOf(t.oneOf, now, old, path)
	}
	for _, f := range t.fields {
		v.field(f.by, member(now, f.name), member(old, f.name), path.Child(f.name))
	}
}

// oneOf checks that exactly one field is set, unless that is unchanged.
func (v *visit) oneOf(names []string, now, old reflect.Value, path *field.Path) {
	members := make([]validate.UnionMember, len(names))
	set := make([]validate.ExtractorFn[*reflect.Value, bool], len(names))
	for i, name := range names {
		members[i] = validate.NewUnionMember(name)
		set[i] = func(v *reflect.Value) bool { return v != nil && isSet(member(*v, name)) }
	}
	was := &old
	if !old.IsValid() {
		was = nil
	}
	v.errs = append(v.errs, validate.Union(context.Background(), v.operation(), path, &now, was, validate.NewUnionMembership(members...), set...)...)
}

func (v *visit) operation() operation.Operation {
	if v.update {
		return operation.Operation{Type: operation.Update}
	}
	return operation.Operation{Type: operation.Create}
}

func (v *visit) say(err *field.Error) { v.errs = append(v.errs, err) }

func (v *visit) field(by map[string]string, now, old reflect.Value, path *field.Path) {
	if old.IsValid() && same(now, old) || v.checkStopping(by, now, old, path) {
		return
	}
	if now.Kind() == reflect.Pointer {
		if old.IsValid() {
			old = old.Elem()
		}
		now = now.Elem()
	}
	switch now.Kind() {
	case reflect.String:
		v.text(by, now.String(), path)
	case reflect.Int32, reflect.Int64:
		v.number(by, now, old, path)
	case reflect.Slice:
		v.items(by, now, old, path)
	case reflect.Struct:
		v.object(now, old, path)
	}
}

// checkStopping checks the rules that prevent the validation of the value itself.
func (v *visit) checkStopping(by map[string]string, now, old reflect.Value, path *field.Path) bool {
	has := func(rule string) bool { _, ok := by[rule]; return ok }
	before := len(v.errs)
	missing := false
	if name, ok := by["gate"]; ok {
		if missing = !isSet(now); !missing && !v.gates.Enabled(name) {
			v.say(field.Forbidden(path, ""))
		}
	}
	if when, ok := by["immutable"]; ok && v.update && (when != "on" || v.gates.Enabled(by["gate"])) {
		v.say(field.Invalid(path, nil, "field is immutable"))
	}
	if most, ok := by["max-items"]; ok {
		if n := now.Len(); n > number(most) {
			v.say(field.TooMany(path, n, number(most)))
		}
	}
	switch set := isSet(now); {
	case !set && has("required"):
		v.say(field.Required(path, ""))
	case !set && has("optional"):
		missing = true
	}
	if was := isSet(old); v.update {
		switch set := isSet(now); {
		case has("no-set") && set && !was:
			v.say(field.Invalid(path, nil, "field cannot be set once created"))
		case has("no-unset") && !set && was:
			v.say(field.Invalid(path, nil, "field cannot be cleared once set"))
		case has("no-modify") && set && was:
			v.say(field.Invalid(path, nil, "field cannot be modified once set"))
		}
	}
	if v.update && has("fixed-items") {
		v.checkFixedKeys(list(by["key"]), now, old, path)
	}
	return missing || len(v.errs) > before
}

// checkFixedKeys checks that the keys of a list are unchanged.
func (v *visit) checkFixedKeys(key []string, now, old reflect.Value, path *field.Path) {
	for i := range now.Len() {
		if !find(old, now.Index(i), key).IsValid() {
			v.say(field.Forbidden(path.Index(i), "item may not be added"))
		}
	}
	if !old.IsValid() {
		return
	}
	for i := range old.Len() {
		if !find(now, old.Index(i), key).IsValid() {
			v.say(field.Forbidden(path, "item may not be removed"))
		}
	}
}

// find returns the item of a list with the same key as item, or an equal item if there are no
// keys.
func find(list, item reflect.Value, key []string) reflect.Value {
	if !list.IsValid() {
		return reflect.Value{}
	}
	for i := range list.Len() {
		other := list.Index(i)
		differs := func(name string) bool { return !member(other, name).Equal(member(item, name)) }
		if len(key) == 0 && same(other, item) || len(key) > 0 && !slices.ContainsFunc(key, differs) {
			return other
		}
	}
	return reflect.Value{}
}

func (v *visit) items(by map[string]string, now, old reflect.Value, path *field.Path) {
	key := list(by["key"])
	_, unique := by["set"]
	for i := range now.Len() {
		if item := now.Index(i); (unique || len(key) > 0) && find(now.Slice(0, i), item, key).IsValid() {
			v.say(field.Duplicate(path.Index(i), item.Interface()))
		}
	}
	for i := range now.Len() {
		item := now.Index(i)
		if was := find(old, item, key); !was.IsValid() || !same(item, was) {
			v.object(item, was, path.Index(i))
		}
	}
}

func (v *visit) text(by map[string]string, text string, path *field.Path) {
	ctx, op := context.Background(), v.operation()
	v.errs = append(v.errs, Reserved(text, list(by["reserved"]), path)...)
	for rule := range by {
		if f := format(rule); f != nil {
			v.errs = append(v.errs, f(ctx, op, path, &text, nil)...)
		}
	}
	if most, ok := by["max-length"]; ok {
		v.errs = append(v.errs, validate.MaxLength(ctx, op, path, &text, nil, number(most))...)
	}
	if most, ok := by["max-bytes"]; ok {
		v.errs = append(v.errs, validate.MaxBytes(ctx, op, path, &text, nil, number(most))...)
	}
	if known := list(by["enum"]); known != nil {
		for _, k := range known {
			if k == text {
				return
			}
		}
		v.say(field.NotSupported(path, text, known))
	}
}

// Reserved returns an error for a key whose domain equals one of the suffixes or ends in one.
func Reserved(key string, suffixes []string, path *field.Path) field.ErrorList {
	domain, _, _ := strings.Cut(key, "/")
	domain = strings.TrimRight(strings.TrimSpace(strings.ToLower(domain)), ".")
	for _, suffix := range suffixes {
		if strings.HasSuffix(domain, suffix) || domain == strings.Trim(suffix, ".") {
			return field.ErrorList{field.Invalid(path, key, "domain names *"+strings.Join(suffixes, ", *")+" are reserved")}
		}
	}
	return nil
}

func (v *visit) number(by map[string]string, now, old reflect.Value, path *field.Path) {
	ctx, op, n := context.Background(), v.operation(), now.Int()
	if end, ok := by["reserved-below"]; ok && n >= 0 && n < int64(number(end)) {
		v.say(field.Invalid(path, n, fmt.Sprintf("priorities 0-%d are reserved for responders with *.k8s.io suffix", number(end)-1)))
	}
	if most, ok := by["max"]; ok {
		v.errs = append(v.errs, validate.Maximum(ctx, op, path, &n, nil, int64(number(most)))...)
	}
	if least, ok := by["min"]; ok {
		v.errs = append(v.errs, validate.Minimum(ctx, op, path, &n, nil, int64(number(least)))...)
	}
	if _, ok := by["grows"]; ok && old.IsValid() {
		was := old.Int()
		v.errs = append(v.errs, validate.Monotonic(ctx, op, path, &n, &was)...)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}
