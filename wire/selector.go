package wire

import (
	"iter"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/apikeel/kelson/resource"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selector is the selectors of a request, to be matched with many records. Apimachinery's look
// through all requirements, and all values of each, for every record. One with many of them is
// sorted here by keys and values, so that a record takes as many steps as it has labels, times the
// logarithm of the selector (TestSelectorMatchesLikeStock, BenchmarkSelector).
type Selector struct {
	labels labels.Selector
	fields fields.Selector
	// byLabel and byField are by keys; nil if there are few requirements.
	byLabel, byField []condition
	// required is how many labels a record must have.
	required int
}

// sortedFrom is from how many values and requirements on a selector is sorted.
const sortedFrom = 16

// NewSelector returns the selector of records that match both.
func NewSelector(l labels.Selector, f fields.Selector) *Selector {
	s := Selector{labels: l}
	wanted, _ := l.Requirements()
	parts := len(wanted)
	for i := range wanted {
		parts += len(wanted[i].ValuesUnsorted())
	}
	if parts >= sortedFrom {
		s.byLabel = labelConditions(wanted)
		for i := range s.byLabel {
			if s.byLabel[i].present {
				s.required++
			}
		}
	}
	return s.WithFields(f)
}

// WithFields returns the selector with another one for fields.
func (s Selector) WithFields(f fields.Selector) *Selector {
	s.fields, s.byField = f, nil
	if wanted := f.Requirements(); len(wanted) >= sortedFrom {
		s.byField = fieldConditions(wanted)
	}
	return &s
}

// Empty reports whether everything matches.
func (s *Selector) Empty() bool { return s.labels.Empty() && s.fields.Empty() }

// Matches reports whether a record matches, which is of a definition.
func (s *Selector) Matches(rec *Record, def *resource.Definition) bool {
	if s.byLabel == nil && !s.labels.Matches(rec.Labels()) || s.byLabel != nil && !s.matchesSorted(rec.labelPairs()) {
		return false
	}
	if s.byField == nil {
		return s.fields.Matches(rec.Fields(def))
	}
	values := rec.Fields(def)
	for i := range s.byField {
		if c := &s.byField[i]; !c.matches(values.Get(c.key)) {
			return false
		}
	}
	return true
}

// MatchesLabels reports whether labels match, whatever the fields are.
func (s *Selector) MatchesLabels(set labels.Set) bool {
	if s.byLabel == nil {
		return s.labels.Matches(set)
	}
	return s.matchesSorted(maps.All(set))
}

func (s *Selector) matchesSorted(pairs iter.Seq2[string, string]) bool {
	missing := s.required
	for key, value := range pairs {
		at, found := sort.Find(len(s.byLabel), func(i int) int { return strings.Compare(key, s.byLabel[i].key) })
		if !found {
			continue
		}
		c := &s.byLabel[at]
		if !c.matches(value) {
			return false
		}
		if c.present {
			missing--
		}
	}
	return missing == 0
}

// condition is all that a selector wants of a label or field.
type condition struct {
	key             string
	present, absent bool
	// limited says that the value must be one of allowed. Both lists are sorted.
	limited           bool
	allowed, excluded []string
	// above and below are the bounds of a number; nil if there are none.
	above, below *int64
}

// matches reports whether a value fulfils the condition.
func (c *condition) matches(value string) bool {
	if c.absent {
		return false
	}
	if c.limited {
		if _, found := slices.BinarySearch(c.allowed, value); !found {
			return false
		}
	}
	if _, found := slices.BinarySearch(c.excluded, value); found {
		return false
	}
	if c.above == nil && c.below == nil {
		return true
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return err == nil && (c.above == nil || n > *c.above) && (c.below == nil || n < *c.below)
}

// allow limits the condition to values.
func (c *condition) allow(values []string) {
	slices.Sort(values)
	if !c.limited {
		c.limited, c.allowed = true, values
		return
	}
	c.allowed = slices.DeleteFunc(c.allowed, func(v string) bool {
		_, found := slices.BinarySearch(values, v)
		return !found
	})
}

// labelConditions returns the conditions for the labels that requirements name, sorted.
func labelConditions(wanted labels.Requirements) []condition {
	order := make([]*labels.Requirement, len(wanted))
	for i := range wanted {
		order[i] = &wanted[i]
	}
	slices.SortStableFunc(order, func(a, b *labels.Requirement) int { return strings.Compare(a.Key(), b.Key()) })
	return conditions(order, (*labels.Requirement).Key, func(c *condition, r *labels.Requirement) {
		switch values := r.ValuesUnsorted(); r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			c.present = true
			c.allow(values)
		case selection.NotIn, selection.NotEquals:
			c.excluded = append(c.excluded, values...)
		case selection.Exists:
			c.present = true
		case selection.DoesNotExist:
			c.absent = true
		case selection.GreaterThan, selection.LessThan:
			c.present = true
			c.bound(r.Operator() == selection.GreaterThan, values)
		}
	})
}

// bound adds a bound of a number.
func (c *condition) bound(above bool, values []string) {
	n, err := strconv.ParseInt(strings.Join(values, ","), 10, 64)
	switch {
	case err != nil:
		c.allow(nil) // apimachinery matches nothing then either
	case above && (c.above == nil || n > *c.above):
		c.above = &n
	case !above && (c.below == nil || n < *c.below):
		c.below = &n
	}
}

func fieldConditions(wanted fields.Requirements) []condition {
	wanted = slices.Clone(wanted)
	slices.SortStableFunc(wanted, func(a, b fields.Requirement) int { return strings.Compare(a.Field, b.Field) })
	return conditions(wanted, func(r fields.Requirement) string { return r.Field }, func(c *condition, r fields.Requirement) {
		if r.Operator == selection.NotEquals {
			c.excluded = append(c.excluded, r.Value)
			return
		}
		c.allow([]string{r.Value})
	})
}

// conditions makes one condition of all requirements with the same key, which follow each other.
func conditions[R any](sorted []R, key func(R) string, add func(*condition, R)) []condition {
	out := make([]condition, 0, len(sorted))
	for _, r := range sorted {
		if n := len(out); n == 0 || out[n-1].key != key(r) {
			out = append(out, condition{key: key(r)})
		}
		add(&out[len(out)-1], r)
	}
	for i := range out {
		slices.Sort(out[i].excluded)
	}
	return slices.Clip(out)
}

// labelPairs yields the labels of the record.
func (r *Record) labelPairs() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		for i := r.fields; i < len(r.attributes); i += 2 {
			if !yield(r.attributes[i], r.attributes[i+1]) {
				return
			}
		}
	}
}
