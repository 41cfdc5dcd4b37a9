// Package resource says what a kind is: its names, versions, defaults, rules,
// subresources, columns and selectable fields, in one value, the Definition.
//
// Built-in kinds, custom resources and the kinds of library users are all
// Definitions, and everything else in the server treats them alike. A
// Definition knows nothing of storage or HTTP: its functions take objects and
// return objects or errors.
//
// # Versions and the hub
//
// A resource is served in one or more versions and stored in one of them, the
// hub. Decoding a request converts to the hub; defaulting happens in the
// version of the request, everything after that (admission, strategy,
// validation) on the hub; the answer is converted to the version asked for.
//
// # The life of a write
//
//	decode → Version.Default → Version.ToHub
//	create:  Strategy.PrepareCreate → Begin → Validate → commit → end
//	update:  Strategy.PrepareUpdate(new, old) → Begin → ValidateUpdate → commit → end
//
// Metadata (names, uids, timestamps, generation, finalizers, owner references,
// managed fields) is handled by the verbs in the same way for every kind, and is
// not the business of a Strategy, except that PrepareUpdate tells whether the
// generation moves by what it leaves changed.
package resource

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Object is an API object: a Go struct or an unstructured map.
type Object interface {
	runtime.Object
	metav1.Object
}

// Definition is one resource in all its versions. The zero value of a field
// that is not marked required is the usual case.
type Definition struct {
	// Group, "" for the core group.
	Group string
	// Resource is the plural, lower-case name in paths: pods. Required.
	Resource string
	// Singular defaults to the lower-case Kind.
	Singular string
	// Kind of the objects: Pod. Required.
	Kind string
	// ListKind defaults to Kind + "List".
	ListKind   string
	ShortNames []string
	Categories []string
	Namespaced bool

	// Gate is the feature gate that must be enabled for the resource to be served;
	// empty has it always served.
	Gate string
	// GatedFields are dropped from objects while their feature gates are disabled.
	GatedFields []GatedField

	// Versions in which the resource is served, the preferred one first.
	// Required.
	Versions []Version
	// Hub is the name of the version that objects are stored in; it defaults to
	// the first.
	Hub string

	// StorageKey is where objects are kept below the root, without slashes at
	// the ends: pods, services/specs, leases. It defaults to Resource in the
	// core group and to Group/Resource elsewhere; the built-in kinds follow
	// what kube-apiserver does.
	StorageKey string
	// StoreJSON keeps objects as JSON although the type has a protobuf form, as
	// kube-apiserver does with the kinds that extend it.
	StoreJSON bool
	// ReadDefaults: Default has something to fill in that a Strategy leaves open when
	// it stores an object, so that what is stored is not what is read.
	ReadDefaults bool
	// TTL returns how long an object is kept, 0 for ever.
	TTL func(obj Object) time.Duration

	// Verbs that the resource has; nil stands for all of get, list, watch,
	// create, update, patch, delete and deletecollection.
	Verbs []string

	Strategy     Strategy
	Subresources []Subresource

	// Columns of tables, and the cells of a row. Without them a table has the
	// name and the age.
	Columns []Column
	Cells   func(obj Object) ([]any, error)
	// Arrange puts the objects of a table of a list into the order of the rows, and
	// returns what changes the cells of one because of the others; nil if nothing
	// does. Tables of single objects are not arranged.
	Arrange func(objs []Object) (change func(obj Object, cells []any))
	// RowConditions are the conditions of a row: that the work which the object
	// stands for is done.
	RowConditions func(obj Object) []metav1.TableRowCondition

	// Fields that a field selector can name, besides metadata.name and, if the
	// resource is namespaced, metadata.namespace.
	Fields []Field
	// NoNamespaceField: selectors cannot name metadata.namespace, although the
	// resource is namespaced.
	NoNamespaceField bool
	// UnknownField returns what is said of a field that selectors cannot name;
	// nil is the usual.
	UnknownField func(path string) string

	// Bookmark completes the object of a bookmark, which says nothing and gets no
	// defaults. It is of the hub version.
	Bookmark func(obj Object)

	// FieldAnnotations are annotations that stand for a field of another version:
	// who asks for nothing but the metadata does not see them.
	FieldAnnotations []string

	// Answer makes the resource virtual: nothing is stored, the answer to a
	// create is computed, as for the access reviews.
	Answer func(ctx context.Context, obj Object) (Object, error)

	// Source makes the resource virtual too: nothing is stored, and objects are
	// computed when they are read, as the component statuses are.
	Source Lister

	// Between converts an object from any version to another, for objects that are
	// maps, and leaves in it what that version does not know. Where it is set, a
	// write is prepared, admitted and judged in the version of the request, and is
	// converted to the hub when it is stored: Strategy and Projections get objects
	// of that version.
	Between func(obj Object, version string) (Object, error)

	// Epoch tells a definition that replaces another from the one it replaces:
	// it is greater.
	Epoch int64

	// CreateOn makes a create one of a subresource of another resource in the
	// group, on the object that has the name of the body: bindings are
	// "pods/binding". It comes before Answer.
	CreateOn string

	stored *Served // set by the catalog
}

