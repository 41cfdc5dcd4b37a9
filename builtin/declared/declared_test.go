package declared

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

type thing struct {
	Name   string   `json:"name"`
	Key    string   `json:"key,omitempty"`
	Size   *int32   `json:"size,omitempty"`
	One    *part    `json:"one,omitempty"`
	Other  *part    `json:"other,omitempty"`
	Parts  []part   `json:"parts,omitempty"`
	Secret *string  `json:"secret,omitempty"`
	Fixed  string   `json:"fixed,omitempty"`
	Pairs  []part   `json:"pairs,omitempty"`
	Words  []string `json:"words,omitempty"`
	Note   string   `json:"note,omitempty"`
}

type part struct {
	ID    string `json:"id"`
	State string `json:"state,omitempty"`
}

const text = `
thing oneof=one,other
  name required short-name
  key optional reserved=.k8s.io prefixed-label-key
  size optional no-unset max=9 min=1 grows
  parts max-items=3 optional fixed-items key=id
  secret gate=Secrets
  fixed immutable optional
  pairs optional key=id,state
  words optional set
  note optional max-bytes=3
part
  id required
  state optional enum=Off,On
`

// TestJudge has what each rule says, of new objects and of changes.
func TestJudge(t *testing.T) {
	rules := Parse(text)
	good := func() *thing {
		return &thing{Name: "a", One: &part{ID: "x"}, Size: new(int32(3)), Fixed: "f", Parts: []part{{ID: "p"}, {ID: "q"}}}
	}
	for _, c := range []struct {
		name   string
		change func(now *thing)
		update bool
		gate   bool
		want   []string
	}{
		{name: "good", change: func(*thing) {}},
		{name: "nothing", change: func(now *thing) { *now = thing{} },
			want: []string{"at: must specify one of: `one`, `other`", "at.name: Required"}},
		{name: "too much", change: func(now *thing) {
			now.Other, now.Key, now.Size = &part{}, "a.k8s.io/x", new(int32(10))
			now.Parts = []part{{ID: "p", State: "Up"}, {ID: "p"}, {}}
		}, want: []string{"at: must specify exactly one of: `one`, `other`", "at.key: domain names *.k8s.io are reserved", "at.size: must be less than or equal to 9",
			"at.parts[1]: Duplicate", "at.parts[0].state: Unsupported", "at.parts[2].id: Required"}},
		{name: "not unique", change: func(now *thing) {
			now.Pairs = []part{{"a", "On"}, {"a", "Off"}, {"a", "On"}}
			now.Words, now.Note = []string{"a", "b", "a"}, "äö"
		}, want: []string{"at.pairs[2]: Duplicate", "at.words[2]: Duplicate", "at.note: Too long"}},
		{name: "too many", change: func(now *thing) { now.Parts = make([]part, 4) }, want: []string{"at.parts: Too many"}},
		{name: "a gate that is off", change: func(now *thing) { now.Secret = new("") }, want: []string{"at.secret: Forbidden"}},
		{name: "a gate that is on", change: func(now *thing) { now.Secret = new("") }, gate: true},
		{name: "no change", change: func(*thing) {}, update: true},
		{name: "changes", update: true, change: func(now *thing) { now.Size, now.Fixed, now.Parts = nil, "g", []part{{ID: "q"}, {ID: "r"}} },
			want: []string{"at.size: field cannot be cleared", "at.parts[1]: item may not be added", "at.parts: item may not be removed", "at.fixed: field is immutable"}},
		{name: "less", update: true, change: func(now *thing) { now.Size = new(int32(2)) }, want: []string{"at.size: may not be decreased from 3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			now, old := good(), good()
			c.change(now)
			if !c.update {
				old = nil
			}
			ctx := context.Background()
			if c.gate {
				table, err := features.ParseTable("Secrets 1.0=ALPHA,on")
				if err != nil {
					t.Fatal(err)
				}
				gates, err := features.New(features.Config{Table: table})
				if err != nil {
					t.Fatal(err)
				}
				ctx = features.With(ctx, gates)
			}
			errs := rules.Judge(ctx, now, old, field.NewPath("at"))
			if len(errs) != len(c.want) {
				t.Fatalf("%v, want %q", errs, c.want)
			}
			for i, err := range errs {
				path, said, _ := strings.Cut(c.want[i], ": ")
				if err.Field != path || !strings.Contains(err.Error(), said) || !resource.IsDeclared(err) {
					t.Errorf("%v, want %s", err, c.want[i])
				}
			}
		})
	}
}
