package usage

import (
	"cmp"
	"slices"
)

// sketchRows is the number of names for which a sketch has a row.
const sketchRows = 128

// sketch counts by name, for the names that cost most, in bounded memory: it is the
// space-saving algorithm. A name that has no row takes that of the name with the smallest
// score, and its score. So each name whose share of the weight is more than one part in
// sketchRows has a row. Counts are not inherited: those of names that lost their row are
// in others, and all rows and others together are exact.
type sketch struct {
	rows   []sketchRow
	scores []int64        // of the rows
	byName map[string]int // place in rows
	others Counts
}

type sketchRow struct {
	name   string
	counts Counts
}

// weigh is the score of counts: CPU time, and a little for each request, for requests
// that were refused cost next to nothing.
func weigh(c *Counts) int64 { return int64(c.CPU) + c.Requests*1000 + 1 }

func (s *sketch) add(name string, c *Counts) {
	if name == Others {
		s.others.add(c)
		return
	}
	i, ok := s.byName[name]
	switch {
	case ok:
	case len(s.rows) < sketchRows:
		if s.byName == nil {
			s.byName = map[string]int{}
		}
		i = len(s.rows)
		s.rows, s.scores = append(s.rows, sketchRow{name: name}), append(s.scores, 0)
		s.byName[name] = i
	default:
		for j := range s.scores {
			if s.scores[j] < s.scores[i] {
				i = j
			}
		}
		row := &s.rows[i]
		s.others.add(&row.counts)
		delete(s.byName, row.name)
		row.name, row.counts = name, Counts{}
		s.byName[name] = i
	}
	s.scores[i] += weigh(c)
	s.rows[i].counts.add(c)
}

// merge adds all that another sketch has counted.
func (s *sketch) merge(o *sketch) {
	for i := range o.rows {
		s.add(o.rows[i].name, &o.rows[i].counts)
	}
	s.others.add(&o.others)
}

// top returns the rows with the most cost, at most n, and the sum of the others.
func (s *sketch) top(n int) (rows []sketchRow, others Counts) {
	rows, others = slices.Clone(s.rows), s.others
	slices.SortFunc(rows, func(a, b sketchRow) int {
		return cmp.Or(cmp.Compare(weigh(&b.counts), weigh(&a.counts)), cmp.Compare(a.name, b.name))
	})
	for i := n; i < len(rows); i++ {
		others.add(&rows[i].counts)
	}
	return rows[:min(n, len(rows))], others
}

func (s *sketch) reset() {
	*s = sketch{} // a quiet time needs no room for the names of a busy one
}
