// Package resource declares what an API kind is: its names, versions,
// defaulting, validation, subresources, table columns and selectable fields.
// Start at Definition, one resource in all its versions, and at Catalog, the set
// of resources that a server serves.
//
// Built-in kinds, custom resources and the kinds of library users are all
// Definitions, and the rest of the server treats them alike. This package must
// never know stores or HTTP handlers: the functions of a Definition take objects
// and return objects or errors.
//
// # Versions and the hub
//
// A resource is served in one or more versions and stored in one of them, the
// hub. A request body is defaulted in the version of the request and then
// converted to the hub; admission, strategy and validation run on the hub; the
// response is converted to the version of the request.
//
// # The order of a write
//
// What of a definition is called when, among what the verbs do for every kind; package
// rest has the whole of it:
//
//	decode → Version.Default → Version.ToHub → ownership of fields → mutating admission
//	create:  → metadata → Strategy.PrepareCreate → Begin → Validate
//	update:  → metadata → Strategy.PrepareUpdate → Generation → Begin → ValidateUpdate
//	→ validating admission → commit → the end function of Begin
//
// Metadata (names, uids, timestamps, generation, finalizers, owner references,
// managed fields) is handled by package rest, in the same way for every kind. A
// Strategy does not touch it, except that Generation decides whether an update
// increments metadata.generation.
package resource

import (
	"context"
	"errors"
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

	// Versions in which the resource is served, the preferred one first. Required.
	Versions []Version
	// Hub is the name of the version that all others are converted to and from, and that
	// objects are stored in unless StoreAs says otherwise; it defaults to the first.
	Hub string
	// StoreAs is the name of the version that objects are written in, if it is not the
	// hub: that of an earlier server which shares the data, or may get it back.
	StoreAs string
	// Old are versions that are never served, and that stored objects may be of
	// nevertheless. Only Name, Group, New and ToHub of them are used.
	Old []Version

	// StorageKey is where objects are kept below the root, without slashes at
	// the ends: pods, services/specs, leases. It defaults to Resource in the
	// core group and to Group/Resource elsewhere; the built-in kinds follow
	// what kube-apiserver does.
	StorageKey string
	// StoreJSON stores objects as JSON although their Go type has a protobuf
	// encoding. kube-apiserver does so for CustomResourceDefinitions and
	// APIServices.
	StoreJSON bool
	// StoreYAML stores objects of Go types as YAML. Whether or not it or StoreJSON is set,
	// objects in all three encodings can be read.
	StoreYAML bool
	// StoreCBOR stores objects that are maps in CBOR, not JSON. Whether or not it is set,
	// objects in both encodings can be read.
	StoreCBOR bool
	// ReadDefaults says that Version.Default can change a stored object, because
	// the Strategy stores objects with fields unset that have a default. Stored
	// bytes are then never served without decoding and defaulting.
	ReadDefaults bool
	// TTL returns after which time an object expires; 0 is never.
	TTL func(obj Object) time.Duration

	// Verbs that the resource has; nil stands for all of get, list, watch,
	// create, update, patch, delete and deletecollection.
	Verbs []string

	Strategy     Strategy
	Subresources []Subresource

	// Columns of tables, and the cells of a row. Without them a table has the
	// columns Name and Age.
	Columns []Column
	Cells   func(obj Object) ([]any, error)
	// Uncached says that kube-apiserver has no watch cache of the resource: lists of any
	// state heed limit, and a bad resourceVersion is the fault of the client.
	Uncached bool
	// NullRows makes the rows of a table without objects null and not an empty list.
	NullRows bool
	// Arrange sorts the objects of a list that is answered as a table. If cells of
	// a row depend on other objects of the list, it returns a function that changes
	// the cells of one object, otherwise nil. It is not called for single objects.
	Arrange func(objs []Object) (change func(obj Object, cells []any))
	// RowConditions returns the conditions of a table row, such as Completed for a
	// pod that has finished.
	RowConditions func(obj Object) []metav1.TableRowCondition

	// Fields that a field selector can name, besides metadata.name and, if the
	// resource is namespaced, metadata.namespace.
	Fields []Field
	// NoNamespaceField excludes metadata.namespace from field selectors although
	// the resource is namespaced.
	NoNamespaceField bool
	// UnknownField returns the error message for a field selector with an
	// unsupported path; nil is the usual message.
	UnknownField func(path string) string

	// Bookmark sets fields in the object of a BOOKMARK event, which is otherwise
	// empty but for its resourceVersion and is not defaulted. The object is of the
	// hub version.
	Bookmark func(obj Object)

	// FieldAnnotations are annotations of the hub that hold a field of another
	// version. They are left out of PartialObjectMetadata.
	FieldAnnotations []string

	// Answer makes the resource virtual: nothing is stored, and the response to a
	// create is computed, as for the access reviews.
	Answer func(ctx context.Context, obj Object) (Object, error)

	// Source makes the resource virtual too: nothing is stored, and get and list
	// return what Source computes, as for componentstatuses.
	Source Lister

	// Between converts an unstructured object from its version to another one. It
	// does not prune fields that the other version does not have. If Between is
	// set, a write is prepared, admitted and validated in the version of the
	// request and converted to the hub only when it is stored; Strategy and
	// Projections then get objects of the version of the request.
	Between func(obj Object, version string) (Object, error)

	// Epoch orders definitions of the same resource: a definition replaces another
	// one in the store only if its Epoch is greater.
	Epoch int64

	// CreateOn, "resource/subresource" of the same group, redirects a create to
	// that subresource of the object that metadata.name of the body names: bindings
	// are "pods/binding". It takes precedence over Answer.
	CreateOn string

	stored *Served // the hub version, set by declare
}

