package schema

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"sync"
	"unicode/utf8"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/common"
	celopenapi "k8s.io/apiserver/pkg/cel/openapi"
	openapierrors "k8s.io/kube-openapi/pkg/validation/errors"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"

	"github.com/apikeel/kelson/internal/boundedregexp"
)

// Validate returns the errors of an object, without those of CEL rules.
func (s *Schema) Validate(ctx context.Context, obj map[string]any) field.ErrorList {
	errs := s.values(ctx, obj, nil)
	errs = append(errs, validateResources(nil, obj, s.root)...)
	return append(errs, validateLists(nil, obj, s.root)...)
}

// ValidateUpdate returns the errors of a changed object. Errors in unchanged values are
// ignored (ratcheting).
func (s *Schema) ValidateUpdate(ctx context.Context, obj, old map[string]any) field.ErrorList {
	errs := s.values(ctx, obj, old)
	errs = append(errs, validateResources(nil, obj, s.root)...)
	return append(errs, s.lists(obj, old)...)
}

// ValidateStatus returns the errors of an object through the status subresource: only the
// status is validated.
func (s *Schema) ValidateStatus(ctx context.Context, obj, old map[string]any) field.ErrorList {
	return append(s.status(ctx, obj, old), s.lists(obj, old)...)
}

// lists checks sets and maps. If the old object has duplicates, the new one may too.
func (s *Schema) lists(obj, old map[string]any) field.ErrorList {
	errs := validateLists(nil, obj, s.root)
	if len(errs) > 0 && len(validateLists(nil, old, s.root)) > 0 {
		return nil
	}
	return errs
}

// values checks the values of an object; old is nil on create.
func (s *Schema) values(ctx context.Context, obj, old map[string]any) field.ErrorList {
	work := boundedregexp.NewWork(ctx, boundedregexp.MaxWork)
	if s.root.holds(obj, work) {
		return nil
	}
	schema, err := s.slow.schema(s.props)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	if schema == nil {
		return nil
	}
	var was *common.CorrelatedObject
	if old != nil {
		was = common.NewCorrelatedObject(obj, old, &celopenapi.Schema{Schema: schema})
	}
	return explainer{s.patterns, work}.explain(nil, schema, obj, was)
}

// status checks the status of an object.
func (s *Schema) status(ctx context.Context, obj, old map[string]any) field.ErrorList {
	status, ok := obj["status"]
	n := s.root.properties["status"]
	work := boundedregexp.NewWork(ctx, boundedregexp.MaxWork)
	if !ok || n == nil || n.holds(status, work) {
		return nil
	}
	schema, err := s.slow.schema(s.props)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	part := schema.Properties["status"]
	was := common.NewCorrelatedObject(obj, old, &celopenapi.Schema{Schema: schema}).Key("status")
	return explainer{s.patterns, work}.explain(field.NewPath("status"), &part, status, was)
}

// holds reports whether a value is surely valid. It is not if that exceeds what may be spent.
func (n *node) holds(v any, work *boundedregexp.Work) bool {
	if v == nil {
		return n.nullable && !n.unsure && n.enum == nil && n.allOf == nil && n.anyOf == nil
	}
	if n.unsure || work.Spend(lookWork+int64(len(n.enum))) != nil || !n.holdsKind(v, work) {
		return false
	}
	if n.enum != nil && !n.among(v) {
		return false
	}
	for _, all := range n.allOf {
		if !all.holds(v, work) {
			return false
		}
	}
	for i, any := range n.anyOf {
		if any.holds(v, work) {
			break
		}
		if i == len(n.anyOf)-1 {
			return false
		}
	}
	return true
}

// among reports whether a value is one of the enum. It decides only for scalars.
func (n *node) among(v any) bool {
	switch v.(type) {
	case string, bool, int64:
		for _, e := range n.enum {
			if e == v {
				return true
			}
		}
	}
	return false
}

