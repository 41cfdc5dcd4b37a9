package why

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

// Bounds of Denials. Strangers choose the names of users and of what they ask for, so no
// number of them may make the server grow.
const (
	maxUsers       = 1000
	maxDenials     = 20      // of a user, each different
	maxDeniedBytes = 1 << 20 // of all
	maxDeniedText  = 256     // bytes of a text
	maxDeniedGroup = 32      // groups
	denialBytes    = 256     // what a denial costs apart from its texts
)

// Denials keeps the last requests of each user that were denied, in memory. The zero
// value is ready to be used.
type Denials struct {
	mu sync.Mutex
	// users is by userKey; the values are elements of order.
	users map[string]*list.Element
	// order has a *denied a user, the one who was denied last in front.
	order list.List
	bytes int // of all
}

// denied are the requests of a user that were denied, the last at the end.
type denied struct {
	key   string
	last  []denial
	bytes int
}

// denial is a request that was denied count times.
type denial struct {
	question Question
	cut      bool // a text was too long to be kept
	when     time.Time
	count    int
}

// Watch returns an authorizer that decides as next does, and keeps what is denied.
func (d *Denials) Watch(next authz.Authorizer) authz.Authorizer { return &watched{d, next} }

type watched struct {
	to   *Denials
	next authz.Authorizer
}

// Authorize implements authz.Authorizer.
func (w *watched) Authorize(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	decision, reason, err := w.next.Authorize(ctx, a)
	if decision != authz.Allow && err == nil && a.User != nil && !isProbe(a) {
		w.to.add(a, time.Now())
	}
	return decision, reason, err
}

// isProbe reports whether a request is a question of constrained impersonation, which
// tries several verbs: that one is not allowed does not mean that a request is denied.
func isProbe(a *authz.Attributes) bool {
	return strings.HasPrefix(a.Verb, "impersonate:") || strings.HasPrefix(a.Verb, "impersonate-on:")
}