// Version is one form of a resource.
type Version struct {
	// Name: v1, v1beta1.
	Name string
	// Group in which this version is served, if it is not the definition's: events
	// are served in two groups.
	Group string
	// New returns an empty object, NewList an empty list.
	New     func() Object
	NewList func() runtime.Object
	// Check returns an error if a decoded object cannot be accepted at all,
	// although its fields are well formed. It is called before Default. With ErrNotJSON
	// the response is broken off.
	Check func(obj Object) error
	// Default sets the fields that a client may leave out.
	Default func(obj Object)
	// DefaultsSentOnly says that Default changes only objects that clients send: it does
	// nothing to one that was stored, by this program or an older one. Such an object is
	// served without being decoded.
	DefaultsSentOnly bool
	// ToHub and FromHub convert to and from the hub version; they are nil for the
	// hub itself. The result may share memory with the argument.
	ToHub, FromHub func(obj Object) (Object, error)
	// Keep sets the fields of an object of the hub version that this version does not have
	// to those of the object before. Admission calls it when a plugin has changed an object
	// in this version. Nil is for versions that have all fields.
	Keep func(hub, before Object)
	// FromHubAll converts many objects in one call, for conversions that are
	// expensive one by one (webhooks). If it is nil, FromHub converts each. The error may
	// be or wrap an ItemError.
	FromHubAll func(objs []Object) ([]Object, error)
	// Prune removes the fields that the schema of the version does not have from an
	// unstructured object. It returns the paths of the removed fields if how is
	// PruneReporting. It is called before Default, and also on stored objects, which
	// may have been written under an older schema. Objects of Go types lose unknown
	// fields in the decoder and need no Prune.
	Prune func(obj Object, how Pruning) (unknown []string, err error)
	// Settled reports whether reading the object back from the store would return
	// it unchanged, that is, whether Prune and Default would do nothing. False is
	// always a correct answer; nil stands for false.
	Settled func(obj Object) bool
	// Columns and Cells of tables in this version, if they are not the definition's.
	// Cells takes objects of this version.
	Columns []Column
	Cells   func(obj Object) ([]any, error)
	// FieldNames maps the field paths that selectors of this version use to the
	// paths of Definition.Fields, if they differ. A path that is not a key cannot be
	// selected in this version. metadata.name and metadata.namespace are always
	// selectable and not listed here.
	FieldNames map[string]string
	// UnknownField, if set, takes the place of Definition.UnknownField for this
	// version.
	UnknownField func(path string) string
	// Schema returns the OpenAPI v3 schema of the objects, for kinds without
	// generated OpenAPI definitions: custom resources and the kinds of library
	// users. It refers to other schemas as "#/components/schemas/" and their name.
	// x-kubernetes-group-version-kind is added by package openapi.
	Schema func() *spec.Schema
	// Deprecation, if set, is sent as a Warning header to clients of this version.
	Deprecation string
	// OrphanByDefault is Strategy.OrphanByDefault for clients of this version only.
	OrphanByDefault bool
	// ReturnDeleted is Strategy.ReturnDeleted for clients of this version only.
	ReturnDeleted bool
	// AnyRevision lets an update of this version leave out metadata.resourceVersion
	// even if the Strategy has RequireVersion.
	AnyRevision bool
	// Off excludes the version from being served; --runtime-config can turn it on
	// before a catalog is made. Stored objects may be of this version nevertheless.
	Off bool
}

// Pruning says for which purpose Version.Prune is called.
type Pruning uint8

const (
	// PruneSent is for a request body: a field of the wrong type is an error.
	PruneSent Pruning = iota
	// PruneReporting is PruneSent, and the removed paths are returned for
	// fieldValidation=Warn or Strict.
	PruneReporting
	// PruneStored is for an object from the store: metadata that cannot be decoded
	// is removed too.
	PruneStored
)

// ErrNotJSON is the error of Version.Check for an object with an embedded value that is to
// be JSON and is none, which only protobuf can carry. The object cannot be shown to anybody.
var ErrNotJSON = errors.New("an embedded value is no JSON")