// Version is one form of a resource.
type Version struct {
	// Name: v1, v1beta1.
	Name string
	// Group, if it is another than the definition's: events are served in two.
	Group string
	// New returns an empty object, NewList an empty list.
	New     func() Object
	NewList func() runtime.Object
	// Check returns why an object cannot be read although its fields are well
	// formed. It comes before Default.
	Check func(obj Object) error
	// Default fills in what a client may leave out.
	Default func(obj Object)
	// ToHub and FromHub convert; nil for the hub itself. They may return an
	// object that shares memory with the one passed in.
	ToHub, FromHub func(obj Object) (Object, error)
	// FromHubAll is FromHub for many objects, for conversions that are dear one by
	// one; nil converts each.
	FromHubAll func(objs []Object) ([]Object, error)
	// Prune takes out of an object what the version does not know, for objects
	// that are maps, and returns the paths of that if they are wanted. It is
	// called before Default, also on what was stored under an older schema.
	// Objects of Go types lose what they do not know when they are decoded.
	Prune func(obj Object, how Pruning) (unknown []string, err error)
	// Settled reports whether Prune and Default, for what is stored, would change
	// nothing in an object: it is read as it is written. It may not see that, and
	// nil never does.
	Settled func(obj Object) bool
	// Columns and Cells are those of tables in this version, if they are not the
	// definition's; Cells takes objects of the version.
	Columns []Column
	Cells   func(obj Object) ([]any, error)
	// FieldNames maps what field selectors of this version call the fields to
	// the paths of Definition.Fields, if the names are not the same; what it
	// does not list cannot be selected in this version. metadata.name and
	// metadata.namespace are never listed.
	FieldNames map[string]string
	// UnknownField is the definition's, if this version has another.
	UnknownField func(path string) string
	// Schema returns the OpenAPI v3 schema of the objects, for kinds without
	// generated definitions: custom resources and the kinds of library users. It
	// refers to others as "#/components/schemas/" and their name, and says
	// nothing of the group, version and kind, which are added.
	Schema func() *spec.Schema
	// Deprecation, if set, is the warning that clients of this version get.
	Deprecation string
	// OrphanByDefault is that of Strategy, for clients of this version only.
	OrphanByDefault bool
	// ReturnDeleted is that of Strategy, for clients of this version only.
	ReturnDeleted bool
	// AnyRevision: an update need not name the resourceVersion that it changes, even
	// if the Strategy wants it.
	AnyRevision bool
	// Off: the version is not served, unless somebody switches it on before a
	// catalog is made. Stored objects may be of it nevertheless.
	Off bool
}

// Pruning says what Version.Prune is called for.
type Pruning uint8

const (
	// PruneSent is for what a client has sent: what cannot be read is an error.
	PruneSent Pruning = iota
	// PruneReporting is PruneSent for who wants to know what goes.
	PruneReporting
	// PruneStored is for what was stored: what cannot be read goes too.
	PruneStored
)

