package dra

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

func TestSelectors(t *testing.T) {
	s := new(Selectors).expressions(t.Context())
	for expression, want := range map[string]string{
		"device.driver == 'x'":                                    "",
		"device.attributes['x'].model":                            "",
		"device.capacity['x'].mem.compareTo(quantity('1Gi')) > 0": "",
		"device.allowMultipleAllocations":                         "",
		"cel.bind(a, device.attributes['x'], a.one && a.two)":     "",
		"device.driver":                                           "must evaluate to bool or the unknown type, not string",
		"device.other":                                            "undefined field 'other'",
		"device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, device.attributes.all(d, a + b + c + d != 'x'))))": "too complex",
		strings.Repeat("x", resourcev1.CELSelectorExpressionMaxLength+1):                                                               "Too long",
	} {
		list := []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
		errs := s.validate(list, false, field.NewPath("selectors"))
		if (len(errs) == 0) != (want == "") || len(errs) > 0 && !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%.80s: %v, want %q", expression, errs, want)
		}
		if errs := s.validate(list, true, nil); len(errs) > 0 {
			t.Errorf("%.80s, stored: %v", expression, errs)
		}
	}
}

// TestExpressionsSeeFieldsOfTheirGates has what expressions may do with devices by the gates.
func TestExpressionsSeeFieldsOfTheirGates(t *testing.T) {
	s := new(Selectors)
	for _, c := range []struct {
		set        string
		expression string
		derived    bool
		want       string
	}{
		{"", "device.attributes['x'].models.exists(m, m == 'a')", false, "compilation failed"},
		{listAttributes, "device.attributes['x'].models.exists(m, m == 'a')", false, ""},
		{listAttributes, "device.attributes['x'].models.includes('a')", false, ""},
		{"-" + consumableCapacity, "device.allowMultipleAllocations", false, "undefined field 'allowMultipleAllocations'"},
		{"", "device.driver", true, ""},
		{"", "device.attributes['x'].model", true, ""},
		{"", "semver('1.2.3')", true, ""},
		{"", "1.5", true, "must evaluate to a primitive scalar (string, integer, boolean, semver), not double"},
		{"", "['a']", true, "must evaluate to a primitive scalar (string, integer, boolean, semver), not list(string)"},
		{listAttributes, "['a']", true, ""},
		{listAttributes, "[1.5]", true, "or a list of these scalars, not list(double)"},
	} {
		set := map[string]bool{}
		if name, off := strings.CutPrefix(c.set, "-"); name != "" {
			set[name] = !off
		}
		if off := c.set == "-"+consumableCapacity; off {
			set[fractions] = false
		}
		gates, err := features.New(features.Config{Set: set})
		if err != nil {
			t.Fatal(err)
		}
		_, errs := s.expressions(features.With(t.Context(), gates)).validateExpression(c.expression, c.derived, field.NewPath("x"))
		if got := errorText(errs.ToAggregate()); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s with %q: got %q, want %q", c.expression, c.set, got, c.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestDerivedAttributes has attributes that a request derives: a constraint must use them.
func TestDerivedAttributes(t *testing.T) {
	derived := func(name, expression string) []resourcev1.DeviceDerivedAttribute {
		return []resourcev1.DeviceDerivedAttribute{{Name: resourcev1.FullyQualifiedName(name), Expression: expression}}
	}
	exactly := func(list []resourcev1.DeviceDerivedAttribute) []resourcev1.DeviceRequest {
		return []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c",
			AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1, DerivedAttributes: list}}}
	}
	alternative := func(list []resourcev1.DeviceDerivedAttribute) []resourcev1.DeviceRequest {
		return []resourcev1.DeviceRequest{{Name: "r", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "s", DeviceClassName: "c",
			AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1, DerivedAttributes: list}}}}
	}
	costly := "device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, a + b + c != 'x')))"
	name := resourcev1.FullyQualifiedName("a.b/c")
	for _, c := range []struct {
		name       string
		requests   []resourcev1.DeviceRequest
		constraint resourcev1.DeviceConstraint
		want       []string
	}{
		{"for all", exactly(derived("a.b/c", "1")), resourcev1.DeviceConstraint{MatchAttribute: &name}, nil},
		{"for the request", exactly(derived("a.b/c", "1")), resourcev1.DeviceConstraint{DistinctAttribute: &name, Requests: []string{"r"}}, nil},
		{"for the parent", alternative(derived("a.b/c", "1")), resourcev1.DeviceConstraint{MatchAttribute: &name, Requests: []string{"r"}}, nil},
		{"for the subrequest", alternative(derived("a.b/c", "1")), resourcev1.DeviceConstraint{MatchAttribute: &name, Requests: []string{"r/s"}}, nil},
		{"not used", exactly(derived("a.b/d", "1")), resourcev1.DeviceConstraint{MatchAttribute: &name}, []string{"devices.requests[0].exactly.derivedAttributes[0].name"}},
		{"twice", exactly(append(derived("a.b/c", "1"), derived("a.b/c", "2")...)), resourcev1.DeviceConstraint{MatchAttribute: &name}, []string{"devices.requests[0].exactly.derivedAttributes[1]"}},
		{"empty", exactly(derived("", "")), resourcev1.DeviceConstraint{MatchAttribute: &name},
			[]string{"devices.requests[0].exactly.derivedAttributes[0].name", "devices.requests[0].exactly.derivedAttributes[0].expression"}},
		{"too many", exactly(make([]resourcev1.DeviceDerivedAttribute, 33)[:33:33]), resourcev1.DeviceConstraint{MatchAttribute: &name}, nil},
		{"costly", exactly(derived("a.b/c", costly)), resourcev1.DeviceConstraint{MatchAttribute: &name}, []string{"devices.requests[0].exactly.derivedAttributes[0].expression", "devices"}},
	} {
		spec := &resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: c.requests, Constraints: []resourcev1.DeviceConstraint{c.constraint}}}
		errs := new(Selectors).validateClaim(t.Context(), spec, nil)
		if c.name == "too many" {
			if last := errs[len(errs)-1]; last.Type != field.ErrorTypeTooMany {
				t.Errorf("%s: got %v", c.name, errs)
			}
			continue
		}
		var got []string
		for _, err := range errs {
			got = append(got, err.Field)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want errors at %v", c.name, errs, c.want)
		}
	}
}

