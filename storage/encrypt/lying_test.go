package encrypt

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A service that lies gets no value to write that could not be read again, and its texts do not fill the
// memory or the log.
func TestLyingServiceWritesNothing(t *testing.T) {
	huge := strings.Repeat("x", 3<<20)
	for name, lie := range map[string]func(s *service){
		"it decrypts to something else": func(s *service) {
			s.unseal = func(plain []byte) ([]byte, error) { return bytes.Repeat([]byte{7}, len(plain)), nil }
		},
		"it decrypts to nothing":   func(s *service) { s.unseal = func([]byte) ([]byte, error) { return nil, nil } },
		"it decrypts to megabytes": func(s *service) { s.unseal = func([]byte) ([]byte, error) { return []byte(huge), nil } },
		"it encrypts to megabytes": func(s *service) { s.seal = func([]byte) ([]byte, error) { return []byte(huge), nil } },
		"it encrypts to too much":  func(s *service) { s.seal = func([]byte) ([]byte, error) { return make([]byte, maxSource+1), nil } },
		"it encrypts to nothing":   func(s *service) { s.seal = func([]byte) ([]byte, error) { return nil, nil } },
		"it cannot decrypt, and says so": func(s *service) {
			s.unseal = func([]byte) ([]byte, error) { return nil, status.Error(codes.Internal, huge) }
		},
		"it is ill, at length":    func(s *service) { s.keyID, s.healthz = "", huge[:100<<10] },
		"its key has a long name": func(s *service) { s.keyID = huge[:100<<10] },
	} {
		t.Run(name, func(t *testing.T) {
			s, provider := serveKMS(t)
			s.mu.Lock()
			lie(s)
			s.mu.Unlock()
			b := open(t, inMemory(t), file("secrets", provider))
			if _, err := b.Create(t.Context(), key, []byte("value"), 0); !errors.Is(err, errNoSeed) {
				t.Errorf("a value was written: %v, want %v", err, errNoSeed)
			}
			if err := b.Check(t.Context()); err == nil || len(err.Error()) > 4<<10 {
				t.Errorf("the check says %d bytes (%.300v), want an error of at most 4 KiB", len(errorText(err)), err)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Two seeds that a service encrypts to the same bytes could not be told apart.
func TestSameCiphertextOfTwoSeedsIsRefused(t *testing.T) {
	s, provider := serveKMS(t)
	b := open(t, inMemory(t), file("secrets", provider))
	if _, err := b.Create(t.Context(), key, []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	p := b.current.Load().plugins[0].(*plugin)
	now := time.Now()
	p.now = func() time.Time { return now }
	was := p.current.Load()
	s.mu.Lock()
	s.seal = func([]byte) ([]byte, error) { return was.ciphertext, nil }
	s.mu.Unlock()
	// It goes back to the key of the first seed after another one, so that the source is the same.
	p.current.Store(&seedState{source: source{keyID: "other"}, expires: now.Add(time.Hour)})
	now = now.Add(healthyTTL)
	if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "encrypts different DEKs to the same bytes") {
		t.Errorf("the check: %v", err)
	}
	if kv, err := b.Get(t.Context(), key); err != nil || string(kv.Value) != "value" {
		t.Errorf("read is %q, %v, want what was written", kv.Value, err)
	}
}

// A wrong answer is not remembered: when the service tells the truth again, values can be read again.
func TestWrongSeedIsNotKept(t *testing.T) {
	s, provider := serveKMS(t)
	below := inMemory(t)
	if _, err := open(t, below, file("secrets", provider)).Create(t.Context(), key, []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	b := open(t, below, file("secrets", provider))
	set := func(unseal func([]byte) ([]byte, error)) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unseal = unseal
	}
	set(func(plain []byte) ([]byte, error) { return bytes.Repeat([]byte{7}, len(plain)), nil })
	if _, err := b.Get(t.Context(), key); !errors.Is(err, ErrUnreadable) {
		t.Errorf("with a wrong seed: %v, want %v", err, ErrUnreadable)
	}
	set(nil)
	if kv, err := b.Get(t.Context(), key); err != nil || string(kv.Value) != "value" {
		t.Errorf("read is %q, %v, want what was written", kv.Value, err)
	}
}
