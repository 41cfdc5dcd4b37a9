//go:build linux

package main

import (
	"fmt"
	"strings"
)

// What clients of a scenario do.
const (
	doList      = "list"      // get lists, one after the other
	doWatchList = "watchlist" // watch with the initial events, again and again
	doWrite     = "write"     // create and patch large Secrets
	doEvents    = "events"    // create Events
	doLeases    = "leases"    // patch Leases
	doConnect   = "connect"   // once a second, get one object on a new connection
	doHerd      = "herd"      // keep a watch open, also when the server is started again
	doUnread    = "unread"    // ask for an object many times at once, and take no byte of it
	doWatches   = "watches"   // open many watches at once, and keep them
)

// How clients of a scenario read.
const (
	readAll    = ""
	readSlowly = "slowly"
	readNever  = "never"
)

// Data that the server is filled with before a scenario.
const (
	largeData = "large"
	smallData = "small"
	mixedData = "mixed" // both
)

const (
	mediaJSON     = "application/json"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
	mediaTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// scenario is what the clients of a storm do. It travels to their process as JSON.
type scenario struct {
	Name   string
	About  string
	Data   string
	Do     string
	Accept string
	Gzip   bool
	Query  string
	Read   string
	// Honest clients, of another user, list the same objects as usual meanwhile.
	Honest int
	// Changes tells that the data must be a copy, since the storm changes it.
	Changes bool
}

// path returns what clients list.
func (s scenario) path() string {
	if s.Data == smallData {
		return "/api/v1/namespaces/" + namespace + "/configmaps"
	}
	return "/api/v1/namespaces/" + namespace + "/secrets"
}

func scenarios() []scenario {
	const initialEvents = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	return []scenario{
		{Name: "list-json", About: "lists of large Secrets as JSON", Data: largeData, Do: doList, Accept: mediaJSON},
		{Name: "list-json-rv0", About: "the same with resourceVersion=0", Data: largeData, Do: doList, Accept: mediaJSON, Query: "resourceVersion=0"},
		{Name: "list-protobuf", About: "lists of large Secrets as protobuf", Data: largeData, Do: doList, Accept: mediaProtobuf},
		{Name: "list-protobuf-rv0", About: "the same with resourceVersion=0", Data: largeData, Do: doList, Accept: mediaProtobuf, Query: "resourceVersion=0"},
		{Name: "list-table", About: "lists of large Secrets as Table, which has no data", Data: largeData, Do: doList, Accept: mediaTable},
		{Name: "list-gzip", About: "lists of large Secrets as JSON, compressed", Data: largeData, Do: doList, Accept: mediaJSON, Gzip: true},
		{Name: "watchlist", About: "streaming lists of large Secrets (sendInitialEvents=true)", Data: largeData, Do: doWatchList, Accept: mediaJSON, Query: initialEvents},
		{Name: "slow", About: "lists of large Secrets read at 10 KB/s, beside 4 clients that read as usual", Data: largeData, Do: doList, Accept: mediaJSON, Read: readSlowly, Honest: 4},
		{Name: "never", About: "lists of large Secrets that nobody reads, beside 4 clients that read as usual", Data: largeData, Do: doList, Accept: mediaJSON, Read: readNever, Honest: 4},
		{Name: "small-json", About: "lists of many small ConfigMaps as JSON", Data: smallData, Do: doList, Accept: mediaJSON},
		{Name: "small-protobuf", About: "lists of many small ConfigMaps as protobuf", Data: smallData, Do: doList, Accept: mediaProtobuf},
		{Name: "small-table", About: "lists of many small ConfigMaps as Table", Data: smallData, Do: doList, Accept: mediaTable},
		{Name: "small-gzip", About: "lists of many small ConfigMaps as JSON, compressed", Data: smallData, Do: doList, Accept: mediaJSON, Gzip: true},
		{Name: "small-watchlist", About: "streaming lists of many small ConfigMaps", Data: smallData, Do: doWatchList, Accept: mediaJSON, Query: initialEvents},
		{Name: "small-never", About: "lists of many small ConfigMaps that nobody reads, beside 4 clients that read as usual", Data: smallData, Do: doList, Accept: mediaJSON, Read: readNever, Honest: 4},
		{Name: "writers", About: "each client creates 4 large Secrets and then patches them", Data: largeData, Do: doWrite, Accept: mediaJSON, Changes: true},
		{Name: "events", About: "a flood of Events", Data: smallData, Do: doEvents, Accept: mediaJSON, Changes: true},
		{Name: "leases", About: "a flood of changes of Leases", Data: smallData, Do: doLeases, Accept: mediaJSON, Changes: true},
		{Name: "connects", About: "every client makes a TLS connection a second and gets one object", Data: smallData, Do: doConnect, Accept: mediaJSON},
		{Name: "unread", About: "each client asks for an object of 60 KB 100 times at once and takes no byte of it, beside 4 clients that read as usual", Data: smallData, Do: doUnread, Accept: mediaJSON, Read: readNever, Honest: 4, Changes: true},
		{Name: "watches", About: "each client opens 100 watches at once and keeps those that it gets, beside 4 clients that read as usual", Data: smallData, Do: doWatches, Accept: mediaJSON, Read: readNever, Honest: 4},
		{Name: "herd", About: "the server is started again, and all clients resume their watches at once", Data: smallData, Do: doHerd, Accept: mediaJSON},
	}
}

// findScenarios returns the scenarios of a list of names.
func findScenarios(names string) (found []scenario, err error) {
	if names == "all" {
		return scenarios(), nil
	}
next:
	for name := range strings.SplitSeq(names, ",") {
		for _, s := range scenarios() {
			if s.Name == strings.TrimSpace(name) {
				found = append(found, s)
				continue next
			}
		}
		return nil, fmt.Errorf("-scenario: there is no %q; -list shows all", name)
	}
	return found, nil
}
