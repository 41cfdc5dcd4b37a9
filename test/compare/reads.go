//go:build linux

package main

import (
	"net/http"
	"net/url"
	"strings"
)

// This file makes gets, lists and watches.

func (c *client) get() *request {
	k := c.target()
	if !k.res.can("get") {
		return nil
	}
	q := &request{method: "GET", path: k.path(), res: k.res, verb: "get", query: url.Values{}}
	if chance(c.r, 15) {
		q.query.Set("resourceVersion", c.revision())
	}
	return q
}

func (c *client) revision() string {
	if len(c.revisions) > 0 && chance(c.r, 60) {
		return pick(c.r, c.revisions)
	}
	return pick(c.r, []string{"0", "0", "", "x", "-1"})
}

// selectors sets selectors; the objects of others are left out.
func (c *client) selectors(q *request, res *resource, ns string) {
	if ns == "" || chance(c.r, 40) {
		q.query.Set("labelSelector", pick(c.r, []string{"owner=" + c.name, "owner=" + c.name + ",app", "owner in (" + c.name + "),app!=a", "owner==" + c.name + ",!x", "owner=" + c.name + ",app notin (b,c)"}))
		if ns != "" && chance(c.r, 10) {
			q.query.Set("labelSelector", pick(c.r, []string{"", "a=b=c", "a in b", "!", "a>1", "a/b/c=1", strings.Repeat("a", 70)}))
		}
	}
	if chance(c.r, 20) {
		q.query.Set("fieldSelector", pick(c.r, []string{"metadata.name=a", "metadata.name!=a", "metadata.namespace=" + c.name, "metadata.name=", "spec.nodeName=n1", "status.phase=Running", "status.phase!=Running", "type=Opaque", "spec.color=red", "spec.size=3", "spec.unknown=1", "metadata.labels.a=b", "a", "metadata.name=a,metadata.name=b", "reason=x", "involvedObject.kind=Pod", "spec.unschedulable=true", "status.replicas=0", "status.successful=1", "spec.signerName=a/b", "metadata.name=a\\,b"}))
	}
}

func (c *client) list() *request {
	res := c.resource()
	if len(c.objects) > 0 && chance(c.r, 60) {
		res = pick(c.r, c.objects).res
	}
	if !res.can("list") || res.plural == "componentstatuses" {
		return nil
	}
	ns := ""
	if res.namespaced && chance(c.r, 90) {
		ns = pick(c.r, c.namespaces)
	}
	q := &request{method: "GET", path: res.collection(ns), res: res, verb: "list", query: url.Values{}}
	c.selectors(q, res, ns)
	if chance(c.r, 30) {
		q.query.Set("limit", pick(c.r, []string{"1", "2", "500", "0", "-1", "x"}))
	}
	if len(c.continues) > 0 && chance(c.r, 10) {
		q.query.Set("continue", pick(c.r, append([]string{"x", "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ"}, c.continues[len(c.continues)-1])))
	}
	if chance(c.r, 20) {
		q.query.Set("resourceVersion", c.revision())
		if chance(c.r, 50) {
			q.query.Set("resourceVersionMatch", pick(c.r, []string{"Exact", "NotOlderThan", "bad", ""}))
		}
	}
	if chance(c.r, 3) {
		q.query.Set(pick(c.r, []string{"sendInitialEvents", "timeoutSeconds", "allowWatchBookmarks", "watch", "unknown", "shardSelector"}), pick(c.r, []string{"true", "1", "x", "false", ""}))
		if w := q.query.Get("watch"); w == "true" || w == "1" || q.query.Has("watch") && w == "" {
			q.query.Del("watch")
		}
	}
	return q
}

func (c *client) watch() *request {
	res := c.resource()
	if len(c.objects) > 0 && chance(c.r, 80) {
		res = pick(c.r, c.objects).res
	}
	if !res.can("watch") {
		return nil
	}
	ns := ""
	if res.namespaced {
		ns = pick(c.r, c.namespaces)
	}
	q := &request{method: "GET", path: res.collection(ns), res: res, verb: "watch", query: url.Values{"watch": {"true"}, "timeoutSeconds": {"1"}}}
	c.selectors(q, res, ns)
	if chance(c.r, 60) {
		q.query.Set("resourceVersion", c.revision())
	}
	if chance(c.r, 25) {
		q.query.Set("sendInitialEvents", pick(c.r, []string{"true", "false"}))
		if chance(c.r, 80) {
			q.query.Set("resourceVersionMatch", pick(c.r, []string{"NotOlderThan", "Exact"}))
		}
		if chance(c.r, 80) {
			q.query.Set("allowWatchBookmarks", "true")
		}
	}
	if chance(c.r, 15) {
		q.header = http.Header{"Accept": {pick(c.r, []string{"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/yaml", "text/plain", "application/json;stream=watch"})}}
	}
	return q
}
