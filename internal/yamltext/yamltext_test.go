package yamltext

import (
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"
)

// hostile are texts of 60 KB and more that take far more memory than their size.
func hostile() map[string]string {
	return map[string]string{
		"numbers":  `{"a":[` + strings.Repeat("1,", 60_000) + `1]}`,
		"objects":  `{"a":[` + strings.Repeat(`{"a":1},`, 20_000) + `1]}`,
		"empty":    `{"a":[` + strings.Repeat(`{},`, 40_000) + `1]}`,
		"deep":     strings.Repeat(`{"a":`, 2000) + "1" + strings.Repeat("}", 2000),
		"one text": `{"a":"` + strings.Repeat("x", 1_000_000) + `"}`,
		"commas":   `{"a":"` + strings.Repeat(`,\"`, 100_000) + `"}`,
	}
}

// TestEstimate: what a conversion is taken to need is what it needs, or more.
func TestEstimate(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	measure := func(work func()) int64 {
		runtime.GC()
		var before, now runtime.MemStats
		runtime.ReadMemStats(&before)
		var peak atomic.Uint64
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				runtime.ReadMemStats(&now)
				peak.Store(max(peak.Load(), now.HeapAlloc))
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
				}
			}
		}()
		work()
		close(stop)
		<-stopped
		return int64(peak.Load()) - int64(before.HeapAlloc)
	}
	for name, text := range hostile() {
		for _, c := range []struct {
			estimate func([]byte) int64
			work     func([]byte) ([]byte, error)
		}{{memoryToWrite, yaml.JSONToYAML}, {memoryToRead, yaml.YAMLToJSON}} {
			estimate := c.estimate([]byte(text))
			// It may have another 25%, for garbage.
			if peak := measure(func() { _, _ = c.work([]byte(text)) }); peak > estimate+estimate/4+2<<20 {
				t.Errorf("%s: it took %d bytes, and was taken to need %d", name, peak, estimate)
			}
		}
	}
}

// TestLimit: what would not fit is refused, and the rest waits for its turn.
func TestLimit(t *testing.T) {
	SetLimit(10 << 20)
	defer gate.Store(nil)
	for name, text := range hostile() {
		_, err := FromJSON([]byte(text))
		if refused := apierrors.IsNotAcceptable(err) && IsRefusal(err); refused != (name != "one text" && name != "commas") {
			t.Errorf("%s to YAML: got %v", name, err)
		}
		_, err = ToJSON([]byte(text))
		if refused := apierrors.IsRequestEntityTooLargeError(err) && IsRefusal(err); refused != (name != "one text" && name != "deep") {
			t.Errorf("%s from YAML: got %v", name, err)
		}
	}
	text := []byte(`{"a":[` + strings.Repeat("1,", 10_000) + `1]}`) // 8.5 MB
	done := make(chan error, 8)
	for range cap(done) {
		go func() { _, err := FromJSON(text); done <- err }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