// userKey returns what a user is found by. A long name is replaced by its hash, so that
// users whose names begin alike stay apart.
func userKey(name string) string {
	if len(name) <= maxDeniedText {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "\x00" + hex.EncodeToString(sum[:])
}

// add keeps a request that was denied.
func (d *Denials) add(a *authz.Attributes, now time.Time) {
	next := newDenial(a, now)
	key := userKey(a.User.Name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == nil {
		d.users = map[string]*list.Element{}
	}
	e := d.users[key]
	if e == nil {
		e = d.order.PushFront(&denied{key: strings.Clone(key), bytes: 2*len(key) + denialBytes})
		d.users[key] = e
		d.bytes += e.Value.(*denied).bytes
	} else {
		d.order.MoveToFront(e)
	}
	of := e.Value.(*denied)
	// A program that asks again and again must not push out what others asked.
	if i := slices.IndexFunc(of.last, func(was denial) bool { return was.sameAs(&next) }); i >= 0 {
		again := of.last[i]
		again.when, again.count = now, again.count+1
		of.last = append(slices.Delete(of.last, i, i+1), again)
		return
	}
	if len(of.last) == maxDenials {
		d.count(of, -of.last[0].bytes())
		of.last = slices.Delete(of.last, 0, 1)
	}
	of.last = append(of.last, next)
	d.count(of, next.bytes())
	for d.order.Len() > 1 && (d.order.Len() > maxUsers || d.bytes > maxDeniedBytes) {
		oldest := d.order.Remove(d.order.Back()).(*denied)
		delete(d.users, oldest.key)
		d.bytes -= oldest.bytes
	}
}

func (d *Denials) count(of *denied, bytes int) {
	of.bytes += bytes
	d.bytes += bytes
}

// newDenial copies what is kept of a request.
func newDenial(a *authz.Attributes, now time.Time) denial {
	d := denial{when: now, count: 1}
	keep := func(text string) string {
		if len(text) > maxDeniedText {
			text, d.cut = strings.ToValidUTF8(text[:maxDeniedText], "")+"...", true
		}
		return strings.Clone(text)
	}
	d.question = Question{User: keep(a.User.Name), Verb: keep(a.Verb)}
	if !a.IsResource {
		d.question.Path = keep(a.Path)
	} else {
		d.question.Group, d.question.Resource, d.question.Subresource = keep(a.Group), keep(a.Resource), keep(a.Subresource)
		d.question.Namespace, d.question.Name = keep(a.Namespace), keep(a.Name)
	}
	for i, group := range a.User.Groups {
		if i == maxDeniedGroup {
			d.cut = true
			break
		}
		d.question.Groups = append(d.question.Groups, keep(group))
	}
	if len(a.Fields) > 0 {
		var terms []string
		for _, r := range a.Fields[:min(len(a.Fields), maxDeniedGroup)] {
			terms = append(terms, r.Field+string(r.Operator)+r.Value)
		}
		d.question.FieldSelector = keep(strings.Join(terms, ","))
	}
	if len(a.Labels) > 0 {
		var terms []string
		for _, r := range a.Labels[:min(len(a.Labels), maxDeniedGroup)] {
			terms = append(terms, r.String())
		}
		d.question.LabelSelector = keep(strings.Join(terms, ","))
	}
	return d
}

// bytes is what the denial takes, about.
func (d *denial) bytes() int {
	q := &d.question
	n := denialBytes + len(q.User) + len(q.Verb) + len(q.Path) + len(q.Group) + len(q.Resource) + len(q.Subresource) +
		len(q.Namespace) + len(q.Name) + len(q.FieldSelector) + len(q.LabelSelector)
	for _, group := range q.Groups {
		n += len(group) + 16
	}
	return n
}

func (d *denial) sameAs(o *denial) bool {
	a, b := d.question, o.question
	same := slices.Equal(a.Groups, b.Groups)
	a.Groups, b.Groups = nil, nil
	return same && a.Verb == b.Verb && a.Path == b.Path && a.Group == b.Group && a.Resource == b.Resource && a.Subresource == b.Subresource &&
		a.Namespace == b.Namespace && a.Name == b.Name && a.FieldSelector == b.FieldSelector && a.LabelSelector == b.LabelSelector && d.cut == o.cut
}

// of returns copies of the denials of a user, the last first.
func (d *Denials) of(user string) []denial {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.users[userKey(user)]
	if e == nil {
		return nil
	}
	last := slices.Clone(e.Value.(*denied).last)
	slices.Reverse(last)
	return last
}

// LastDenials answers which requests of a user were denied last. This server keeps them
// in memory, so they do not survive it, and other servers keep their own.
type LastDenials struct {
	User    string   `json:"user"`
	Denials []Denied `json:"denials"`
}

// Denied is a request that was denied.
type Denied struct {
	Time  time.Time `json:"time"`  // the last time
	Count int       `json:"count"` // how often, as long as it was kept
	// Now explains the request by what is in force now. It is nil if the request was too
	// long to be kept whole.
	Now      *Answer  `json:"now,omitempty"`
	Question Question `json:"question"`
}

// denials is the page DenialsPath.
func (p *Pages) denials(ctx context.Context, r *http.Request) (any, error) {
	user := request.QueryOf(r).Get("user")
	asker := &request.From(r.Context()).User
	s := &sight{authorizer: p.Authorizer, user: asker}
	switch {
	case user == "" || user == asker.Name:
		user = asker.Name
	default:
		if err := s.mayReview(ctx); err != nil {
			return nil, err
		}
	}
	if p.Denials == nil {
		return nil, apierrors.NewBadRequest("this server does not keep denials")
	}
	answer := &LastDenials{User: user, Denials: []Denied{}}
	for _, d := range p.Denials.of(user) {
		one := Denied{Time: d.when.UTC(), Count: d.count, Question: d.question}
		if !d.cut && ctx.Err() == nil {
			// A selector that cannot be read again is not worth an error.
			one.Now, _ = p.explain(ctx, s, d.question, &request.User{Name: d.question.User, Groups: d.question.Groups})
		}
		answer.Denials = append(answer.Denials, one)
	}
	return answer, nil
}