func (n *node) holdsKind(v any, work *boundedregexp.Work) bool {
	switch v := v.(type) {
	case map[string]any:
		return (n.kind == kindObject || n.kind == kindAny) && n.holdsObject(v, work)
	case []any:
		return (n.kind == kindArray || n.kind == kindAny) && n.holdsArray(v, work)
	case string:
		return (n.kind == kindString || n.kind == kindIntOrString || n.kind == kindAny) && n.holdsString(v, work)
	case int64:
		switch n.kind {
		case kindInteger, kindNumber, kindIntOrString, kindAny:
			return n.holdsNumber(float64(v)) && v == int64(float64(v))
		}
	case float64:
		return (n.kind == kindNumber || n.kind == kindAny) && n.holdsNumber(v)
	case bool:
		return n.kind == kindBoolean || n.kind == kindAny
	}
	return false
}

func (n *node) holdsObject(obj map[string]any, work *boundedregexp.Work) bool {
	for _, name := range n.required {
		if _, ok := obj[name]; !ok {
			return false
		}
	}
	if n.minProps != nil && int64(len(obj)) < *n.minProps || n.maxProps != nil && int64(len(obj)) > *n.maxProps {
		return false
	}
	for name, v := range obj {
		child := n.properties[name]
		if child == nil {
			child = n.additional
		}
		if child != nil && !child.holds(v, work) {
			return false
		}
	}
	return true
}

func (n *node) holdsArray(list []any, work *boundedregexp.Work) bool {
	if n.minItems != nil && int64(len(list)) < *n.minItems || n.maxItems != nil && int64(len(list)) > *n.maxItems {
		return false
	}
	if n.items == nil {
		return true
	}
	for _, item := range list {
		if !n.items.holds(item, work) {
			return false
		}
	}
	return true
}

func (n *node) holdsString(s string, work *boundedregexp.Work) bool {
	if n.minLength != nil || n.maxLength != nil {
		length := int64(utf8.RuneCountInString(s))
		if n.minLength != nil && length < *n.minLength || n.maxLength != nil && length > *n.maxLength {
			return false
		}
	}
	if n.pattern != nil {
		if matches, err := n.pattern.Match(work, s); err != nil || !matches {
			return false
		}
	}
	return n.format == "" || strfmt.Default.Validates(n.format, s)
}

func (n *node) holdsNumber(f float64) bool {
	// Ranges of formats such as int32 are left to the slow validator.
	if math.Abs(f) > math.MaxInt32 || n.multipleOf != nil {
		return false
	}
	if n.minimum != nil && (f < *n.minimum || n.above && f == *n.minimum) {
		return false
	}
	return n.maximum == nil || f < *n.maximum || !n.below && f == *n.maximum
}

// slow is the schema in the form of kube-openapi, made on first use.
type slow struct {
	once sync.Once
	made *spec.Schema
	err  error
}

func (s *slow) schema(props *apiextensions.JSONSchemaProps) (*spec.Schema, error) {
	s.once.Do(func() {
		if props != nil {
			s.made, s.err = OpenAPI(props)
		}
	})
	return s.made, s.err
}

// OpenAPI returns a schema as the validator of kube-openapi needs it.
func OpenAPI(props *apiextensions.JSONSchemaProps) (*spec.Schema, error) {
	out, err := openAPI(props)
	if err == nil {
		prepare(out)
	}
	return out, err
}

func openAPI(props *apiextensions.JSONSchemaProps) (*spec.Schema, error) {
	raw, err := json.Marshal(props)
	if err != nil {
		return nil, err
	}
	out := &spec.Schema{}
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, err
	}
	keepIntegers(out, props)
	return out, nil
}

