package encrypt

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/metrics/measure"
)

// The directions, as metrics call them.
const (
	toStorage   = "to_storage"
	fromStorage = "from_storage"
)

// maxSeries bounds how many series are remembered. They are few unless keys
// change all the time.
const maxSeries = 1000

// measuring tells what is encrypted and decrypted. It remembers series, since
// values are many. Nil measures nothing.
type measuring struct {
	to       measure.Sink
	resource func(key string) (group, resource string)
	server   string // its name, hashed

	mu     sync.RWMutex
	series map[seriesKey]measure.Series
}

// seriesKey is a metric and its labels.
type seriesKey struct {
	metric string
	labels [4]string
}

func newMeasuring(opts Options) *measuring {
	if opts.Metrics == nil {
		return nil
	}
	return &measuring{
		to: opts.Metrics, resource: opts.Resource, server: hash(measure.ServerName()), series: map[seriesKey]measure.Series{},
	}
}

func (m *measuring) observe(value float64, metric string, labels ...string) {
	if m == nil {
		return
	}
	key := seriesKey{metric: metric}
	n := copy(key.labels[:], labels)
	m.mu.RLock()
	s := m.series[key]
	m.mu.RUnlock()
	if s == nil {
		s = m.to.Series(metric, append([]string(nil), key.labels[:n]...)...)
		m.mu.Lock()
		if len(m.series) >= maxSeries {
			clear(m.series)
		}
		m.series[key] = s
		m.mu.Unlock()
	}
	s.Observe(value)
}

// transformed counts that the value of a key was encrypted or decrypted, by what
// has a prefix.
func (m *measuring) transformed(key, direction, prefix string, began time.Time, err error) {
	if m == nil {
		return
	}
	group, resource := m.resource(key)
	m.observe(1, measure.Transformations, schema.GroupResource{Group: group, Resource: resource}.String(), direction, prefix, code(err))
	if err == nil {
		m.observe(time.Since(began).Seconds(), measure.TransformationDuration, direction, prefix)
	}
}

// keyUsed counts that a key of a service was used.
func (m *measuring) keyUsed(direction, provider, keyID string) {
	if m == nil {
		return
	}
	id := hash(keyID)
	m.observe(1, measure.KMSKeyUses, direction, provider, id, m.server)
	m.observe(now(), measure.KMSKeyLastUse, direction, provider, id, m.server)
}

// keyToldOf notes which key a service has.
func (m *measuring) keyToldOf(provider, keyID string) {
	if m != nil {
		m.observe(now(), measure.KMSKeyLastStatus, provider, hash(keyID), m.server)
	}
}

// invalidKey counts that a service has said that it has a key which cannot be.
func (m *measuring) invalidKey(provider, keyID string) {
	why := "too_long"
	if keyID == "" {
		why = "empty"
	}
	m.observe(1, measure.KMSInvalidKeys, provider, why)
}

// calls measures how long a service takes to answer.
func (m *measuring) calls(provider string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		began := time.Now()
		err := invoke(ctx, method, req, reply, cc, opts...)
		m.observe(time.Since(began).Seconds(), measure.KMSDuration, provider, method, code(err))
		return err
	}
}

func now() float64 { return float64(time.Now().UnixNano()) / 1e9 }

// code is an error as metrics have it.
func code(err error) string {
	var remote interface{ GRPCStatus() *status.Status }
	if err != nil && !errors.As(err, &remote) {
		return "unknown-non-grpc"
	}
	return status.Code(err).String()
}
