package request

import (
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// ListOptions is what the query of a list, watch or delete of a collection means. The authorizer,
// flow control, accounts and the handler all decide by it, so that what is done is what was
// allowed and what was paid for.
type ListOptions struct {
	// Limit and TimeoutSeconds are 0 if they are absent or NumberErr is set.
	Limit, TimeoutSeconds int64
	NumberErr             error
	// Labels and Fields select everything if they are absent or their error is set.
	Labels    labels.Selector
	LabelsErr error
	Fields    fields.Selector
	FieldsErr error
	// Revision is ResourceVersion as a number; 0 if it is absent or RevisionErr is set.
	Revision        int64
	RevisionErr     error
	ResourceVersion string
	Match           metav1.ResourceVersionMatch
	Continue        string
	Bookmarks       bool
	// InitialEvents is nil if the parameter sendInitialEvents is absent.
	InitialEvents *bool
	// Shard is the text of a shard selector, which not all servers heed.
	Shard string
}

// ListOptions returns the options of a list, watch or delete of a collection. They are parsed by
// the first call, which belongs to the goroutine that serves the request like all others.
func (i *Info) ListOptions() *ListOptions {
	if i.options == nil {
		i.options = i.Query.listOptions()
	}
	return i.options
}

func (q Query) listOptions() *ListOptions {
	o := &ListOptions{
		Labels: labels.Everything(), Fields: fields.Everything(),
		ResourceVersion: q.Get("resourceVersion"), Match: metav1.ResourceVersionMatch(q.Get("resourceVersionMatch")),
		Continue: q.Get("continue"), Bookmarks: q.Bool("allowWatchBookmarks"), Shard: q.Get("shardSelector"),
	}
	o.TimeoutSeconds, o.Limit, o.NumberErr = q.numbers()
	if text := q.Get("labelSelector"); text != "" {
		if parsed, err := labels.Parse(text); err != nil {
			o.LabelsErr = err
		} else {
			o.Labels = parsed
		}
	}
	if text := q.Get("fieldSelector"); text != "" {
		if parsed, err := fields.ParseSelector(text); err != nil {
			o.FieldsErr = err
		} else {
			o.Fields = parsed
		}
	}
	o.Revision, o.RevisionErr = ParseRevision(o.ResourceVersion)
	if q.Has("sendInitialEvents") {
		wanted := q.Bool("sendInitialEvents")
		o.InitialEvents = &wanted
	}
	return o
}

// numbers returns the numbers of list options, and the error of the first that is none.
func (q Query) numbers() (timeout, limit int64, err error) {
	if timeout, err = q.Int("timeoutSeconds"); err == nil {
		limit, err = q.Int("limit")
	}
	if err != nil {
		return 0, 0, err
	}
	return timeout, limit, nil
}

// Int returns the first value for a key as a number; 0 if there is none.
func (q Query) Int(key string) (int64, error) {
	text, ok := q.Lookup(key)
	if !ok {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// maxRevision is the largest revision that is told from larger ones, which no store reaches.
const maxRevision = 1 << 62

// ParseRevision parses a resourceVersion; the empty one is 0.
func ParseRevision(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, err
	}
	return int64(min(n, maxRevision)), nil
}

// AtAnyRevision reports whether the state that is at hand will do, however old it is.
func (o *ListOptions) AtAnyRevision() bool {
	return o.ResourceVersion != "" && o.Revision == 0 && o.RevisionErr == nil
}

// PageLimit returns the largest number of objects of a page, 0 if the list comes whole: without
// a limit, and at any revision, unless the resource is one that kube-apiserver does not cache.
func (o *ListOptions) PageLimit(uncached bool) int64 {
	if o.AtAnyRevision() && !uncached {
		return 0
	}
	return max(0, o.Limit)
}

// Selects reports whether selectors choose some of the objects.
func (o *ListOptions) Selects() bool { return !o.Labels.Empty() || !o.Fields.Empty() || o.Shard != "" }

// ReadsState reports whether a watch reads all objects before the first event: it sends them,
// or begins at no revision that is named.
func (o *ListOptions) ReadsState() bool {
	return o.InitialEvents != nil && *o.InitialEvents || o.Revision == 0 && o.RevisionErr == nil
}