// keepIntegers restores integers in enums: decoding has made them floats, and values are
// compared with their types.
func keepIntegers(s *spec.Schema, p *apiextensions.JSONSchemaProps) {
	if s == nil || p == nil {
		return
	}
	for i := range p.Enum {
		switch s.Enum[i].(type) {
		case float64, map[string]any, []any:
			var v any
			if utiljson.Unmarshal(p.Enum[i].Raw, &v) == nil {
				s.Enum[i] = v
			}
		}
	}
	each := func(list []spec.Schema, props []apiextensions.JSONSchemaProps) {
		for i := range props {
			keepIntegers(&list[i], &props[i])
		}
	}
	each(s.AllOf, p.AllOf)
	each(s.AnyOf, p.AnyOf)
	each(s.OneOf, p.OneOf)
	keepIntegers(s.Not, p.Not)
	for name, below := range p.Properties {
		own := s.Properties[name]
		keepIntegers(&own, &below)
		s.Properties[name] = own
	}
	if p.AdditionalProperties != nil && s.AdditionalProperties != nil {
		keepIntegers(s.AdditionalProperties.Schema, p.AdditionalProperties.Schema)
	}
	if p.Items != nil && s.Items != nil {
		keepIntegers(s.Items.Schema, p.Items.Schema)
	}
}

// prepare adds the meaning of x-kubernetes extensions, and removes formats that are not
// validated.
func prepare(s *spec.Schema) {
	if both, _ := s.Extensions.GetBool("x-kubernetes-int-or-string"); both {
		s.Type = spec.StringOrArray{"integer", "string"}
	}
	kind := ""
	if len(s.Type) == 1 {
		kind = s.Type[0]
	}
	if !checkedFormat(kind, s.Format) {
		s.Format = ""
	}
	each := func(list []spec.Schema) {
		for i := range list {
			prepare(&list[i])
		}
	}
	each(s.AllOf)
	each(s.AnyOf)
	each(s.OneOf)
	if s.Not != nil {
		prepare(s.Not)
	}
	for name, p := range s.Properties {
		prepare(&p)
		s.Properties[name] = p
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		prepare(s.AdditionalProperties.Schema)
	}
	if s.Items != nil && s.Items.Schema != nil {
		prepare(s.Items.Schema)
	}
}

// explain returns what is wrong with a value in the words of the API. was is nil if there is
// nothing to compare with.
func (x explainer) explain(at *field.Path, schema *spec.Schema, v any, was *common.CorrelatedObject) (errs field.ErrorList) {
	found := x.value(schema, v, "", was)
	switch err := x.work.Err(); err {
	case nil:
	case boundedregexp.ErrTooCostly:
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "validation failed: comparing the values with the patterns and alternatives of the schema exceeds the cost limit of a request")}
	default:
		return field.ErrorList{field.InternalError(at, err)}
	}
	for _, err := range found.errs {
		problem, ok := err.(*openapierrors.Validation)
		if !ok {
			errs = append(errs, field.Invalid(at, "", err.Error()))
			continue
		}
		path := at
		if problem.Name != "" && problem.Name != "." {
			path = path.Child(strings.TrimPrefix(problem.Name, "."))
		}
		errs = append(errs, fieldError(path, problem))
	}
	return errs
}

func fieldError(path *field.Path, problem *openapierrors.Validation) *field.Error {
	number := func(v any) int {
		if n, ok := v.(int64); ok {
			return int(n)
		}
		return -1
	}
	var value any = ""
	if problem.Value != nil {
		value = problem.Value
	}
	switch problem.Code() {
	case openapierrors.RequiredFailCode:
		return field.Required(path, "")
	case openapierrors.EnumFailCode:
		allowed := make([]string, 0, len(problem.Values))
		for _, v := range problem.Values {
			text, ok := v.(string)
			if !ok {
				b, _ := json.Marshal(v)
				text = string(b)
			}
			allowed = append(allowed, text)
		}
		return field.NotSupported(path, problem.Value, allowed)
	case openapierrors.TooLongFailCode:
		return field.TooLong(path, "", number(problem.Valid))
	case openapierrors.MaxItemsFailCode, openapierrors.TooManyPropertiesCode:
		return field.TooMany(path, number(problem.Value), number(problem.Valid))
	case openapierrors.InvalidTypeCode:
		return field.TypeInvalid(path, value, problem.Error())
	}
	return field.Invalid(path, value, problem.Error())
}
