package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"google.golang.org/protobuf/types/known/structpb"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/mutation/dynamic"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/apikeel/kelson/admission/expression"
	"github.com/apikeel/kelson/admission/match"
)

// apply applies one mutation of a policy. An API status as error ends the request; other
// errors are failures of the policy.
func (m *Mutating) apply(ctx context.Context, in expression.Input, p patch) error {
	if err := p.program.Err(); err != nil {
		return err
	}
	kind, ok := m.cfg.Types(in.Form.Kind)
	if !ok {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("Resource kind %s not found. There can be a delay between when CustomResourceDefinitions are created and when they are available.", in.Form.Kind))
	}
	in.Maps = true
	e, err := in.Begin(expression.Budget)
	if err != nil {
		return err
	}
	v, failed, err := e.Eval(ctx, p.program)
	if err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	object, _, err := in.Form.Objects()
	if err != nil {
		return err
	}
	var changed runtime.Object
	if p.json {
		changed, err = m.patched(in, object, v)
	} else {
		changed, err = m.merged(in, object, v, kind)
	}
	if err != nil || changed == nil {
		return err
	}
	_, defaults := in.Form.Empty()
	if err := in.Form.Prune(changed); err != nil {
		return err
	}
	defaults(changed)
	if err := in.Form.Replace(changed); err != nil {
		return match.InternalError(fmt.Errorf("failed to convert object: %w", err))
	}
	if m := in.Write.Memory; m != nil {
		m.Settle(true)
	}
	return nil
}

// patched applies a JSON patch; nil if a test operation in it fails.
func (m *Mutating) patched(in expression.Input, object runtime.Object, v ref.Val) (runtime.Object, error) {
	ops, err := operations(v)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("failed to create JSON patch: %w", err)
	}
	text, err = in.Form.Apply(text, ops)
	if errors.Is(err, jsonpatch.ErrTestFailed) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("JSON Patch: %w", err)
	}
	changed, err := in.Form.Decode(text, true)
	if err != nil {
		return nil, match.InternalError(err)
	}
	return changed, nil
}

// operations converts a list of CEL values to a JSON patch.
func operations(v ref.Val) (jsonpatch.Patch, error) {
	list, ok := v.(traits.Lister)
	if !ok {
		return nil, errors.New("type mismatch: JSONPatchType.expression should evaluate to array")
	}
	ops := jsonpatch.Patch{}
	for it := list.Iterator(); it.HasNext() == types.True; {
		native, err := it.Next().ConvertToNative(reflect.TypeFor[*mutation.JSONPatchVal]())
		if err != nil {
			return nil, fmt.Errorf("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch: %w", err)
		}
		op, ok := native.(*mutation.JSONPatchVal)
		if !ok {
			return nil, fmt.Errorf("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of %T", native)
		}
		fields := map[string]any{"op": op.Op, "path": op.Path}
		if op.From != "" {
			fields["from"] = op.From
		}
		if op.Val != nil {
			if fields["value"], err = plain(op.Val); err != nil {
				return nil, err
			}
		}
		operation := jsonpatch.Operation{}
		for key, field := range fields {
			text, err := json.Marshal(field)
			if err != nil {
				return nil, fmt.Errorf("JSONPath valueExpression evaluated to a type that could not marshal to JSON: %w", err)
			}
			operation[key] = (*json.RawMessage)(&text)
		}
		ops = append(ops, operation)
	}
	return ops, nil
}

// plain converts a CEL value to a JSON value.
func plain(v ref.Val) (any, error) {
	if o, ok := v.(*dynamic.ObjectVal); ok {
		if err := o.CheckTypeNamesMatchFieldPathNames(); err != nil {
			return nil, fmt.Errorf("type mismatch: %w", err)
		}
	}
	native, err := v.ConvertToNative(reflect.TypeFor[*structpb.Value]())
	if err != nil {
		return nil, fmt.Errorf("JSONPath valueExpression evaluated to a type that could not marshal to JSON: %w", err)
	}
	return native, nil
}

// merged applies a configuration by the rules of server-side apply, without field managers.
func (m *Mutating) merged(in expression.Input, object runtime.Object, v ref.Val, kind typed.ParseableType) (runtime.Object, error) {
	o, ok := v.(*dynamic.ObjectVal)
	if !ok {
		return nil, fmt.Errorf("unsupported return type from ApplyConfiguration expression: %v", v.Type())
	}
	if err := o.CheckTypeNamesMatchFieldPathNames(); err != nil {
		return nil, fmt.Errorf("type mismatch: %w", err)
	}
	fields, ok := o.Value().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("invalid return type: %T", v)
	}
	fields["apiVersion"], fields["kind"] = in.Form.Kind.GroupVersion().String(), in.Form.Kind.Kind
	result, err := merge(kind, object, fields)
	if err != nil {
		return nil, fmt.Errorf("error applying patch: %w", err)
	}
	if _, ok := object.(*unstructured.Unstructured); ok {
		return &unstructured.Unstructured{Object: result}, nil
	}
	changed, _ := in.Form.Empty()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(result, changed); err != nil {
		return nil, fmt.Errorf("unable to convert unstructured object to %v: %w", in.Form.Kind, err)
	}
	return changed, nil
}

func merge(kind typed.ParseableType, object runtime.Object, fields map[string]any) (map[string]any, error) {
	config, err := kind.FromUnstructured(fields)
	if err != nil {
		return nil, fmt.Errorf("failed to convert patch object to typed object: %w", err)
	}
	if at := atomics(nil, config.Schema(), config.TypeRef(), config.AsValue()); len(at) > 0 {
		slices.Sort(at)
		// Setting a part of an atomic value would remove the rest of it.
		return nil, fmt.Errorf("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: %v", strings.Join(at, ", "))
	}
	var live *typed.TypedValue
	if u, ok := object.(*unstructured.Unstructured); ok {
		live, err = kind.FromUnstructured(u.Object, typed.AllowDuplicates)
	} else {
		live, err = kind.FromStructured(object, typed.AllowDuplicates)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to convert original object to typed object: %w", err)
	}
	result, err := live.Merge(config)
	if err != nil {
		return nil, fmt.Errorf("failed to merge patch: %w", err)
	}
	out, ok := result.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("failed to convert typed object to object: is %T", result.AsValue().Unstructured())
	}
	return out, nil
}

// atomics returns the paths of values that are set inside of atomic lists, maps or structs.
func atomics(path fieldpath.Path, s *smd.Schema, t smd.TypeRef, v value.Value) (found []string) {
	atom, ok := s.Resolve(t)
	if !ok {
		return nil
	}
	if v.IsMap() && atom.Map != nil {
		if atom.Map.ElementRelationship == smd.Atomic {
			found = append(found, path.String())
		}
		v.AsMap().Iterate(func(key string, item value.Value) bool {
			if f, ok := atom.Map.FindField(key); ok {
				found = append(found, atomics(append(path, fieldpath.PathElement{FieldName: &key}), s, f.Type, item)...)
			}
			return true
		})
	}
	if v.IsList() && atom.List != nil {
		if atom.List.ElementRelationship == smd.Atomic {
			found = append(found, path.String())
		}
		list := v.AsList()
		for i := range list.Length() {
			found = append(found, atomics(append(path, fieldpath.PathElement{Index: &i}), s, atom.List.ElementType, list.At(i))...)
		}
	}
	return found
}