// GatedField is a field that is behind a feature gate. While the gate is disabled,
// a write that sets the field is accepted with the field cleared, unless the
// stored object has the field set already.
type GatedField struct {
	// Path of the field in the hub version, in JSON names: spec.priority, or
	// spec.items[].priority in the items of a list. Several fields of one feature are
	// separated by spaces: all are kept if the stored object has one of them set.
	Path string
	// Gate is the name of the gate.
	Gate string
}

// Subresource is a path below the objects of a resource, such as status or scale.
// Exactly one of Part, Projection, Action and Connect is set.
type Subresource struct {
	// Name: status, scale, binding.
	Name string
	// Versions of the resource that have the subresource; nil stands for all.
	// Another Subresource of the same name may be declared for other versions.
	Versions []string
	// Kind of the body, if it is not the kind of the resource: autoscaling/v1 Scale.
	Kind schema.GroupVersionKind
	// Also lists other versions of Kind that a body can be in. They have the same
	// fields.
	Also []string
	// Former are group versions that Kind is no longer served in. A body in one of
	// them is refused as a known kind in the wrong version.
	Former []schema.GroupVersion
	// New returns an empty body. Required with Kind, except with Connect, which
	// has no body.
	New func() Object
	// Verbs; nil stands for get, update and patch; for an Action it stands for
	// create, for a Connect for the verbs of its methods.
	Verbs []string

	// Default sets the fields that a client may leave out of a body of Kind.
	Default func(body Object)
	// KeepsMeta keeps the uid and the timestamps that a client sends in the
	// metadata of the body of an Action. Otherwise they are cleared.
	KeepsMeta bool
	// NoTable excludes tables from content negotiation.
	NoTable bool

	// Part makes the subresource a part of the object, such as its status: requests
	// carry the whole object. This Strategy is used in place of the resource's.
	Part *Strategy
	// Projection makes the subresource another kind that is computed from the
	// object, such as Scale.
	Projection *Projection
	// Action is run by a create on the subresource.
	Action Action
	// Owned says that the Action returns the body that was sent, completed, and
	// that managedFields are recorded for it.
	Owned bool
	// Connect makes requests open a connection to a backend, such as a kubelet.
	Connect *Connect
}

// ItemError is the error of Version.FromHubAll about one of the objects.
type ItemError interface {
	error
	// InList returns the error for a list of which the objects are a part. position
	// returns where in the list the object with an index in the part is.
	InList(position func(index int) int) error
}

// Projection converts between an object and the kind of a subresource, such as
// Deployment and Scale.
type Projection struct {
	// Get returns the projection of an object.
	Get func(obj Object) (Object, error)
	// Before returns the projection that an update starts from, where Get would
	// return an error although the object can be updated; nil is Get.
	Before func(obj Object) (Object, error)
	// After returns the projection that is the response to an update; nil is Get.
	After func(obj Object) (Object, error)
	// Set writes a changed projection back to obj, a copy that it may change.
	Set func(ctx context.Context, obj, projection Object) error
	// Validate returns the errors of a projection.
	Validate func(ctx context.Context, projection Object) field.ErrorList
	// Managed maps field paths of the object to those of the projection, for
	// managedFields: spec.replicas is the same in both.
	Managed map[string]string
	// Columns of tables of projections, and the cells of a row.
	Columns []Column
	Cells   func(projection Object) ([]any, error)
}

// Action runs on the object that a subresource request names, with the body of
// the request, and returns the response.
type Action func(ctx context.Context, target Target, body Object) (runtime.Object, error)

// Target is the object on which an Action runs. Its methods respect dry run.
type Target interface {
	Namespace() string
	Name() string
	// Get reads the object.
	Get(ctx context.Context) (Object, error)
	// Update changes the object. change may run several times, each time on a
	// fresh copy, and its error ends the update. No Strategy runs.
	Update(ctx context.Context, change func(obj Object) error) (Object, error)
	// Delete deletes the object as a client would.
	Delete(ctx context.Context, opts *metav1.DeleteOptions) (runtime.Object, error)
	// Other returns access to objects of another resource: an eviction reads
	// PodDisruptionBudgets and updates their status.
	Other(group, resource string) (Others, error)
}

// Others reads and changes objects of another resource on behalf of an Action.
// Like Target it respects dry run. Errors are those of the API: a missing object
// is NotFound.
type Others interface {
	Lister
	// Update changes the status of an object; change is called as by
	// Target.Update. The changed fields are recorded under the server's own field
	// manager.
	Update(ctx context.Context, namespace, name string, change func(obj Object) error) (Object, error)
}

// Column is a column of a table.
type Column struct {
	Name        string
	Type        string // string, integer, number, boolean, date
	Format      string // name for the first one
	Description string
	// Priority 0 columns are always printed, others only in wide output.
	Priority int32
}

// Field is a path that field selectors can name, and how its value is read.
type Field struct {
	Path string
	Get  func(obj Object) string
}

// Group is an API group and its resources.
type Group struct {
	Name      string
	Resources []Definition
}
