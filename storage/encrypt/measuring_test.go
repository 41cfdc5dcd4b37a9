package encrypt

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/measuretest"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/storage"
)

func measured(t *testing.T, below storage.Backend, text string) (*Backend, *measuretest.Sink) {
	t.Helper()
	sink := &measuretest.Sink{}
	b, err := Open(below, Options{File: write(t, "", text), Resource: owner, Metrics: sink})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Release)
	return b, sink
}

// observed fails unless series with a prefix were observed as often as wanted.
func observed(t *testing.T, sink *measuretest.Sink, prefix string, want map[string]int) {
	t.Helper()
	got := map[string]int{}
	for name, n := range sink.Names() {
		if strings.HasPrefix(name, prefix) {
			got[name] = n
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s: %v, want %v", prefix, got, want)
	}
}

func TestTransformationsMeasured(t *testing.T) {
	below := inMemory(t)
	b, sink := measured(t, below, file("secrets", provider("aescbc", "a"), plain))
	if _, err := b.Create(t.Context(), key, []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	const total, seconds, cbc = measure.Transformations, measure.TransformationDuration, "k8s:enc:aescbc:v1:"
	observed(t, sink, "apiserver_storage_transformation", map[string]int{
		total + " secrets to_storage " + cbc + " OK": 1, total + " secrets to_storage a: OK": 1,
		total + " secrets from_storage " + cbc + " OK": 1, total + " secrets from_storage a: OK": 1,
		seconds + " to_storage " + cbc: 1, seconds + " to_storage a:": 1, seconds + " from_storage " + cbc: 1, seconds + " from_storage a:": 1,
	})

	other, sink := measured(t, below, file("secrets", plain, provider("aescbc", "b")))
	if _, err := other.Get(t.Context(), key); err == nil {
		t.Fatal("it is read with another key")
	}
	if _, err := other.Create(t.Context(), key+"2", []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Get(t.Context(), key+"2"); err != nil {
		t.Fatal(err)
	}
	observed(t, sink, total, map[string]int{
		total + " secrets from_storage unknown unknown-non-grpc": 1, total + " secrets from_storage " + cbc + " unknown-non-grpc": 1,
		total + " secrets to_storage  OK": 1, total + " secrets from_storage identity OK": 1,
	})
}

func TestKMSMeasured(t *testing.T) {
	s, provider := serveKMS(t)
	below := inMemory(t)
	b, sink := measured(t, below, file("secrets", provider))
	if _, err := b.Create(t.Context(), key, []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	other, reading := measured(t, below, file("secrets", provider))
	for range 2 {
		if _, err := other.Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	const method = " k /v2.KeyManagementService/"
	one, server := hash("1"), hash(measure.ServerName())
	used := func(metric, direction string) string { return metric + " " + direction + " k " + one + " " + server }
	observed(t, sink, "apiserver_envelope_encryption", map[string]int{
		measure.KMSDuration + method + "Status OK": 1, measure.KMSDuration + method + "Encrypt OK": 1, measure.KMSDuration + method + "Decrypt OK": 1,
		used(measure.KMSKeyUses, toStorage): 1, used(measure.KMSKeyLastUse, toStorage): 1,
		measure.KMSKeyLastStatus + " k " + one + " " + server: 1, measure.KMSSources + " k": 1,
	})
	observed(t, reading, "apiserver_envelope_encryption", map[string]int{
		measure.KMSDuration + method + "Status OK": 1, measure.KMSDuration + method + "Encrypt OK": 1, measure.KMSDuration + method + "Decrypt OK": 2,
		used(measure.KMSKeyUses, fromStorage): 2, used(measure.KMSKeyLastUse, fromStorage): 2,
		measure.KMSKeyLastStatus + " k " + one + " " + server: 1, measure.KMSSources + " k": 2,
	})
	observed(t, sink, "apiserver_storage_data_key", map[string]int{measure.DataKeyDuration: 1})
	observed(t, reading, measure.DataKeyMisses, map[string]int{measure.DataKeyMisses: 1})
	if n := reading.Of(measure.KMSSources, "k"); n[len(n)-1] != 2 {
		t.Errorf("there are %v seeds, want 2: the one that was read, and the server's own", n)
	}

	p := b.current.Load().plugins[0].(*plugin)
	then := time.Now()
	p.now = func() time.Time { return then }
	for _, id := range []string{"", strings.Repeat("x", maxKeyID+1)} {
		s.set(id, "ok")
		then = then.Add(healthyTTL)
		if b.Check(t.Context()) == nil {
			t.Errorf("a key of %d bytes is fine", len(id))
		}
	}
	observed(t, sink, measure.KMSInvalidKeys, map[string]int{measure.KMSInvalidKeys + " k empty": 1, measure.KMSInvalidKeys + " k too_long": 1})
}
