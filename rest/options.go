package rest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"strings"
	"time"

	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest/shard"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// listOptions are the parameters of lists, watches and deletes of collections.
type listOptions struct {
	labels        labels.Selector
	fields        fields.Selector
	revision      int64
	revisionText  string
	match         metav1.ResourceVersionMatch
	limit         int64
	continueToken string
	timeout       time.Duration
	bookmarks     bool
	initialEvents *bool
	shard         *shard.Selector // nil selects everything
}

// listOptions reads the parameters of the request.
func (s *scope) listOptions(watch bool) (o listOptions, err error) {
	asked := s.req.ListOptions()
	for _, e := range []error{asked.NumberErr, asked.LabelsErr, asked.FieldsErr} {
		if e != nil {
			return o, apierrors.NewBadRequest(e.Error())
		}
	}
	// Whether the options go together is checked before whether the fields of a selector are
	// known.
	o = listOptions{
		labels: asked.Labels, fields: asked.Fields, revisionText: asked.ResourceVersion, match: asked.Match, limit: asked.Limit,
		continueToken: asked.Continue, timeout: time.Duration(asked.TimeoutSeconds) * time.Second, bookmarks: asked.Bookmarks, initialEvents: asked.InitialEvents,
	}
	latest := o.revisionText == "" || o.revisionText == "0"
	begins := watch && latest && o.match == "" && o.initialEvents == nil
	if begins && !s.h.NoInitialEvents {
		// What it comes to.
		o.match, o.initialEvents = metav1.ResourceVersionMatchNotOlderThan, &latest
	}
	if errs := o.validate(watch, s.h.NoInitialEvents); len(errs) > 0 {
		return o, problems.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if s.req.Name != "" {
		// A watch of one object, by the old path.
		o.fields = fields.AndSelectors(o.fields, fields.OneTermEqualSelector("metadata.name", s.req.Name))
	}
	if names := s.served.Version.FieldNames; names != nil {
		o.fields, err = o.fields.Transform(func(path, value string) (string, string, error) {
			name, ok := names[path]
			switch {
			case ok:
				return name, value, nil
			case strings.HasPrefix(path, "metadata."):
				return path, value, nil
			}
			return "", "", s.errFieldSelector(path)
		})
		if err != nil {
			return o, err
		}
	}
	for _, r := range o.fields.Requirements() {
		if !selectable(s.def, r.Field) {
			return o, s.errFieldSelector(r.Field)
		}
	}
	if text := asked.Shard; s.h.Shards && text != "" {
		if o.shard, err = shard.Parse(text); err != nil {
			return o, errBare(fmt.Errorf("invalid shard selector: %w", err))
		}
	}
	if !watch {
		o.limit = asked.PageLimit(s.isUncached())
	}
	if !watch && o.continueToken != "" {
		return o, nil // the token says which revision, and no other may be named
	}
	if o.revision, err = asked.Revision, asked.RevisionErr; err != nil {
		err = errRevision(o.revisionText, err)
		if !watch {
			err = apierrors.NewBadRequest("invalid resource version: " + err.Error())
		}
	}
	return o, err
}

// validate checks which parameters go together. noInitial is Handler.NoInitialEvents.
func (o *listOptions) validate(watch, noInitial bool) (errs field.ErrorList) {
	const exact, notOlder = metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan
	match, initial := o.match, o.initialEvents != nil
	path := field.NewPath("resourceVersionMatch")
	check := func(wrong bool, err *field.Error) {
		if wrong {
			errs = append(errs, err)
		}
	}
	forbid := func(wrong bool, text string) { check(wrong, field.Forbidden(path, text)) }
	pages := func() { forbid(o.continueToken != "", "resourceVersionMatch is forbidden when continue is provided") }
	if watch {
		forbid(initial && match != notOlder, fmt.Sprintf("sendInitialEvents requires setting resourceVersionMatch to %s", notOlder))
		check(initial && noInitial, field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"))
		if match != "" {
			forbid(!initial, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
			check(match != notOlder, field.NotSupported(path, match, []string{string(notOlder)}))
			pages()
		}
		return errs
	}
	if match != "" {
		forbid(o.revisionText == "", "resourceVersionMatch is forbidden unless resourceVersion is provided")
		pages()
		check(match != exact && match != notOlder, field.NotSupported(path, match, []string{string(exact), string(notOlder), ""}))
		forbid(match == exact && o.revisionText == "0", `resourceVersionMatch "exact" is forbidden for resourceVersion "0"`)
	}
	check(initial, field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for list"))
	return errs
}

// selectable reports whether selectors can name a field.
func selectable(def *resource.Definition, path string) bool {
	if path == "metadata.name" || path == "metadata.namespace" && !def.NoNamespaceField && (def.Namespaced || len(def.Fields) == 0) {
		return true
	}
	for i := range def.Fields {
		if def.Fields[i].Path == path {
			return true
		}
	}
	return false
}

func (s *scope) errFieldSelector(path string) error {
	unknown := s.served.Version.UnknownField
	if unknown == nil {
		unknown = s.def.UnknownField
	}
	if unknown != nil {
		return apierrors.NewBadRequest(unknown(path))
	}
	if len(s.def.Fields) > 0 {
		return apierrors.NewBadRequest("field label not supported: " + path)
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only %q, %q", path, "metadata.name", "metadata.namespace"))
}

// selects reports whether selectors choose some of the objects.
func (o *listOptions) selects() bool { return !o.labels.Empty() || !o.fields.Empty() || o.shard != nil }

// most is how many objects a page has.
func (o *listOptions) most() int { return int(min(o.limit, math.MaxInt32)) }

// match returns which records the request is about.
func (s *scope) match(o *listOptions, prefix string) store.Match {
	selector := wire.NewSelector(o.labels, o.fields)
	return func(rec *store.Record) bool {
		if !strings.HasPrefix(rec.Key, prefix) {
			return false
		}
		if o.shard != nil && !s.inShard(rec, o.shard) {
			return false
		}
		return selector.Matches(rec, s.def)
	}
}

// equalities returns what the selectors want to be equal to something. Objects that are
// selected fulfil all of it.
func (o *listOptions) equalities(def *resource.Definition) (wanted []store.Equals) {
	if o.labels.Empty() && o.fields.Empty() {
		return nil
	}
	requirements, _ := o.labels.Requirements()
	for i := range requirements {
		switch r := &requirements[i]; r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if values := r.Values(); values.Len() == 1 {
				wanted = append(wanted, store.Equals{Attribute: store.Attribute{Label: r.Key()}, Value: values.UnsortedList()[0]})
			}
		}
	}
	for i := range def.Fields {
		path := def.Fields[i].Path
		if value, ok := o.fields.RequiresExactMatch(path); ok {
			wanted = append(wanted, store.Equals{Attribute: store.Attribute{Field: path}, Value: value})
		}
	}
	return wanted
}

// inShard reports whether a record belongs to a shard. A record without a UID that can be
// read belongs to none.
func (s *scope) inShard(rec *store.Record, sel *shard.Selector) bool {
	if sel.ByNamespace() {
		return sel.Matches(rec.Namespace)
	}
	uid, err := wire.UID(s.def, rec)
	if err != nil {
		s.h.log().Warn("object left out of a shard", "resource", s.def.Resource, "key", rec.Key, "error", err)
		return false
	}
	return sel.Matches(string(uid))
}

// single reports that no more than one object is asked for, by its name: then there
// are no pages.
func (o *listOptions) single() bool {
	_, ok := o.fields.RequiresExactMatch("metadata.name")
	return ok && o.continueToken == ""
}

// read returns how current the state must be that a list shows.
func (o *listOptions) read() store.Read {
	switch {
	case o.revisionText == "":
		return store.Read{}
	case o.revision == 0:
		return store.Read{Any: true}
	case o.match == metav1.ResourceVersionMatchExact, o.match == "" && o.limit > 0 && !o.single():
		return store.Read{Exact: o.revision}
	}
	return store.Read{AtLeast: o.revision}
}

// continueToken is where a list in pages goes on. Clients must not look into
// it, but kube-apiserver's tokens work here and ours there.
type continueToken struct {
	Version  string `json:"v"`
	Revision int64  `json:"rv"`
	Start    string `json:"start"`
}

const continueVersion = "meta.k8s.io/v1"

// encode makes a token that goes on after a key below prefix.
func encodeContinue(key, prefix string, revision int64) string {
	b, _ := json.Marshal(continueToken{Version: continueVersion, Revision: revision, Start: strings.TrimPrefix(key, prefix) + "\x00"})
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeContinue returns the key at which a list goes on, and at which revision.
func decodeContinue(text, prefix string) (start string, revision int64, err error) {
	bad := func(format string, args ...any) (string, int64, error) {
		return "", 0, apierrors.NewBadRequest("invalid continue token: continue key is not valid: " + fmt.Sprintf(format, args...))
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return bad("%v", err)
	}
	var t continueToken
	if err := json.Unmarshal(b, &t); err != nil {
		// Errors name the type, so its name is part of the API.
		return bad("%s", strings.Replace(err.Error(), "rest.continueToken", "storage.continueToken", 1))
	}
	switch {
	case t.Version != continueVersion:
		return bad("server does not recognize this encoded version %v", t.Version)
	case t.Revision == 0:
		return bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
	case t.Start == "":
		return bad("encoded start key empty (version meta.k8s.io/v1)")
	}
	key := t.Start
	if !strings.HasPrefix(key, "/") {
		key = "/" + key
	}
	if cleaned := path.Clean(key); cleaned != key {
		return bad("%s", t.Start)
	}
	return prefix + key[1:], t.Revision, nil
}
