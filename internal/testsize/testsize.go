// Package testsize says how much work tests do. Tests with repetitions, seeds or many
// clients ask Pick how many of them there is time for.
package testsize

import "os"

// Long reports whether the long suite is to run, which takes an hour: KELSON_LONG is
// set.
func Long() bool { return os.Getenv("KELSON_LONG") != "" }

// Race reports whether the test is built with the race detector.
func Race() bool { return race }

// Pick returns how much a test does: a little with the race detector, which makes it
// five to ten times slower and needs goroutines that meet, not many rounds; much in the
// long suite.
func Pick(withRace, ordinary, long int) int {
	switch {
	case Long():
		return long
	case race:
		return withRace
	}
	return ordinary
}

// Part returns a share of the ordinary size with the race detector, all of it otherwise.
func Part(ordinary, divisor int) int { return Pick(max(1, ordinary/divisor), ordinary, ordinary) }
