package flow

import (
	"math"
	"slices"
	"time"
)

const (
	// adjustEvery is how often seats are lent anew.
	adjustEvery = 10 * time.Second
	// smoothing is how slowly less demand is believed: half of it in five
	// minutes. More is believed at once.
	smoothing = 0.977
	// leastTarget stands for the demand of levels that have none.
	leastTarget = 0.001
)

// demand is how many seats a level had use for over time: those in use, and
// those that were waited for.
type demand struct {
	value   int
	highest int
	at      time.Time
	// The integrals of 1, the value and its square over time in seconds.
	seconds, sum, squares float64

	// What was found the last time.
	found struct {
		highest            int
		average, deviation float64
		smoothed           float64
		target             float64 // what it was taken to need
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

// take looks at the demand since the last time and starts anew.
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

// share is how much of something somebody should get: as much as others in
// relation to the target, within bounds.
type share struct{ lowest, highest, target float64 }

// adjust shares the seats out anew, after what the levels have had use for
// lately. Who needs its own seats has them; the rest goes where the demand is. It
// returns the fraction of their targets that levels get which are not bound.
func adjust(levels []*level, now time.Time) (fraction float64) {
	var (
		seats       int // of all levels
		left        int // for those that are limited
		lowest, sum int // of what these must have: always, and now
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
			target = float64(n) // it has what it needs
		}
		l.setLimits(n, target, seats, now)
	}
	return fraction
}

// at is what a share comes to if everybody gets the same fraction of the target.
func (s share) at(fraction float64) float64 {
	return min(max(fraction*max(s.target, leastTarget), s.lowest), s.highest)
}

// fairFraction returns the fraction of their targets at which shares come to a
// sum, or as near to it as their bounds allow. The sum grows with the fraction,
// in straight lines between the points at which somebody reaches a bound.
func fairFraction(sum float64, shares []share) float64 {
	points := []float64{0}
	for _, s := range shares {
		target := max(s.target, leastTarget)
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