// GatedField is a field that is behind a feature gate. While the gate is disabled, a
// write that sets the field is accepted without it, unless the object has it already.
type GatedField struct {
	// Path is the place of the field in the hub version, by the names that JSON has:
	// spec.priority, or spec.items[].priority in the items of a list.
	Path string
	// Gate is the name of the gate.
	Gate string
}

// Strategy is how a kind, or a part of it, behaves when it is written. All
// functions are about objects of the hub version, unless there is
// Definition.Between; nil functions do nothing.
type Strategy struct {
	// ValidateName returns what is wrong with a name, or with the prefix of a
	// generated one. The default wants a DNS subdomain.
	ValidateName func(name string, prefix bool) []string

	// NameOnUpdate: ValidateName judges changes too. A name never changes, but
	// the prefix that it was generated from can.
	NameOnUpdate bool

	// PrepareCreate clears what a client may not set, such as the status.
	PrepareCreate func(ctx context.Context, obj Object)
	// PrepareUpdate keeps of the old object what this request may not change.
	PrepareUpdate func(ctx context.Context, obj, old Object)
	// Validate returns everything that is wrong with a new object; what is marked with
	// Declared is said last.
	Validate func(ctx context.Context, obj Object) field.ErrorList
	// JudgesMetadata: Validate returns also what is wrong with the metadata, which is
	// otherwise said before what it returns.
	JudgesMetadata bool
	// Repeats: what is wrong with the metadata of a change is said as often as
	// kube-apiserver's extensions find it: up to three times. Otherwise it is said
	// once.
	Repeats bool
	// ValidateUpdate returns everything that is wrong with a change. If it is
	// nil, Validate judges the new object; otherwise ValidateUpdate calls what
	// it needs itself.
	ValidateUpdate func(ctx context.Context, obj, old Object) field.ErrorList
	// Warnings returns what a client should know; old is nil on create.
	Warnings func(ctx context.Context, obj, old Object) []string

	// Generation reports whether a change moves metadata.generation; nil means
	// that the kind has none, or that a write to the part never moves it. It
	// compares what PrepareUpdate has left.
	Generation func(ctx context.Context, obj, old Object) bool

	// Begin reserves what the object needs outside of itself (addresses, ports)
	// and may complete the object; old is nil on create, obj on delete. It is
	// called between PrepareCreate or PrepareUpdate and the validation, so that
	// the rules judge the completed object, and its errors hide theirs. end is
	// called when it is known whether the object was committed, and after any
	// error that follows.
	Begin func(ctx context.Context, obj, old Object) (end func(committed bool), err error)

	// Resets are the fields, as dotted paths, that a write leaves as they are
	// whatever a client sends, so that nobody comes to own them by it. Nil is the
	// usual: status for the object, spec for its status.
	Resets []string

	// CreateOnUpdate: a PUT to a name that does not exist creates it.
	CreateOnUpdate bool
	// RequireVersion: an update must name the resourceVersion that it changes.
	RequireVersion bool

	// GracePeriod makes deletion graceful: it returns how many seconds the
	// object lives on, given what the client asks for (nil: nothing). Zero
	// deletes at once.
	GracePeriod func(obj Object, asked *int64) int64
	// BeforeDelete changes an object whose deletion begins: a namespace becomes
	// Terminating. It is called once.
	BeforeDelete func(obj Object)
	// Held reports that an object being deleted must stay for a reason other
	// than its finalizers and its grace period.
	Held func(obj Object) bool
	// OrphanByDefault: dependents are orphaned when a client does not say what
	// should become of them.
	OrphanByDefault bool
	// OrphanWarning is what a client is told that deletes and does not say what
	// should become of dependents.
	OrphanWarning string
	// NoPropagation: what a client wants to become of dependents is ignored.
	NoPropagation bool
	// ReturnDeleted: a deletion that takes effect at once is answered with the
	// object instead of a Status.
	ReturnDeleted bool
}

