package history

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/storage"
)

// Changes is the answer of ChangesPath.
type Changes struct {
	Kept Kept `json:"kept"`
	// Changes, the newest first.
	Changes []Change `json:"changes"`
	// Continue is the parameter continue of the next page; empty at the end.
	Continue string `json:"continue,omitempty"`
	// Hidden are the resources that the user may not list.
	Hidden []string `json:"hidden,omitempty"`
}

// Change is one write of one object.
type Change struct {
	Ref
	Revision int64 `json:"revision"`
	// Time of the commit. If Estimated is set, it is what the object says of its writers.
	Time      *time.Time `json:"time,omitempty"`
	Estimated bool       `json:"estimated,omitempty"`
	// Verb is create, update or delete.
	Verb string `json:"verb"`
	// Managers are the writers whose entries in managedFields the change has made. Those of
	// a deletion are not known.
	Managers []Manager `json:"managers,omitempty"`
	// User is whose request it was, if the store keeps that; empty if it is not known.
	User   string        `json:"user,omitempty"`
	Fields []FieldChange `json:"fields,omitempty"`
	// More says that there are more fields than are shown.
	More bool `json:"more,omitempty"`
	// Object is the object after the change, before it for a deletion; only if the
	// parameter objects is true.
	Object json.RawMessage `json:"object,omitempty"`
	// Error is why the versions cannot be shown: they cannot be decrypted or decoded.
	Error string `json:"error,omitempty"`
}

// changes answers with the changes of an object, a resource, a namespace, or everything.
// The parameter from is the first moment; continue is that of the page before; after is a
// revision that is known already.
func (p *Pages) changes(ctx context.Context, q *question) (any, error) {
	parts, hidden, err := p.parts(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := Changes{Hidden: hidden, Changes: []Change{}}
	if answer.Kept, err = q.kept(ctx); err != nil {
		return nil, err
	}
	opts := storage.ChangesOptions{Prefix: storage.Root, Limit: q.limit, MaxBytes: answerBytes}
	switch from, after := q.get("from"), q.get("after"); {
	case after != "":
		if opts.From, err = strconv.ParseInt(after, 10, 64); err != nil {
			return nil, apierrors.NewBadRequest("after is a revision")
		}
		if opts.From = max(0, opts.From); opts.From < math.MaxInt64 {
			opts.From++
		}
	case from != "":
		// A time before the history is no error: the answer tells where it begins.
		if opts.From, err = q.moment(ctx, "from"); err != nil && !errors.Is(err, storage.ErrCompacted) {
			return nil, err
		}
		if _, isRevision := strconv.ParseInt(from, 10, 64); isRevision != nil && err == nil {
			opts.From++ // the revision of a time was there before it
		}
	}
	if token := q.get("continue"); token != "" {
		if opts.To, err = strconv.ParseInt(token, 10, 64); err != nil || opts.To < 1 {
			return nil, apierrors.NewBadRequest("continue is not a token of this page")
		}
	} else {
		opts.To = answer.Kept.Newest
	}
	opts.From = max(opts.From, q.floor)
	byPrefix := map[string]*part{}
	for i := range parts {
		byPrefix[parts[i].prefix] = &parts[i]
	}
	if len(parts) == 1 {
		opts.Prefix = parts[0].only
		if parts[0].key {
			opts.Key = parts[0].only
		}
	}
	opts.Match = func(key string) bool { return find(byPrefix, key) != nil }
	if len(parts) == 0 || opts.From > opts.To {
		return answer, nil
	}
	objects := q.get("objects") == "true"
	size := 0
	complete, err := storage.Changes(ctx, q.backend, opts, func(c *storage.Change) error {
		part := find(byPrefix, c.KV.Key)
		change, selected := describe(part, c, objects, q)
		if selected {
			if size > answerBytes && len(change.Fields) > 0 {
				change.Fields, change.More = nil, true
			}
			size += len(change.Object) + sizeOf(change.Fields)
			answer.Changes = append(answer.Changes, change)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if complete > max(opts.From, answer.Kept.Oldest, 2) {
		answer.Continue = strconv.FormatInt(complete-1, 10)
	}
	return answer, nil
}

// describe makes a Change. It is not selected if neither version has the labels that were
// asked for.
func describe(p *part, c *storage.Change, objects bool, q *question) (out Change, selected bool) {
	out = Change{Ref: p.ref(c.KV.Key), Revision: c.KV.ModRevision, User: c.User}
	if !c.Time.IsZero() {
		t := c.Time.UTC()
		out.Time = &t
	}
	var before, after *object
	var errs [2]error
	if c.Op != storage.Created {
		before, errs[0] = p.object(&c.Prev)
	}
	if c.Op != storage.Deleted {
		after, errs[1] = p.object(&c.KV)
	}
	shown := after
	switch c.Op {
	case storage.Created:
		out.Verb = "create"
	case storage.Deleted:
		out.Verb, shown = "delete", before
	default:
		out.Verb = "update"
	}
	if err := errors.Join(errs[:]...); err != nil {
		out.Error = err.Error()
		return out, q.labels.Empty()
	}
	out.Managers = writers(before, after)
	if before != nil && after != nil {
		out.Fields, out.More = compare(before.fields, after.fields)
	}
	if out.Time == nil && c.Op != storage.Deleted {
		out.Time, out.Estimated = timeOf(after), true
	}
	if objects {
		out.Object = shown.json
	}
	return out, q.selects(before) || q.selects(after)
}
