package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// TestLabelsThatAreNotText: clients choose some labels, such as their names. Bytes that
// are not UTF-8 must end neither a scrape nor the process, and must not make one series
// pass for another.
func TestLabelsThatAreNotText(t *testing.T) {
	r := New()
	counters := r.Counters("things_total", "[ALPHA] Things.", "first", "second")
	gauges := r.gauges("level", "[ALPHA] A level.", "first", "second")
	histograms := r.Histograms("took_seconds", "[ALPHA] Time.", []float64{1}, "first", "second")
	for _, labels := range [][]string{{"a\xffb", "c"}, {"a", "b\xffc"}, {"\xff", "\xff\xff"}, {"\xc3", "\x80"}, {"", ""}} {
		counters.WithLabelValues(labels...).Inc()
		gauges.WithLabelValues(labels...).Set(1)
		histograms.WithLabelValues(labels...).Observe(0.5)
	}
	w := httptest.NewRecorder()
	r.Handler(false).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	// What cannot be told apart as text is one series.
	for prefix, want := range map[string]int{"things_total{": 4, "level{": 4, "took_seconds_count{": 4} {
		if got := strings.Count(w.Body.String(), "\n"+prefix); got != want {
			t.Errorf("got %d series %s, want %d", got, prefix, want)
		}
	}
	if w.Code != http.StatusOK {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// TestManySeries: no series is lost, and none is there twice, when there are more than
// are kept without a map.
func TestManySeries(t *testing.T) {
	r := New()
	counters := r.Counters("things_total", "[ALPHA] Things.", "name")
	for n := 1; n <= 3*maxFew; n++ {
		for i := range n {
			counters.WithLabelValues(strconv.Itoa(i)).Inc()
		}
		if got := strings.Count(show(t, r), "\nthings_total{"); got != n {
			t.Fatalf("got %d series, want %d", got, n)
		}
	}
	if want := fmt.Sprintf("\nthings_total{name=\"0\"} %d\n", 3*maxFew); !strings.Contains(show(t, r), want) {
		t.Errorf("got no %s", want)
	}
}