// TestNodeAllocatableResources has the resources of a node that devices provide or need.
func TestNodeAllocatableResources(t *testing.T) {
	q := func(s string) *quantity.Quantity { return new(quantity.MustParse(s)) }
	key := func(s string) *resourcev1.QualifiedName { return new(resourcev1.QualifiedName(s)) }
	type mapping = resourcev1.NodeAllocatableMapping
	for name, c := range map[string]struct {
		resource string
		value    resourcev1.NodeAllocatableResource
		want     []string
	}{
		"of capacity":     {"cpu", resourcev1.NodeAllocatableResource{Mapping: &mapping{CapacityKey: key("cores"), CapacityMultiplier: q("2")}}, nil},
		"of the device":   {"hugepages-2Mi", resourcev1.NodeAllocatableResource{Mapping: &mapping{DeviceMultiplier: q("2")}}, nil},
		"overhead":        {"memory", resourcev1.NodeAllocatableResource{Overhead: &resourcev1.NodeAllocatableOverhead{PerPod: q("1")}}, nil},
		"nothing":         {"memory", resourcev1.NodeAllocatableResource{}, []string{"p[memory]"}},
		"no such name":    {"pods", resourcev1.NodeAllocatableResource{Mapping: &mapping{DeviceMultiplier: q("2")}}, []string{"p[pods]"}},
		"no such key":     {"cpu", resourcev1.NodeAllocatableResource{Mapping: &mapping{CapacityKey: key("x"), CapacityMultiplier: q("0")}}, []string{"p[cpu].mapping.capacityKey", "p[cpu].mapping.capacityMultiplier"}},
		"no multiplier":   {"cpu", resourcev1.NodeAllocatableResource{Mapping: &mapping{CapacityKey: key("cores")}}, []string{"p[cpu].mapping.capacityMultiplier"}},
		"no key":          {"cpu", resourcev1.NodeAllocatableResource{Mapping: &mapping{CapacityMultiplier: q("1")}}, []string{"p[cpu].mapping.capacityKey", "p[cpu].mapping"}},
		"both":            {"cpu", resourcev1.NodeAllocatableResource{Mapping: &mapping{CapacityKey: key("cores"), CapacityMultiplier: q("1"), DeviceMultiplier: q("-1")}}, []string{"p[cpu].mapping.deviceMultiplier", "p[cpu].mapping"}},
		"no overhead":     {"cpu", resourcev1.NodeAllocatableResource{Overhead: &resourcev1.NodeAllocatableOverhead{}}, []string{"p[cpu].overhead"}},
		"negative amount": {"cpu", resourcev1.NodeAllocatableResource{Overhead: &resourcev1.NodeAllocatableOverhead{PerContainer: q("-1")}}, []string{"p[cpu].overhead.perContainer"}},
	} {
		d := &resourcev1.Device{Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"cores": {Value: *q("4")}},
			NodeAllocatableResources: map[corev1.ResourceName]resourcev1.NodeAllocatableResource{corev1.ResourceName(c.resource): c.value}}
		var got []string
		for _, err := range validateAllocatable(d, nil, field.NewPath("p")) {
			got = append(got, err.Field)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got errors at %v, want %v", name, got, c.want)
		}
	}
}

