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

// This file holds the metrics of encryption.

// The directions of a transformation, as the metrics label them.
const (
	toStorage   = "to_storage"
	fromStorage = "from_storage"
)

// maxSeries bounds the number of cached series. There are few unless the key of a KMS
// changes all the time.
const maxSeries = 1000

// measuring records the metrics of encryption. It caches series, since a value is
// transformed on every read. A nil measuring records nothing.
type measuring struct {
	to       measure.Sink
	resource func(key string) (group, resource string)
	server   string // hash of the API server's name, a label

	mu     sync.RWMutex
	series map[seriesKey]measure.Series
}

// seriesKey identifies a series: the metric and its labels.
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

// transformed records that the value of a key was encrypted or decrypted by the
// transformer with a prefix.
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

// keyUsed records a use of a KMS key.
func (m *measuring) keyUsed(direction, provider, keyID string) {
	if m == nil {
		return
	}
	id := hash(keyID)
	m.observe(1, measure.KMSKeyUses, direction, provider, id, m.server)
	m.observe(now(), measure.KMSKeyLastUse, direction, provider, id, m.server)
}

// noteKeyID records the key ID that a KMS plugin has reported.
func (m *measuring) noteKeyID(provider, keyID string) {
	if m != nil {
		m.observe(now(), measure.KMSKeyLastStatus, provider, hash(keyID), m.server)
	}
}

// invalidKey counts an invalid key ID (empty or too long) from a KMS plugin.
func (m *measuring) invalidKey(provider, keyID string) {
	why := "too_long"
	if keyID == "" {
		why = "empty"
	}
	m.observe(1, measure.KMSInvalidKeys, provider, why)
}

// interceptCalls returns a gRPC interceptor that measures the latency of a KMS plugin.
func (m *measuring) interceptCalls(provider string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		began := time.Now()
		err := invoke(ctx, method, req, reply, cc, opts...)
		m.observe(time.Since(began).Seconds(), measure.KMSDuration, provider, method, code(err))
		return err
	}
}

func now() float64 { return float64(time.Now().UnixNano()) / 1e9 }

// code returns the gRPC code of an error, as the metrics label it.
func code(err error) string {
	var remote interface{ GRPCStatus() *status.Status }
	if err != nil && !errors.As(err, &remote) {
		return "unknown-non-grpc"
	}
	return status.Code(err).String()
}
