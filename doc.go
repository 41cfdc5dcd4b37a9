// Package kelson is a Kubernetes API server as a library. Start at Server, and at pipeline.go,
// the stages of a request in order.
//
// A Server is one link of a chain. A request goes down the chain until one Router knows its
// path:
//
//	aggregator → built-in groups → custom resources → 404
//
// The outermost Server runs. It takes over the hooks and health checks of those behind it,
// listens, sends every request through the pipeline, and controls the order of shutdown
// (run.go).
//
//	server := &kelson.Server{API: router}
//	if err := server.Run(ctx); err != nil { … }
//
// Package request describes what a request asks for, package resource what a kind is;
// package pki keeps certificates. This package must not import controlplane.
package kelson
