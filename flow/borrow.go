package flow

import (
	"math"
	"slices"
	"time"
)

// This file lends seats between priority levels according to their demand.

const (
	// adjustInterval is the interval between two adjustments of the levels' seats.
	adjustInterval = 10 * time.Second
	// smoothing is the factor by which a falling demand is smoothed: half of the fall
	// is followed after five minutes. A rising demand is followed at once.
	smoothing = 0.977
	// minTarget replaces the target of levels without demand.
	minTarget = 0.001
)

// demand measures over time how many seats a level could have used: those in use, and
// those that requests waited for.
type demand struct {
	value   int
	highest int
	at      time.Time
	// Integrals over time, in seconds, of 1, of the value and of its square.
	seconds, sum, squares float64

	// The results of the last period.
	found struct {
		highest            int
		average, deviation float64
		smoothed           float64
		target             float64 // the seats that the level was assumed to need
	}
}

func (d *demand) set(value int, now time.Time) {
	d.advance(now)
	d.value = value
	d.highest = max(d.highest, value)
}

func (d *demand) advance(now time.Time) {
	passed := now.Sub(d.at).Seconds()
	if passed <= 0 {
		return
	}
	d.at = now
	x := float64(d.value)
	d.seconds += passed
	d.sum += passed * x
	d.squares += passed * x * x
}

// take computes the demand since the last call and starts a new period.
func (d *demand) take(now time.Time) {
	d.advance(now)
	f := &d.found
	f.highest = d.highest
	if d.seconds > 0 {
		f.average = d.sum / d.seconds
		f.deviation = math.Sqrt(max(0, d.squares/d.seconds-f.average*f.average))
		envelope := f.average + f.deviation
		f.smoothed = max(envelope, smoothing*f.smoothed+(1-smoothing)*envelope)
	}
	d.highest = d.value
	d.seconds, d.sum, d.squares = 0, 0, 0
}

// share is a participant in a fair division: it gets the same fraction of its target as
// the others, within its bounds.
type share struct{ lowest, highest, target float64 }

// adjust divides the seats of the server among the levels, according to their recent
// demand. A level that needs its own seats keeps them; the others go where the demand
// is. It returns the fraction of the target that a level gets which is not at a bound.
func adjust(levels []*level, now time.Time) (fraction float64) {
	var (
		seats       int // of all levels
		left        int // for the levels that are not exempt
		lowest, sum int // sums over these levels: minimum seats, and minimum with the present demand
		shares      = make([]share, len(levels))
		least       = make([]int, len(levels))
		all         = make([]limits, len(levels))
	)
	for i, l := range levels {
		l.mu.Lock()
		l.demand.take(now)
		found := l.demand.found
		all[i] = l.limits
		l.mu.Unlock()
		seats += all[i].nominal
		if l.exempt {
			least[i] = max(all[i].lowest, found.highest)
			left -= least[i]
			continue
		}
		least[i] = max(all[i].lowest, min(all[i].nominal, found.highest))
		shares[i] = share{float64(least[i]), float64(all[i].highest), max(float64(least[i]), found.smoothed)}
		lowest += all[i].lowest
		sum += least[i]
	}
	left += seats
	limited := slices.DeleteFunc(slices.Clone(shares), func(s share) bool { return s == share{} })
	fraction = fairFraction(float64(seats), limited)
	for i, l := range levels {
		var n int
		switch {
		case l.exempt:
			n = least[i]
		case left <= lowest:
			n = all[i].lowest
		case left <= sum:
			part := float64(left-lowest) / float64(sum-lowest)
			n = all[i].lowest + int(math.Round(part*float64(least[i]-all[i].lowest)))
		default:
			n = int(math.Round(shares[i].at(fraction)))
		}
		target := shares[i].target
		if l.exempt {
			target = float64(n) // an exempt level has what it needs
		}
		l.setLimits(n, target, seats, now)
	}
	return fraction
}

// at returns the size of the share at a fraction, within its bounds.
func (s share) at(fraction float64) float64 {
	return min(max(fraction*max(s.target, minTarget), s.lowest), s.highest)
}

// fairFraction returns the fraction at which the shares add up to sum, or as near as
// their bounds allow. The sum is a piecewise linear function of the fraction, with a
// corner where a share reaches a bound.
func fairFraction(sum float64, shares []share) float64 {
	points := []float64{0}
	for _, s := range shares {
		target := max(s.target, minTarget)
		points = append(points, s.lowest/target, s.highest/target)
	}
	slices.Sort(points)
	before, reached := 0.0, 0.0
	for _, point := range points {
		total := 0.0
		for _, s := range shares {
			total += s.at(point)
		}
		if total >= sum && total > reached && point > before {
			return before + (point-before)*max(0, sum-reached)/(total-reached)
		}
		before, reached = point, total
	}
	return before
}