func TestCapacity(t *testing.T) {
	q := func(s string) *quantity.Quantity { return new(quantity.MustParse(s)) }
	values := func(list ...string) (out []quantity.Quantity) {
		for _, s := range list {
			out = append(out, *q(s))
		}
		return out
	}
	for name, test := range map[string]struct {
		policy resourcev1.CapacityRequestPolicy
		want   []string
	}{
		"values":           {resourcev1.CapacityRequestPolicy{Default: q("1"), ValidValues: values("1", "2")}, nil},
		"no default":       {resourcev1.CapacityRequestPolicy{ValidValues: values("1")}, []string{"p.requestPolicy.default"}},
		"unsorted":         {resourcev1.CapacityRequestPolicy{Default: q("1"), ValidValues: values("2", "1")}, []string{"p.requestPolicy.validValues[1]"}},
		"too large":        {resourcev1.CapacityRequestPolicy{Default: q("1"), ValidValues: values("1", "11")}, []string{"p.requestPolicy.validValues[1]"}},
		"another default":  {resourcev1.CapacityRequestPolicy{Default: q("3"), ValidValues: values("1", "2")}, []string{"p.requestPolicy.validValues"}},
		"range":            {resourcev1.CapacityRequestPolicy{Default: q("4"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: q("2"), Max: q("8"), Step: q("2")}}, nil},
		"not a step":       {resourcev1.CapacityRequestPolicy{Default: q("3"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: q("2"), Max: q("8"), Step: q("2")}}, []string{"p.requestPolicy.validRange.step"}},
		"no minimum":       {resourcev1.CapacityRequestPolicy{Default: q("3"), ValidRange: &resourcev1.CapacityRequestPolicyRange{}}, []string{"p.requestPolicy.validRange.min"}},
		"negative step":    {resourcev1.CapacityRequestPolicy{Default: q("3"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: q("2"), Step: q("-1")}}, []string{"p.requestPolicy.validRange.step"}},
		"beyond counting":  {resourcev1.CapacityRequestPolicy{Default: q("3"), ValidRange: &resourcev1.CapacityRequestPolicyRange{Min: q("2"), Step: q("16Ei")}}, []string{"p.requestPolicy.validRange.step", "p.requestPolicy.validRange.step"}},
		"values and range": {resourcev1.CapacityRequestPolicy{ValidValues: values("1"), ValidRange: &resourcev1.CapacityRequestPolicyRange{}}, []string{"p.requestPolicy"}},
	} {
		var got []string
		for _, err := range validateCapacity(features.Gates{}, &resourcev1.DeviceCapacity{Value: *q("10"), RequestPolicy: &test.policy}, true, field.NewPath("p")) {
			got = append(got, err.Field)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestVersion(t *testing.T) {
	for version, ok := range map[string]bool{
		"1.2.3": true, "0.0.0-alpha.1+build.7": true, "1.2": false, "01.2.3": false, "v1.2.3": false, "1.2.3-": false, "": false,
	} {
		errs := validateAttribute(&resourcev1.DeviceAttribute{VersionValue: &version}, nil)
		if (len(errs) == 0) != ok {
			t.Errorf("%q: %v", version, errs)
		}
	}
}

func TestKeyed(t *testing.T) {
	path := field.NewPath("a")
	if got := keyed(path, strings.Repeat("x", 20), 20).String(); got != "a["+strings.Repeat("x", 20)+"]" {
		t.Error(got)
	}
	if got := keyed(path, "12345678901234567890x", 20).String(); got != "a[123456789...4567890x]" {
		t.Error(got)
	}
}

// TestStatusRights wants to know who may change what in the status of a claim.
func TestStatusRights(t *testing.T) {
	refused := errors.New("no")
	var asked []string
	cfg := Config{
		MayBind: func(context.Context) error { return refused },
		MayReport: func(_ context.Context, driver string, verbs []string) error {
			asked = append(asked, driver+" "+strings.Join(verbs, ","))
			return refused
		},
		AdminNamespace: func(context.Context, string) (bool, error) { return false, nil },
	}
	ctx := request.With(context.Background(), &request.Request{Info: request.Info{Verb: "update"}})
	old, next := &claim{}, &claim{}
	result := resourcev1.DeviceRequestAllocationResult{Driver: "a", Pool: "p", Device: "d", AdminAccess: new(true)}
	next.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{result}}}
	next.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "b"}, {Driver: "a"}, {Driver: "b", Pool: "q"}}
	var got []string
	for _, err := range mayChangeStatus(ctx, cfg, next, old) {
		got = append(got, err.Field)
	}
	if want := []string{"status.allocation.devices.results[0].adminAccess", "status.allocation", "status.devices", "status.devices"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if want := []string{"a arbitrary-node:update", "b arbitrary-node:update"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q", asked)
	}
	if errs := mayChangeStatus(ctx, cfg, next, next); len(errs) > 0 {
		t.Errorf("no change: %v", errs)
	}
}

