package flowcontrol

import (
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

func TestURLProblem(t *testing.T) {
	for url, ok := range map[string]bool{
		"/": true, "/healthz": true, "/apis/*": true, "/*": true,
		"": false, "healthz": false, "/a b": false, "/a//b": false, "/a*": false, "/*/*": false, "/*/a": false,
	} {
		if problem := urlProblem(url); (problem == "") != ok {
			t.Errorf("%q: %q", url, problem)
		}
	}
}

// TestMandatory wants what always exists to be valid as it is, and in no other
// form, but for the shares of exempt requests.
func TestMandatory(t *testing.T) {
	for name, spec := range MandatorySchemas() {
		if errs := validateSchema(name, &spec, field.NewPath("spec")); len(errs) > 0 {
			t.Errorf("schema %s: %v", name, errs)
		}
		spec.MatchingPrecedence++
		if errs := validateSchema(name, &spec, field.NewPath("spec")); len(errs) == 0 {
			t.Errorf("schema %s could be changed", name)
		}
	}
	level := func(name string) *flowcontrolv1.PriorityLevelConfiguration {
		return &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: MandatoryLevels()[name]}
	}
	for name := range MandatoryLevels() {
		if errs := validateLevel(level(name)); len(errs) > 0 {
			t.Errorf("level %s: %v", name, errs)
		}
	}
	exempt := level("exempt")
	exempt.Spec.Exempt.NominalConcurrencyShares = new(int32(7))
	if errs := validateLevel(exempt); len(errs) > 0 {
		t.Errorf("shares of exempt: %v", errs)
	}
	catchAll := level("catch-all")
	catchAll.Spec.Limited.NominalConcurrencyShares = new(int32(7))
	if errs := validateLevel(catchAll); len(errs) != 1 {
		t.Errorf("shares of catch-all: %v", errs)
	}
}

func TestQueuing(t *testing.T) {
	for _, test := range []struct {
		queues, hand int32
		wrong        int
	}{{64, 8, 0}, {1, 1, 0}, {4, 5, 1}, {0, 1, 2}, {1024, 6, 0}, {1024, 7, 1}, {maxQueues + 1, 1, 1}} {
		errs := validateQueuing(&flowcontrolv1.QueuingConfiguration{Queues: test.queues, HandSize: test.hand, QueueLengthLimit: 1}, nil)
		if len(errs) != test.wrong {
			t.Errorf("%d queues, hands of %d: %v", test.queues, test.hand, errs)
		}
	}
}

// TestLevelErrors has the fields that are wrong, in the order in which clients are
// told of them: values first, then parts that do not go with the types.
func TestLevelErrors(t *testing.T) {
	type limited = flowcontrolv1.LimitedPriorityLevelConfiguration
	const exempt, limits = flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited
	queuing := func(q flowcontrolv1.QueuingConfiguration) flowcontrolv1.LimitResponse {
		return flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &q}
	}
	less := new(int32(-1))
	for _, test := range []struct {
		spec flowcontrolv1.PriorityLevelConfigurationSpec
		want string
	}{
		{flowcontrolv1.PriorityLevelConfigurationSpec{}, "spec.type"},
		{flowcontrolv1.PriorityLevelConfigurationSpec{Type: "?"}, "spec.type"},
		{flowcontrolv1.PriorityLevelConfigurationSpec{Type: limits}, "spec.limited"},
		{flowcontrolv1.PriorityLevelConfigurationSpec{Type: exempt, Limited: &limited{}}, "spec.type spec.limited spec.limited.limitResponse.type"},
		{flowcontrolv1.PriorityLevelConfigurationSpec{Type: limits, Exempt: &flowcontrolv1.ExemptPriorityLevelConfiguration{}, Limited: &limited{LimitResponse: flowcontrolv1.LimitResponse{Type: "?"}}},
			"spec.limited.limitResponse.type spec.exempt"},
		{flowcontrolv1.PriorityLevelConfigurationSpec{Type: limits, Limited: &limited{LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue}}},
			"spec.limited.limitResponse.queuing"},
		{flowcontrolv1.PriorityLevelConfigurationSpec{Type: limits, Limited: &limited{NominalConcurrencyShares: less, LendablePercent: less, BorrowingLimitPercent: less,
			LimitResponse: queuing(flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 2, QueueLengthLimit: 1})}},
			"spec.limited.nominalConcurrencyShares spec.limited.limitResponse.queuing.handSize spec.limited.lendablePercent spec.limited.borrowingLimitPercent"},
	} {
		var got []string
		for _, err := range resource.DeclaredLast(validateLevel(&flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: test.spec})) {
			got = append(got, err.Field)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%+v: %q, want %q", test.spec, got, test.want)
		}
	}
}
