// Package kelson is a Kubernetes API server as a library.
//
// A Server is one link of a chain: a request goes from one to the next until
// one knows its path.
//
//	aggregator → built-in groups → custom resources → 404
//
// The outermost is the one that runs. It takes over the hooks and health checks
// of those behind it, listens, sends every request through the pipeline
// (pipeline.go shows it, a line a stage), and owns the order in which things
// stop (run.go).
//
//	server := &kelson.Server{API: router}
//	if err := server.Run(ctx); err != nil { … }
//
// What a request asks for is described by package request, what a kind is by
// package resource, certificates are kept by package pki.
package kelson