// TestEmptyListsOfAttributesAreValues: the hand-written rule that an attribute has one value
// counts lists that are empty, the rule that is declared in beta does not.
func TestEmptyListsOfAttributesAreValues(t *testing.T) {
	path := field.NewPath("a")
	for _, test := range []struct {
		attribute resourcev1.DeviceAttribute
		want      []string
	}{
		{resourcev1.DeviceAttribute{IntValue: new(int64(3)), VersionValues: []string{}}, []string{
			"a.versions: Invalid value: []: must not be empty if specified",
			`a: Invalid value: {"IntValue":3,"BoolValue":null,"StringValue":null,"VersionValue":null,"IntValues":null,"BoolValues":null,"StringValues":null,"VersionValues":[]}: exactly one value must be specified`,
		}},
		{resourcev1.DeviceAttribute{VersionValues: []string{}}, []string{
			"a.versions: Invalid value: []: must not be empty if specified",
			"a: Invalid value: \"\": must specify one of: `int`, `bool`, `string`, `version`, `ints`, `bools`, `strings`, `versions`",
		}},
		{resourcev1.DeviceAttribute{IntValue: new(int64(3))}, nil},
	} {
		var got []string
		for _, err := range resource.DeclaredLast(validateAttribute(&test.attribute, path)) {
			got = append(got, err.Error())
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// TestInItsVersion wants declared rules to be about the version of the request.
func TestInItsVersion(t *testing.T) {
	class := &resourcev1.DeviceClass{Spec: resourcev1.DeviceClassSpec{Config: []resourcev1.DeviceClassConfiguration{
		{DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: "_" + strings.Repeat("a", 300)}}},
	}}}
	class.Name = "A"
	slice := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"a": {}}}}}}
	class1 := []string{"metadata.name: Invalid value", "spec.config[0].opaque.driver: Invalid value", "spec.config[0].opaque.driver: Invalid value", "spec.config[0].opaque.driver: Too long"}
	class0 := []string{"metadata.name: Invalid value", "spec.config[0].opaque.driver: Too long", "spec.config[0].opaque.driver: Invalid value", "spec.config[0].opaque.driver: Invalid value"}
	for _, test := range []struct {
		version string
		obj     resource.Object
		want    []string
	}{
		{"v1", class, class1},
		{"v1beta2", class, class0},
		{"v1beta1", class, class0},
		{"v1", slice, []string{"spec.devices[0].attributes[a]: Invalid value"}},
		{"v1beta1", slice, []string{"spec.devices[0].basic.attributes[a]: Invalid value"}},
	} {
		ctx := request.With(context.Background(), &request.Request{Info: request.Info{Verb: "create", Version: test.version}})
		var got []string
		for _, d := range Group(Config{}).Resources {
			if reflect.TypeOf(d.Versions[0].New()) != reflect.TypeOf(test.obj) {
				continue
			}
			for _, err := range d.Strategy.Validate(ctx, test.obj) {
				if resource.IsDeclared(err) {
					got = append(got, err.Field+": "+err.Type.String())
				}
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.version, got, test.want)
		}
	}
}
