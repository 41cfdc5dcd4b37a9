package storage

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestValidateTopologies(t *testing.T) {
	term := func(pairs ...string) corev1.TopologySelectorTerm {
		var term corev1.TopologySelectorTerm
		for i := 0; i < len(pairs); i += 2 {
			term.MatchLabelExpressions = append(term.MatchLabelExpressions, corev1.TopologySelectorLabelRequirement{Key: pairs[i], Values: []string{pairs[i+1]}})
		}
		return term
	}
	for name, tt := range map[string]struct {
		terms []corev1.TopologySelectorTerm
		want  string
	}{
		"different":      {[]corev1.TopologySelectorTerm{term("zone", "a"), term("zone", "b")}, ""},
		"same":           {[]corev1.TopologySelectorTerm{term("zone", "a", "rack", "1"), term("rack", "1", "zone", "a")}, `allowedTopologies[1].matchLabelExpressions: Duplicate value: ""`},
		"nothing":        {[]corev1.TopologySelectorTerm{{}}, `allowedTopologies[0].matchLabelExpressions: Duplicate value: ""`},
		"twice in one":   {[]corev1.TopologySelectorTerm{term("zone", "a", "zone", "b")}, `allowedTopologies[0].matchLabelExpressions[1].key: Duplicate value: "zone"`},
		"without values": {[]corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone"}}}}, "allowedTopologies[0].matchLabelExpressions[0].values: Required value"},
	} {
		errs := validateTopologies(tt.terms, field.NewPath("allowedTopologies"))
		if got := errorText(errs); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func errorText(errs field.ErrorList) string {
	if len(errs) == 0 {
		return ""
	}
	return errs.ToAggregate().Error()
}
