package storagetest

import (
	"testing"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
)

func modelSubject() Subject {
	return Subject{
		Open: func(t testing.TB) storage.Backend {
			m := newModel()
			t.Cleanup(func() { m.Close() })
			return m
		},
		Reopen: func(t testing.TB, b storage.Backend) storage.Backend {
			m := b.(*model).reopen()
			t.Cleanup(func() { m.Close() })
			return m
		},
		BenchmarkKeys: 100,
	}
}

func TestModel(t *testing.T) { Run(t, modelSubject()) }

func TestModelLong(t *testing.T) {
	if !testsize.Long() {
		t.Skip("takes minutes; set KELSON_LONG to run it")
	}
	RunLong(t, modelSubject())
}

func BenchmarkModel(b *testing.B) { Benchmark(b, modelSubject()) }
