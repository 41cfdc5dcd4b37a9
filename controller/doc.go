// Package controller has the controllers that an API server cannot do without:
// namespace deletion, garbage collection, service accounts and their tokens,
// resource quotas, storage version migration. Start at Manager, which runs them, and
// Controller, which declares one.
//
// # Input: the Feed
//
// kube-controller-manager has a watch for every resource. Here all controllers share
// one stream, the Feed: the metadata of all objects when the controllers start, then
// every change in the order of revisions. Nothing is polled, no objects are kept in
// memory for controllers alone, and a controller that has seen a change has seen all
// earlier changes of every kind.
//
// # Output: the API
//
// The feed only says which object to look at. A controller reads the object and writes
// its changes through the API, as the service account that it has in
// kube-controller-manager. A controller must never read or write the store directly.
//
// # Structure of a controller
//
// Observe adds keys to a Queue and must not block. The Queue calls the controller's
// work function for one key at a time, retries after an error with backoff, and has no
// goroutine while it is empty.
package controller
