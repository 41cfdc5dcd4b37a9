package dra

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

func TestSelectors(t *testing.T) {
	s := new(Selectors)
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
