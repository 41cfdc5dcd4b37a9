package main

import (
	"fmt"
	"math"
	"slices"
)

// quantile returns the value below which a share q of the sorted values is.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// median returns the middle of values in any order.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return quantile(sorted, 0.5)
}

// ratio is an estimate of how many times as much one server costs as another.
type ratio struct {
	Estimate   float64 `json:"estimate"`
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Confidence float64 `json:"confidence"` // that the ratio is from Low to High
	P          float64 `json:"p"`          // of ratios at least this far from 1 if there is no difference
	Rounds     int     `json:"rounds"`
}

// wantedConfidence is the confidence of intervals, if there are enough rounds for it (six).
const wantedConfidence = 0.95

// compareRounds estimates the ratio of costs that were measured in turn: above[i] and
// below[i] are of one round, so that what else went on on the machine is in both.
//
// It is the estimate of Hodges and Lehmann with the interval of Wilcoxon's signed ranks,
// on logarithms of the ratios. It does not assume a distribution, and a round that was
// disturbed counts no more than another.
func compareRounds(above, below []float64) ratio {
	var logs []float64
	for i := range min(len(above), len(below)) {
		if above[i] > 0 && below[i] > 0 {
			logs = append(logs, math.Log(above[i]/below[i]))
		}
	}
	n := len(logs)
	if n == 0 {
		nan := math.NaN()
		return ratio{Estimate: nan, Low: nan, High: nan, P: 1}
	}
	var walsh []float64 // means of all pairs
	for i, a := range logs {
		for _, b := range logs[i:] {
			walsh = append(walsh, (a+b)/2)
		}
	}
	slices.Sort(walsh)
	tail := signedRankTail(n)
	// The interval leaves out the k lowest and the k highest means, as many as the
	// confidence allows. With too few rounds it leaves out none and has less confidence.
	k := 0
	for k+1 < len(walsh)/2 && 2*tail[k+1] <= 1-wantedConfidence {
		k++
	}
	// How many means are on the lesser side of no difference.
	less := 0.0
	for _, w := range walsh {
		switch {
		case w < 0:
			less++
		case w == 0:
			less += 0.5
		}
	}
	less = min(less, float64(len(walsh))-less)
	return ratio{
		Estimate: math.Exp(quantile(walsh, 0.5)), Low: math.Exp(walsh[k]), High: math.Exp(walsh[len(walsh)-1-k]),
		Confidence: 1 - 2*tail[k], P: min(1, 2*tail[int(less)]), Rounds: n,
	}
}

// signedRankTail returns, for each w, how probable it is that the sum of the positive
// ranks of n values that are symmetric about zero is at most w.
func signedRankTail(n int) []float64 {
	most := n * (n + 1) / 2
	ways := make([]float64, most+1)
	ways[0] = 1
	for rank := 1; rank <= n; rank++ {
		for sum := most; sum >= rank; sum-- {
			ways[sum] += ways[sum-rank]
		}
	}
	total := math.Pow(2, float64(n))
	tail, sum := make([]float64, most+1), 0.0
	for w, count := range ways {
		sum += count
		tail[w] = sum / total
	}
	return tail
}

// differs reports whether the interval leaves out 1.
func (r ratio) differs() bool { return r.Low > 1 || r.High < 1 }

// String is the ratio with its interval, and a tilde if no difference was seen.
func (r ratio) String() string {
	if math.IsNaN(r.Estimate) {
		return "–"
	}
	mark := ""
	if !r.differs() {
		mark = "~ "
	}
	return fmt.Sprintf("%s×%s (%s–%s)", mark, figures(r.Estimate), figures(r.Low), figures(r.High))
}

// figures is a number with three figures, without an exponent.
func figures(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case size == 0:
		return "0"
	case size >= 1000:
		return fmt.Sprintf("%.0f", v)
	default:
		digits := max(0, 2-int(math.Floor(math.Log10(size))))
		text := fmt.Sprintf("%.*f", min(digits, 6), v)
		if digits > 0 {
			for text[len(text)-1] == '0' {
				text = text[:len(text)-1]
			}
			if text[len(text)-1] == '.' {
				text = text[:len(text)-1]
			}
		}
		return text
	}
}
