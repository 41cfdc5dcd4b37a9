package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/trace"
	"github.com/apikeel/kelson/trace/otlp"
)

// lastTraces bounds how long the end of the server waits for a collector.
const lastTraces = 2 * time.Second

// tracing makes the tracer, if one is wanted.
func (a *assembly) tracing() error {
	if a.TracingFile == "" {
		return nil
	}
	config, err := trace.ReadConfig(a.TracingFile)
	if err != nil {
		return err
	}
	endpoint := trace.DefaultEndpoint
	if config.Endpoint != nil {
		endpoint = cmp.Or(*config.Endpoint, endpoint)
	}
	resource := []trace.Attribute{trace.String("service.instance.id", measure.ServerName()), trace.String("service.name", "apiserver")}
	exporter, err := otlp.New(endpoint, resource, a.Logger)
	if err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	a.outer.Tracer = &trace.Tracer{Ratio: config.Ratio(), Export: exporter.Add}
	a.onClose(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastTraces)
		defer cancel()
		if err := exporter.Close(ctx); err != nil {
			a.Logger.Warn("the last traces could not be sent", "error", err)
		}
	})
	return nil
}