// Subresource is a part or an aspect of a resource with a path of its own.
// Exactly one of Part, Projection, Action and Connect is set.
type Subresource struct {
	// Name: status, scale, binding.
	Name string
	// Versions of the resource that have it; nil stands for all. One of the same
	// name may be there for the others.
	Versions []string
	// Kind of the body if it is not the resource's own: autoscaling/v1 Scale.
	Kind schema.GroupVersionKind
	// Also lists other versions of Kind that a body can be in; they have the
	// same form.
	Also []string
	// Former are group versions that Kind once was in. A body in one of them is
	// of a known kind, but in the wrong version.
	Former []schema.GroupVersion
	// New returns an empty body; required with Kind, unless there is none.
	New func() Object
	// Verbs; nil stands for get, update and patch, create for an Action, or those
	// of the methods of a Connect.
	Verbs []string

	// Default fills in what a client may leave out of a body of Kind.
	Default func(body Object)
	// KeepsMeta: the body of an Action keeps the uid and the times that a client
	// has given it, which are else nobody's to give.
	KeepsMeta bool
	// NoTable: answers are not shown as tables.
	NoTable bool

	// Part: requests carry the whole object and may change a part of it. The
	// strategy replaces the resource's own.
	Part *Strategy
	// Projection: requests carry another kind that is made from the object.
	Projection *Projection
	// Action: a create runs it.
	Action Action
	// Owned: the answer to an Action is its body, completed, which says who owns
	// the fields that were sent.
	Owned bool
	// Connect: requests open a connection.
	Connect *Connect
}

// Projection shows an object as another kind.
type Projection struct {
	// Get makes the projection.
	Get func(obj Object) (Object, error)
	// Before makes the projection that a change begins with, if Get refuses what
	// can be changed; nil is Get.
	Before func(obj Object) (Object, error)
	// After makes the projection that answers a change; nil is Get.
	After func(obj Object) (Object, error)
	// Set writes a changed projection back. obj is a copy that it may change.
	Set func(ctx context.Context, obj, projection Object) error
	// Validate returns everything that is wrong with a projection.
	Validate func(ctx context.Context, projection Object) field.ErrorList
	// Managed maps paths of fields in the object to those in the projection,
	// for the ownership of fields: spec.replicas is the same in both.
	Managed map[string]string
	// Columns of tables of projections, and the cells of a row.
	Columns []Column
	Cells   func(projection Object) ([]any, error)
}

// Action does something to the object that it is called on, with the body of
// the request, and returns the answer.
type Action func(ctx context.Context, target Target, body Object) (runtime.Object, error)

// Target is the object on which an Action is called. Its methods respect dry
// runs.
type Target interface {
	Namespace() string
	Name() string
	// Get reads the object.
	Get(ctx context.Context) (Object, error)
	// Update changes the object; change may run several times, each time on a
	// fresh copy, and its error ends the update. No strategy runs.
	Update(ctx context.Context, change func(obj Object) error) (Object, error)
	// Delete deletes the object as a client would.
	Delete(ctx context.Context, opts *metav1.DeleteOptions) (runtime.Object, error)
	// Other gives access to objects of other resources: eviction reads
	// disruption budgets, and counts them down.
	Other(group, resource string) (Others, error)
}

// Others reads and changes objects of a resource on behalf of an Action. Like
// its Target it respects dry runs, and what is not there is NotFound to it.
type Others interface {
	Lister
	// Update changes the status of an object as Target.Update changes objects. The
	// server comes to own what is changed.
	Update(ctx context.Context, namespace, name string, change func(obj Object) error) (Object, error)
}

// Column is a column of a table.
type Column struct {
	Name        string
	Type        string // string, integer, number, boolean, date
	Format      string // name for the first one
	Description string
	// Priority 0 is always shown, higher ones in wide output.
	Priority int32
}

// Field is a field that selectors can name.
type Field struct {
	Path string
	Get  func(obj Object) string
}

// Group is an API group and its resources.
type Group struct {
	Name      string
	Resources []Definition
}
