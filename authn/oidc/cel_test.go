package oidc

import (
	"context"
	"strings"
	"testing"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/traits"
)

// TestExpressionsEndWithTheirRequest evaluates an expression of a million steps for a request that
// has ended.
func TestExpressionsEndWithTheirRequest(t *testing.T) {
	const ten = "dyn(claims.l)"
	p, err := new(celEnvironment).compile(claimsVariable, ten+".all(a, "+ten+".all(b, "+ten+".all(c, "+ten+".all(d, "+ten+".all(e, "+ten+".all(f, a+b+c+d+e+f >= 0))))))", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	claims := types.DefaultTypeAdapter.NativeToValue(map[string]any{"l": []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}).(traits.Mapper)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.eval(ctx, claims); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("got %v, want that the evaluation was interrupted", err)
	}
}
