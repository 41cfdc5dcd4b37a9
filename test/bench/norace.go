//go:build !race

package main

// raceDetector says whether this program is built with the race detector.
const raceDetector = false
