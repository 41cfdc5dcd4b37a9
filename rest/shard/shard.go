// Package shard reads shard selectors: the parameter shardSelector of lists and watches,
// which divides the objects of a resource among several clients by a hash of their
// metadata. Start at Parse.
//
// A selector is CEL, which is parsed and never evaluated:
//
//	shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')
//
// Several ranges are joined by ||.
package shard

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/parser"
	"k8s.io/apimachinery/pkg/sharding"
)

// The fields by which objects can be divided.
const (
	uidPath       = "object.metadata.uid"
	namespacePath = "object.metadata.namespace"
)

// top is the end of the range of all hashes, the only bound of 17 digits.
const top = "0x10000000000000000"

// Selector is a parsed selector: ranges of hashes of one field. It is not changed once it
// is made.
type Selector struct {
	ranges []sharding.ShardRangeRequirement
}

// Parse reads a selector.
func Parse(text string) (*Selector, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("empty shard selector is not allowed; omit the parameter for unfiltered lists")
	}
	p, err := parser.NewParser(parser.Macros())
	if err != nil {
		return nil, fmt.Errorf("failed to create CEL parser: %w", err)
	}
	parsed, errs := p.Parse(common.NewTextSource(text))
	if errs != nil && len(errs.GetErrors()) > 0 {
		return nil, fmt.Errorf("CEL parse error: %s", errs.GetErrors()[0].Message)
	}
	s := &Selector{}
	if err := s.add(parsed.Expr()); err != nil {
		return nil, err
	}
	for _, r := range s.ranges {
		if first := s.ranges[0].Key; r.Key != first {
			return nil, fmt.Errorf("all shard ranges must use the same field, got %q and %q", first, r.Key)
		}
	}
	return s, nil
}

// add appends the ranges of an expression.
func (s *Selector) add(e ast.Expr) error {
	if e.Kind() != ast.CallKind {
		return fmt.Errorf("unexpected expression kind %v; expected shardRange() call or || operator", e.Kind())
	}
	call := e.AsCall()
	switch name := call.FunctionName(); name {
	case operators.LogicalOr:
		for _, side := range call.Args() {
			if err := s.add(side); err != nil {
				return err
			}
		}
		return nil
	case "shardRange":
		r, err := parseRange(call.Args())
		s.ranges = append(s.ranges, r)
		return err
	default:
		return fmt.Errorf("unsupported function %q; only shardRange() and || are allowed", name)
	}
}

// parseRange reads the arguments of shardRange(field, start, end).
func parseRange(args []ast.Expr) (r sharding.ShardRangeRequirement, err error) {
	if len(args) != 3 {
		return r, fmt.Errorf("shardRange() requires exactly 3 arguments, got %d", len(args))
	}
	if r.Key, err = fieldPath(args[0]); err != nil {
		return r, fmt.Errorf("shardRange() first argument: %w", err)
	}
	if r.Key != uidPath && r.Key != namespacePath {
		return r, fmt.Errorf("unsupported field path %q; supported: %s, %s", r.Key, uidPath, namespacePath)
	}
	if r.Start, err = bound(args[1], "hexStart"); err != nil {
		return r, err
	}
	if r.End, err = bound(args[2], "hexEnd"); err != nil {
		return r, err
	}
	if !sharding.HexLess(r.Start, r.End) {
		return r, fmt.Errorf("shard range start %s must be less than end %s", r.Start, r.End)
	}
	return r, nil
}

// fieldPath returns the path that a chain of selections stands for.
func fieldPath(e ast.Expr) (string, error) {
	switch e.Kind() {
	case ast.IdentKind:
		return e.AsIdent(), nil
	case ast.SelectKind:
		of, err := fieldPath(e.AsSelect().Operand())
		return of + "." + e.AsSelect().FieldName(), err
	}
	return "", fmt.Errorf("expected field path (e.g. object.metadata.uid), got expression kind %v", e.Kind())
}

// bound reads one end of a range: 16 hexadecimal digits in small letters, or top.
func bound(e ast.Expr, name string) (string, error) {
	if e.Kind() != ast.LiteralKind {
		return "", fmt.Errorf("%s must be a string literal (e.g. '0xff'), got expression kind %v", name, e.Kind())
	}
	text, ok := e.AsLiteral().Value().(string)
	if !ok {
		return "", fmt.Errorf("%s must be a string literal, got %T", name, e.AsLiteral().Value())
	}
	digits, ok := strings.CutPrefix(text, "0x")
	switch {
	case !ok:
		return "", fmt.Errorf("%s must have '0x' prefix, got %q", name, text)
	case digits == "":
		return "", fmt.Errorf("%s: hex value is required after '0x'", name)
	case len(digits) > len(top)-2:
		return "", fmt.Errorf("%s: hex value too long (%d chars, max 17): %q", name, len(digits), digits)
	}
	if i := strings.IndexFunc(digits, func(c rune) bool { return !strings.ContainsRune("0123456789abcdef", c) }); i >= 0 {
		wrong := []rune(digits[i:])[0]
		return "", fmt.Errorf("%s: invalid hex character %q in %q", name, string(wrong), text)
	}
	switch {
	case text == top || len(digits) == 16:
		return text, nil
	case len(digits) == 17:
		return "", fmt.Errorf("%s: 17-digit hex value must be '%s' (2^64), got %q", name, top, text)
	}
	return "", fmt.Errorf("%s must be a 0x-prefixed 16-digit hex value, got %q (did you mean %q?)", name, text, fmt.Sprintf("0x%016s", digits))
}

// ByNamespace reports that the namespace of an object says in which shard it is; else its
// UID does.
func (s *Selector) ByNamespace() bool { return s.ranges[0].Key == namespacePath }

// Matches reports whether an object is in the shard whose namespace, or UID, has a value.
func (s *Selector) Matches(value string) bool {
	hash := "0x" + sharding.HashField(value)
	for _, r := range s.ranges {
		if !sharding.HexLess(hash, r.Start) && sharding.HexLess(hash, r.End) {
			return true
		}
	}
	return false
}

// String returns the selector in its usual form.
func (s *Selector) String() string { return sharding.NewSelector(s.ranges...).String() }
