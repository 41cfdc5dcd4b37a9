package wire

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/resource"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// selected returns a record for selectors.
func selected(name string, set labels.Set, field string) (*Record, *resource.Definition) {
	def := &resource.Definition{Namespaced: true, Fields: []resource.Field{{Path: "spec.nodeName"}}}
	rec := Record{Key: "k", Namespace: "ns", Name: name, Revision: 1}
	return NewRecord(rec, []byte("{}"), LabelPairs(set), []string{field}, nil, nil), def
}

// TestSelectorMatchesLikeStock matches random records with random selectors of both lengths, and
// compares that with apimachinery.
func TestSelectorMatchesLikeStock(t *testing.T) {
	sorted, matched := 0, 0
	for seed := range randomtest.Seeds(t, 2000) {
		r := randomtest.Rand(seed, 21)
		l, err := labels.Parse(labelSelector(r, 1+r.IntN(24)))
		if err != nil {
			t.Fatal(err)
		}
		f, err := fields.ParseSelector(fieldSelector(r, r.IntN(2)*r.IntN(40)))
		if err != nil {
			t.Fatal(err)
		}
		s := NewSelector(l, f)
		if s.byLabel != nil {
			sorted++
		}
		for range 20 {
			set := labels.Set{}
			for range r.IntN(6) {
				set[anyKey(r)] = anyValue(r)
			}
			rec, def := selected(anyValue(r), set, anyValue(r))
			wantLabels := l.Matches(set)
			if got := s.MatchesLabels(set); got != wantLabels {
				t.Fatalf("labels %v with %s: got %t, want %t", set, l, got, wantLabels)
			}
			want := wantLabels && f.Matches(rec.Fields(def))
			if got := s.Matches(rec, def); got != want {
				t.Fatalf("%v of %q with %s and %s: got %t, want %t", set, rec.Name, l, f, got, want)
			}
			if want && s.byLabel != nil {
				matched++
			}
		}
	}
	if sorted < 10 || matched < 10 {
		t.Errorf("%d selectors were sorted, which matched %d records, want 10 of each", sorted, matched)
	}
}

func anyKey(r *rand.Rand) string { return fmt.Sprintf("k%d", r.IntN(40)) }

func anyValue(r *rand.Rand) string { return []string{"", "1", "2", "10", "a", "b"}[r.IntN(6)] }

// labelSelector returns requirements of which most are often fulfilled.
func labelSelector(r *rand.Rand, n int) string {
	parts := make([]string, n)
	for i := range parts {
		key, value := anyKey(r), anyValue(r)
		switch r.IntN(14) {
		case 0:
			parts[i] = fmt.Sprintf("k0 in (%s,a,b,1,2)", value)
		case 1:
			parts[i] = "k0=" + value
		case 2:
			parts[i] = "k1"
		case 3:
			parts[i] = fmt.Sprintf("k1>%d", r.IntN(4))
		case 4:
			parts[i] = fmt.Sprintf("k1<%d", 1+r.IntN(20))
		case 5, 6, 7:
			parts[i] = fmt.Sprintf("%s notin (%s,%s)", key, value, anyValue(r))
		case 8, 9, 10:
			parts[i] = "!" + key
		default:
			parts[i] = key + "!=" + value
		}
	}
	return strings.Join(parts, ",")
}

func fieldSelector(r *rand.Rand, n int) string {
	parts := make([]string, n)
	for i := range parts {
		path := []string{"metadata.name", "metadata.namespace", "spec.nodeName"}[r.IntN(3)]
		operator := "!="
		if r.IntN(20) == 0 {
			operator = "="
		}
		parts[i] = path + operator + []string{"a", "b", "1", "x", "y"}[r.IntN(5)]
	}
	return strings.Join(parts, ",")
}

// longSelectors are what fits into a URI of 1 MiB.
var longSelectors = map[string]func(n int) string{
	"keys":   func(n int) string { return repeat(n, "!k%d") },
	"values": func(n int) string { return "a notin (" + repeat(n, "v%d") + ")" },
	"same":   func(n int) string { return repeat(n, "a!=v%d") },
}

func repeat(n int, form string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(form, i)
	}
	return strings.Join(all, ",")
}

// BenchmarkSelector matches a record that has many labels, and one with few, with long selectors.
func BenchmarkSelector(b *testing.B) {
	for _, of := range []int{3, 1000} {
		set := labels.Set{"a": "b"}
		for i := range of - 1 {
			set[fmt.Sprintf("l%d", i)] = "v"
		}
		rec, def := selected("n", set, "f")
		for _, n := range []int{1, 10, 100_000} {
			for name, text := range longSelectors {
				l, err := labels.Parse(text(n))
				if err != nil {
					b.Fatal(err)
				}
				b.Run(fmt.Sprintf("%s/%d/labels-%d", name, n, of), func(b *testing.B) {
					s := NewSelector(l, fields.Everything())
					for b.Loop() {
						if !s.Matches(rec, def) {
							b.Fatal("the record does not match")
						}
					}
				})
			}
		}
	}
}

// TestLongSelectorsAreMatchedByTheLabelsOfTheObject matches selectors of 100,000 parts: a record
// does not take a step for each of them.
func TestLongSelectorsAreMatchedByTheLabelsOfTheObject(t *testing.T) {
	set := labels.Set{"a": "b", "c": "d"}
	rec, def := selected("n", set, "f")
	for name, text := range longSelectors {
		l, err := labels.Parse(text(100_000))
		if err != nil {
			t.Fatal(err)
		}
		s := NewSelector(l, fields.Everything())
		if s.byLabel == nil {
			t.Errorf("%s: the selector is not sorted", name)
		}
		least := time.Hour // the machine may be busy with other things
		for range 100 {
			began := time.Now()
			if !s.Matches(rec, def) {
				t.Fatalf("%s: the record does not match", name)
			}
			least = min(least, time.Since(began))
		}
		if least > 100*time.Microsecond {
			t.Errorf("%s: a record takes %v, want less than 100µs: the requirements one by one took 3ms", name, least)
		}
	}
}
