package history

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/apikeel/kelson/storage"
)

// Differences is the answer of DiffPath.
type Differences struct {
	Kept Kept `json:"kept"`
	// From and To are the revisions that are compared.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Items in the order of their resources and names.
	Items    []Difference `json:"items"`
	Continue string       `json:"continue,omitempty"`
	Hidden   []string     `json:"hidden,omitempty"`
}

// Difference is an object that is not the same at both moments.
type Difference struct {
	Ref
	// Verb is what was done to it on the whole: create, update or delete.
	Verb string `json:"verb"`
	// Before and After are the object at the two moments, if it was there.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	Fields []FieldChange   `json:"fields,omitempty"`
	More   bool            `json:"more,omitempty"`
	// StatusApart: the kind has a subresource for its status, which undoing leaves alone.
	StatusApart bool `json:"statusApart,omitempty"`
	// Writers are those who have changed the object between the moments, in their order,
	// each once; only if the parameter writers is true.
	Writers []Manager `json:"writers,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// diff answers with what differs between the moments that the parameters from and to name.
// From may be the later one.
func (p *Pages) diff(ctx context.Context, q *question) (any, error) {
	parts, hidden, err := p.parts(ctx, q)
	if err != nil {
		return nil, err
	}
	at, err := q.position()
	if err != nil {
		return nil, err
	}
	if at.From == 0 || at.To == 0 {
		if at.From, err = q.moment(ctx, "from"); err != nil {
			return nil, err
		}
		if at.To, err = q.moment(ctx, "to"); err != nil {
			return nil, err
		}
	}
	if err := q.visible(min(at.From, at.To)); err != nil {
		return nil, err
	}
	answer := Differences{From: at.From, To: at.To, Items: []Difference{}, Hidden: hidden}
	if answer.Kept, err = q.kept(ctx); err != nil {
		return nil, err
	}
	slices.SortFunc(parts, func(a, b part) int { return strings.Compare(a.only, b.only) })
	d := differ{q: q, at: at, answer: &answer}
	for i := range parts {
		if at.Key > parts[i].only && !strings.HasPrefix(at.Key, parts[i].only) {
			continue
		}
		start := ""
		if strings.HasPrefix(at.Key, parts[i].only) {
			start = at.Key
		}
		if full, err := d.part(ctx, &parts[i], start); err != nil || full {
			if err != nil {
				return nil, err
			}
			break
		}
	}
	return answer, nil
}

// differ makes a page of Differences.
type differ struct {
	q      *question
	at     position
	answer *Differences
	size   int
	looked int // at objects, whether they are in the answer or not
}

// maxLooked is how many objects that differ are looked at for one page.
const maxLooked = 5000

// part adds the differences of a resource, from a key on. It is full if the page has no
// room for the next one.
func (d *differ) part(ctx context.Context, p *part, start string) (full bool, err error) {
	from := &keys{ctx: ctx, backend: d.q.backend, part: p, revision: d.at.From, start: start}
	to := &keys{ctx: ctx, backend: d.q.backend, part: p, revision: d.at.To, start: start}
	for {
		a, err := from.peek()
		if err != nil {
			return false, err
		}
		b, err := to.peek()
		if err != nil || a == nil && b == nil {
			return false, err
		}
		key := ""
		switch {
		case b == nil || a != nil && a.Key < b.Key:
			key, b = a.Key, nil
		case a == nil || b.Key < a.Key:
			key, a = b.Key, nil
		default:
			key = a.Key
		}
		if a == nil || b == nil || a.ModRevision != b.ModRevision {
			if len(d.answer.Items) >= d.q.limit || d.size >= answerBytes || d.looked >= maxLooked {
				d.answer.Continue = position{From: d.at.From, To: d.at.To, Key: key}.token()
				return true, nil
			}
			d.looked++
			if err := d.add(ctx, p, key, a != nil, b != nil); err != nil {
				return false, err
			}
		}
		if a != nil {
			from.next()
		}
		if b != nil {
			to.next()
		}
	}
}

// add adds the difference of one object, if it has the labels that were asked for at one
// of the moments.
func (d *differ) add(ctx context.Context, p *part, key string, had, has bool) error {
	item := Difference{Ref: p.ref(key), Verb: "update", StatusApart: p.Subresource("status") != nil}
	read := func(revision int64) (*object, error) {
		kv, err := valueAt(ctx, d.q.backend, key, revision)
		if err != nil || kv == nil {
			return nil, err
		}
		o, err := p.object(kv)
		if err != nil {
			item.Error = err.Error()
			return nil, nil
		}
		return o, nil
	}
	var before, after *object
	var err error
	if had {
		if before, err = read(d.at.From); err != nil {
			return err
		}
	} else {
		item.Verb = "create"
	}
	if has {
		if after, err = read(d.at.To); err != nil {
			return err
		}
	} else {
		item.Verb = "delete"
	}
	if !d.q.selects(before) && !d.q.selects(after) && (item.Error == "" || !d.q.labels.Empty()) {
		return nil
	}
	if before != nil {
		item.Before = before.json
	}
	if after != nil {
		item.After = after.json
	}
	if before != nil && after != nil {
		item.Fields, item.More = compare(before.fields, after.fields)
	}
	if d.q.get("writers") == "true" {
		if item.Writers, err = d.writers(ctx, p, key); err != nil {
			return err
		}
	}
	d.size += len(item.Before) + len(item.After) + sizeOf(item.Fields)
	d.answer.Items = append(d.answer.Items, item)
	return nil
}

// maxWriters bounds the changes of an object that are looked at for its writers.
const maxWriters = 50

// writers returns who has changed a key between the moments.
func (d *differ) writers(ctx context.Context, p *part, key string) (all []Manager, err error) {
	opts := storage.ChangesOptions{Key: key, From: min(d.at.From, d.at.To) + 1, To: max(d.at.From, d.at.To), Limit: maxWriters, MaxBytes: answerBytes}
	_, err = storage.Changes(ctx, d.q.backend, opts, func(c *storage.Change) error {
		change, _ := describe(p, c, false, d.q)
		for _, m := range change.Managers {
			if !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
		return nil
	})
	slices.Reverse(all)
	return all, err
}

// keys reads the keys of a part at a revision, in pages.
type keys struct {
	ctx      context.Context
	backend  storage.Backend
	part     *part
	revision int64
	start    string
	page     []storage.KeyValue
	end      bool
}

// keysPerPage is how many keys are in memory at a time.
const keysPerPage = 2000

// peek returns the next key; nil at the end.
func (k *keys) peek() (*storage.KeyValue, error) {
	for len(k.page) == 0 {
		if k.end {
			return nil, nil
		}
		page, err := k.backend.List(k.ctx, k.part.only, storage.ListOptions{Revision: k.revision, Start: k.start, Limit: keysPerPage, KeysOnly: true, History: true})
		if err != nil {
			return nil, err
		}
		k.page, k.end = page.Items, !page.More
		if n := len(page.Items); n > 0 {
			k.start = storage.NextKey(page.Items[n-1].Key)
		}
		if k.part.key { // other names may begin with it
			k.page, k.end = slices.DeleteFunc(k.page, func(kv storage.KeyValue) bool { return kv.Key != k.part.only }), true
		}
	}
	return &k.page[0], nil
}

func (k *keys) next() { k.page = k.page[1:] }
