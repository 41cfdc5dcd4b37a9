package history

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// position is where the next page of a list goes on.
type position struct {
	// Revision is that of the list, From and To those of a comparison.
	Revision int64  `json:"r,omitempty"`
	From     int64  `json:"f,omitempty"`
	To       int64  `json:"t,omitempty"`
	Key      string `json:"k"`
}

func (p position) token() string {
	b, _ := json.Marshal(p)
	return base64.RawURLEncoding.EncodeToString(b)
}

func (q *question) position() (at position, err error) {
	token := q.get("continue")
	if token == "" {
		return at, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(b, &at)
	}
	if err != nil || at.Revision < 0 || at.From < 0 || at.To < 0 {
		return at, apierrors.NewBadRequest("continue is not a token of this page")
	}
	return at, nil
}

// selects reports whether an object has the labels that were asked for.
func (q *question) selects(o *object) bool {
	return o != nil && q.labels.MatchesLabels(o.meta.Labels)
}

// at answers with an object, or a list of a resource, as it was at the moment that the
// parameter at names. With the parameter table it is a table with the columns of the kind.
func (p *Pages) at(ctx context.Context, q *question) (any, error) {
	if q.served == nil {
		return nil, apierrors.NewBadRequest("resource is missing")
	}
	parts, _, err := p.parts(ctx, q)
	if err != nil {
		return nil, err
	}
	part := &parts[0]
	from, err := q.position()
	if err != nil {
		return nil, err
	}
	revision := from.Revision
	if revision == 0 {
		if revision, err = q.moment(ctx, "at"); err != nil {
			return nil, err
		}
	}
	if err := q.visible(revision); err != nil {
		return nil, err
	}
	encoder := wire.Encoder{Served: q.served, Now: time.Now(), Include: wire.IncludeMetadata}
	if q.get("table") == "true" {
		encoder.Format.Shape = wire.ShapeTable
	}
	if q.name != "" {
		kv, err := valueAt(ctx, q.backend, part.only, revision)
		if err != nil {
			return nil, err
		}
		if kv == nil {
			gone := apierrors.NewNotFound(q.served.GroupVersionResource().GroupResource(), q.name)
			gone.ErrStatus.Message += fmt.Sprintf(" at revision %d", revision)
			return nil, gone
		}
		rec, err := part.record(kv)
		if err != nil {
			return nil, err
		}
		body, err := encoder.AppendObject(nil, rec)
		return json.RawMessage(body), err
	}
	if from.Key != "" && !strings.HasPrefix(from.Key, part.only) {
		return nil, apierrors.NewBadRequest("continue is not a token of this list")
	}
	page, err := part.list(ctx, q, revision, from.Key)
	if err != nil {
		return nil, err
	}
	body, err := encoder.AppendList(nil, page)
	return json.RawMessage(body), err
}

// list reads a page of a list at a revision.
func (p *part) list(ctx context.Context, q *question, revision int64, start string) (*wire.Page, error) {
	selector, err := fields.ParseSelector(q.get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, r := range selector.Requirements() {
		if !p.hasField(r.Field) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", r.Field))
		}
	}
	chosen := q.labels.WithFields(selector)
	out := &wire.Page{Revision: revision, Selected: true}
	size := 0
	const perScan = 500
	for {
		last := ""
		page, err := storage.Scan(ctx, q.backend, p.only, storage.ListOptions{Revision: revision, Start: start, Limit: perScan, MaxBytes: answerBytes, History: true}, func(kv *storage.KeyValue) error {
			last = kv.Key
			if len(out.Records) == q.limit || size >= answerBytes {
				if out.Continue == "" {
					out.Continue = position{Revision: revision, Key: kv.Key}.token()
				}
				return nil
			}
			rec, err := p.record(kv)
			if err != nil {
				return fmt.Errorf("%s at revision %d: %w", kv.Key, kv.ModRevision, err)
			}
			if chosen.Matches(rec, p.Definition) {
				out.Records = append(out.Records, rec)
				size += rec.StoredSize()
			}
			return nil
		})
		if err != nil || !page.More || out.Continue != "" {
			return out, err
		}
		start = storage.NextKey(last)
	}
}

func (p *part) hasField(path string) bool {
	if path == "metadata.name" || path == "metadata.namespace" && p.Definition.Namespaced {
		return true
	}
	for i := range p.Definition.Fields {
		if p.Definition.Fields[i].Path == path {
			return true
		}
	}
	return false
}

// valueAt returns a key as it was at a revision; nil if it was not there.
func valueAt(ctx context.Context, b storage.Backend, key string, revision int64) (*storage.KeyValue, error) {
	page, err := b.List(ctx, key, storage.ListOptions{Revision: revision, Limit: 1, History: true})
	if err != nil || len(page.Items) == 0 || page.Items[0].Key != key {
		return nil, err
	}
	return &page.Items[0], nil
}
