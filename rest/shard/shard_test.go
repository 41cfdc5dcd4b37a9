package shard

import (
	"fmt"
	"strings"
	"testing"
)

const low, high = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')", "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')"

// TestShardsDivideObjects wants every value to be in exactly one of two shards, and both
// to have some.
func TestShardsDivideObjects(t *testing.T) {
	parse := func(text string) *Selector {
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if s.String() != text {
			t.Errorf("%s is shown as %s", text, s)
		}
		return s
	}
	lower, upper, all := parse(low), parse(high), parse(low+" || "+high)
	n := 0
	for i := range 100 {
		value := fmt.Sprint(i, "-uid-of-an-object")
		if lower.Matches(value) {
			n++
		}
		if lower.Matches(value) == upper.Matches(value) || !all.Matches(value) {
			t.Errorf("%s is in the lower half %v, in the upper one %v, in the whole %v", value, lower.Matches(value), upper.Matches(value), all.Matches(value))
		}
	}
	if n == 0 || n == 100 {
		t.Errorf("%d of 100 are in the lower half", n)
	}
	if byNamespace := parse(strings.ReplaceAll(low, "uid", "namespace")); !byNamespace.ByNamespace() || lower.ByNamespace() {
		t.Error("the field is not told")
	}
}

// TestWrongSelectorsAreRefused has the words of kube-apiserver.
func TestWrongSelectorsAreRefused(t *testing.T) {
	of := func(args string) string { return "shardRange(" + args + ")" }
	for text, want := range map[string]string{
		" ":                                   "empty shard selector is not allowed; omit the parameter for unfiltered lists",
		"shardRange(":                         "CEL parse error: ",
		"object.metadata.uid":                 "unexpected expression kind 7; expected shardRange() call or || operator",
		low + " && " + high:                   `unsupported function "_&&_"; only shardRange() and || are allowed`,
		of("object.metadata.uid"):             "shardRange() requires exactly 3 arguments, got 1",
		of("'a', '0x0', '0x1'"):               "shardRange() first argument: expected field path (e.g. object.metadata.uid), got expression kind 5",
		of("object.metadata.name, '', ''"):    `unsupported field path "object.metadata.name"; supported: object.metadata.uid, object.metadata.namespace`,
		of("object.metadata.uid, x, ''"):      "hexStart must be a string literal (e.g. '0xff'), got expression kind 3",
		of("object.metadata.uid, 1, ''"):      "hexStart must be a string literal, got int64",
		of("object.metadata.uid, '12', ''"):   `hexStart must have '0x' prefix, got "12"`,
		of("object.metadata.uid, '0x', ''"):   "hexStart: hex value is required after '0x'",
		of("object.metadata.uid, '0xA', ''"):  `hexStart: invalid hex character "A" in "0xA"`,
		of("object.metadata.uid, '0xff', ''"): `hexStart must be a 0x-prefixed 16-digit hex value, got "0xff" (did you mean "0x00000000000000ff"?)`,
		of("object.metadata.uid, '0x0000000000000000', '0x20000000000000000'"):  `hexEnd: 17-digit hex value must be '0x10000000000000000' (2^64), got "0x20000000000000000"`,
		of("object.metadata.uid, '0x0000000000000000', '0x100000000000000000'"): `hexEnd: hex value too long (18 chars, max 17): "100000000000000000"`,
		of("object.metadata.uid, '0x8000000000000000', '0x8000000000000000'"):   "shard range start 0x8000000000000000 must be less than end 0x8000000000000000",
		low + " || " + strings.ReplaceAll(high, "uid", "namespace"):             `all shard ranges must use the same field, got "object.metadata.uid" and "object.metadata.namespace"`,
	} {
		if _, err := Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}
