package metrics

import (
	"net/http"
	"net/http/httptest"
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
