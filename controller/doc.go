// Package controller keeps the promises that the API makes and that somebody has
// to keep: a namespace that is deleted ends with all that is in it, dependents
// follow their owners, every namespace has its service account.
//
// # How controllers see the world
//
// kube-controller-manager has a watch for every resource. Here all controllers
// share one stream, the Feed: the metadata of all objects as the controllers
// start, and then every change in the order of revisions. So nothing is polled,
// nothing that nobody else uses has to be held in memory, and a controller that
// has seen a change has seen all that came before it, whatever the kind.
//
// The feed says where to look. What a controller decides by, and what it does,
// goes through the API like the requests of any client, under the name that the
// controller has in kube-controller-manager.
//
// # How they work
//
// A controller notes in Observe what has to be looked at, which must not block,
// and does the work in a Queue: a key at a time, again after an error, and with
// no goroutine while there is nothing to do.
package controller
