// Package controlplane puts the whole API server together: it opens the stores, makes
// the stages of a request, the catalog of what is served, the chain of servers and what
// runs beside them, each from its own package. Start at Config, which says what a server
// is like and has Run and Server, and at assembly (server.go), which is the server while
// it is put together.
//
// It decides nothing about requests or objects itself: what does belongs into the
// package of the stage, the kind or the controller. It is the only package that knows
// all of them.
//
// # The data folder
//
//	store/            the embedded engine's; whoever has it open holds its lock
//	control/socket    where the process that holds the lock answers others
//	pki/              the authority, and the certificates that it issued
//	front-proxy/      the authority of the certificate for API servers behind this one
//	kubeconfig        for the administrator
//	kubeconfig.path   instead of it: where else the kubeconfig was written
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/authz/chain"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/internal/boundedlog"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/encrypt"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/wire"
)

// What a server does unless it is told otherwise.
const (
	DefaultDataDir     = "./kelson-data"
	DefaultBindAddress = "127.0.0.1"
	DefaultSecurePort  = 6443
)

// Where a server can keep its data.
const (
	StorageEngine   = "engine" // in the data folder
	StorageMemory   = "memory" // nowhere: it is lost at the end
	StorageEtcd     = "etcd"
	StoragePostgres = "postgres"
)

// How the endpoints of the service kubernetes follow the servers that there are.
const (
	EndpointLeases = apiserver.EndpointLeases
	EndpointCount  = apiserver.EndpointCount
	EndpointNone   = apiserver.EndpointNone
)

// Config describes a server. The zero value is one that keeps its data in
// DefaultDataDir.
type Config struct {
	// DataDir is the data folder; empty is DefaultDataDir.
	DataDir string
	// NoFolder keeps nothing but the data, which is not in a folder then: what is
	// not in files that are named is made anew at each start, as kube-apiserver
	// does. There is no kubeconfig unless Kubeconfig says where.
	NoFolder bool
	// Storage is one of the constants above; empty is StorageEtcd if Etcd has
	// endpoints, StoragePostgres if Postgres has a DSN, else StorageEngine.
	Storage string
	// Etcd says how to reach etcd. Its logger is the one of this Config.
	Etcd etcd.Options
	// EtcdOverrides are resources that are in another etcd, which is reached in the
	// same way. Run opens them; a Server has one store, the one that it is given.
	EtcdOverrides []EtcdOverride
	elsewhere     []storage.Backend // one for each set of servers in EtcdOverrides
	listener      net.Listener      // bound before the store was open; nil if not
	// Postgres says how to reach PostgreSQL. Its logger is the one of this Config.
	Postgres postgres.Options

	// History is how long the embedded store keeps versions for the pages of package
	// history, beyond what watches need; 0 keeps none. HistoryBytes is how many bytes of
	// them it keeps at most; 0 is engine.DefaultRetainBytes. Other stores keep what they
	// want to.
	History      time.Duration
	HistoryBytes int64

	// Encryption says how values are kept encrypted; they are not, unless it has
	// a file. Its resources and logger are those of the server.
	Encryption encrypt.Options
	// StorageMediaType is the media type in which objects of built-in kinds are stored:
	// application/vnd.kubernetes.protobuf, the default, application/json or
	// application/yaml. Objects in all of them can be read. Custom resources,
	// their definitions and APIServices are not stored in protobuf or YAML.
	StorageMediaType string

	// Memory is the memory that the server may use; nil is budget.Default.
	Memory *budget.Memory
	// NoWatchCache answers as kube-apiserver does without its watch cache where that
	// makes a difference to clients: lists of any state heed limit.
	NoWatchCache bool

	// BindAddress and SecurePort are where to listen; the defaults are 127.0.0.1
	// and, with nil, 6443. Port 0 takes a free one.
	BindAddress string
	SecurePort  *int
	// Kubeconfig is where the administrator's kubeconfig is written when the
	// server listens; empty is the file kubeconfig in the data folder.
	Kubeconfig string

	// Serving says how the server is reached otherwise.
	Serving kelson.Serving
	// Authentication says who may be known, beside the administrator and service
	// accounts. Its logger and objects are those of the server.
	Authentication authn.Config
	// Authorization says who decides; the default is Node and RBAC.
	Authorization chain.Config
	// Audit says what is written down; nothing, unless it has a policy.
	Audit audit.Config

	// Flow says which requests have to wait. Its source and logger are those of
	// the server.
	Flow flow.Config

	// Admission says which plugins look at writes, Plugins are those that are not
	// built in.
	Admission plugin.Config
	Plugins   []admission.Plugin

	// Aggregation says how API servers behind this one are reached.
	Aggregation Aggregation
	// Peers says how requests are forwarded to servers that share the store.
	Peers Peers

	// RuntimeConfig switches versions of the API on and off, as --runtime-config
	// does: {"api/beta": "true"}.
	RuntimeConfig map[string]string
	// Gates are the feature gates, and the version that they are of, which the server
	// behaves as: --feature-gates, --emulated-version and --min-compatibility-version.
	// The zero value has the defaults of this version.
	Gates features.Gates
	// Emulation says what is served although it came after the emulated version.
	Emulation builtin.Emulation
	// Leadership is for the choice of leaders by the server.
	Leadership Leadership
	// DenyPrivileged refuses pods with privileged containers:
	// --allow-privileged=false.
	DenyPrivileged bool
	// EventTTL is how long events are kept; the default is an hour.
	EventTTL time.Duration
	// RequestTimeout bounds requests that are not long-running; the default is a
	// minute.
	RequestTimeout time.Duration
	// MinRequestTimeout is how long a watch lasts at least, and half of what it
	// lasts at most, if its client does not say; the default is half an hour, and
	// below zero is for ever.
	MinRequestTimeout time.Duration

	// Shutdown says how the server ends.
	Shutdown kelson.Shutdown
	// LivezGrace is how long /livez does not ask whether the server has started:
	// --livez-grace-period.
	LivezGrace time.Duration
	// Debug says what the server shows of itself.
	Debug Debug
	// TracingFile says which requests are traced, and who gets the traces; without
	// it none are: --tracing-config-file.
	TracingFile string
	// NotifySocket is where a service manager wants to be told that the server is
	// ready, and that it is about to end: what systemd has in NOTIFY_SOCKET.
	NotifySocket string

	// Egress is by which ways others are reached; nil is directly:
	// --egress-selector-config-file.
	Egress *egress.Selector
	// Kubelets says how kubelets are spoken to. Its logger is the one of this
	// Config.
	Kubelets connect.Config
	// KubeletAddresses are the types of addresses at which kubelets are reached,
	// the preferred one first; nil is the usual order.
	KubeletAddresses []corev1.NodeAddressType
	// KubeletPort is where kubelets listen whose nodes do not say; 0 is 10250.
	KubeletPort int
	// ServiceNodePort is the node port of the service kubernetes; with 0 it has
	// none, and a cluster IP only.
	ServiceNodePort int32
	// HealthTimeout and ReadyTimeout bound how long the store has to say that it is
	// there, when health and readiness are asked for; 0 is two seconds.
	HealthTimeout, ReadyTimeout time.Duration

	// ServiceCIDRs has one range for the cluster IPs of services, or one of each
	// family, that of the default family first; nil is 10.0.0.0/24.
	ServiceCIDRs []netip.Prefix
	// FirstNodePort and LastNodePort bound the node ports of services; the
	// defaults are 30000 and 32767.
	FirstNodePort, LastNodePort int32

	// EndpointReconciler is how the endpoints of the service kubernetes follow the
	// servers that there are, one of the constants EndpointLeases and so on; empty
	// is EndpointLeases if the data is in etcd or PostgreSQL, else this server alone. Servers is
	// how many there are, for EndpointCount.
	EndpointReconciler string
	Servers            int

	// Controllers are those that run, as --controllers has them: names, "*" for
	// all, and with a minus those that do not. Nil is all, "-*" none.
	Controllers []string
	// NamespaceDelay is how long a namespace that is deleted is left to clients that
	// want to finish it themselves.
	NamespaceDelay time.Duration
	// InventedOwners makes garbage collection keep objects whose owner has never
	// existed, as far as this process has seen.
	InventedOwners bool
	// LeaderElect makes controllers run on one of several servers only; nil does
	// so if the data is in etcd or PostgreSQL.
	LeaderElect *bool

	// Now tells the time that is stamped on objects and by which tokens end; nil is
	// time.Now. Certificates and time-outs go by the clock of the machine.
	Now func() time.Time
	// Jumps, unless it is nil, has f called whenever Now has jumped, until stop is
	// called: controllers look whether what they wait for is due.
	Jumps func(f func()) (stop func())

	// Logger gets what operators want to know; nil discards it.
	Logger *slog.Logger
	// Out gets a few lines for the person who started the server; nil discards
	// them.
	Out io.Writer
}

func (c *Config) defaults() {
	if c.DataDir == "" {
		c.DataDir = DefaultDataDir
	}
	if c.Storage == "" {
		c.Storage = StorageEngine
		switch {
		case len(c.Etcd.Endpoints) > 0:
			c.Storage = StorageEtcd
		case c.Postgres.DSN != "":
			c.Storage = StoragePostgres
		}
	}
	if c.BindAddress == "" {
		c.BindAddress = DefaultBindAddress
	}
	if c.SecurePort == nil {
		port := DefaultSecurePort
		c.SecurePort = &port
	}
	if c.Kubeconfig == "" && !c.NoFolder {
		c.Kubeconfig = KubeconfigFile(c.DataDir)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = boundedlog.Logger(c.Logger)
	if c.Out == nil {
		c.Out = io.Discard
	}
	c.Etcd.Logger, c.Postgres.Logger, c.Kubelets.Logger = c.Logger, c.Logger, c.Logger
	if e := c.Egress; e != nil {
		c.Etcd.Dial, c.Postgres.Dial, c.Kubelets.Dial = e.Etcd, e.Etcd, e.Cluster
		c.Authentication.Egress, c.Authorization.Dial, c.Audit.Webhook.Dial = e, e.ControlPlane, e.ControlPlane
	}
}

func (c *Config) validate() error {
	if err := errors.Join(c.Aggregation.validate(), apiserver.CheckEndpoints(c.EndpointReconciler)); err != nil {
		return err
	}
	if net.ParseIP(c.BindAddress) == nil {
		return fmt.Errorf("%q is not an IP address to listen on", c.BindAddress)
	}
	if *c.SecurePort < 0 || *c.SecurePort > 65535 {
		return fmt.Errorf("%d is not a port: it is between 0 and 65535", *c.SecurePort)
	}
	switch c.StorageMediaType {
	case "", wire.TypeProtobuf, wire.TypeJSON, wire.TypeYAML:
	default:
		return fmt.Errorf("%q is not a media type to store objects in: it is %s, %s or %s", c.StorageMediaType, wire.TypeProtobuf, wire.TypeJSON, wire.TypeYAML)
	}
	switch c.Storage {
	case StorageEngine, StorageMemory:
	case StorageEtcd:
		if len(c.Etcd.Endpoints) == 0 {
			return errors.New("the storage is etcd, but no etcd servers are given")
		}
	case StoragePostgres:
		if c.Postgres.DSN == "" {
			return errors.New("the storage is postgres, but no connection string is given")
		}
	default:
		return fmt.Errorf("unknown storage %q: it is %s, %s, %s or %s", c.Storage, StorageEngine, StorageMemory, StorageEtcd, StoragePostgres)
	}
	if c.Storage != StorageEtcd && (len(c.Etcd.Endpoints) > 0 || len(c.EtcdOverrides) > 0) {
		return fmt.Errorf("etcd servers are given, but the storage is %q and not %q", c.Storage, StorageEtcd)
	}
	if c.Storage != StoragePostgres && c.Postgres.DSN != "" {
		return fmt.Errorf("a PostgreSQL is given, but the storage is %q and not %q", c.Storage, StoragePostgres)
	}
	return nil
}

// keeps reports whether there is a data folder.
func (c *Config) keeps() bool { return c.Storage != StorageMemory && !c.NoFolder && c.DataDir != "" }

// complete fills in what was left open and checks the rest.
func (c *Config) complete() error {
	c.defaults()
	return c.validate()
}

// KubeconfigFile returns where a data folder has its kubeconfig.
func KubeconfigFile(dataDir string) string { return filepath.Join(dataDir, "kubeconfig") }

// kubeconfigNote is the file that says where else the kubeconfig is.
func kubeconfigNote(dataDir string) string { return filepath.Join(dataDir, "kubeconfig.path") }

// FindKubeconfig returns where the server of a data folder has last written its
// kubeconfig, and whether that is somewhere else than KubeconfigFile.
func FindKubeconfig(dataDir string) (file string, elsewhere bool) {
	if note, err := os.ReadFile(kubeconfigNote(dataDir)); err == nil {
		return strings.TrimSuffix(string(note), "\n"), true
	}
	return KubeconfigFile(dataDir), false
}

// StoreDir returns the folder of the embedded engine in a data folder.
func StoreDir(dataDir string) string { return filepath.Join(dataDir, "store") }

// open opens the store, and makes it if need be.
func (c *Config) open(ctx context.Context) (storage.Backend, error) {
	switch c.Storage {
	case StorageEtcd:
		return etcd.Open(ctx, c.Etcd)
	case StoragePostgres:
		return postgres.Open(ctx, c.Postgres)
	case StorageMemory:
		return memory.New(memory.Options{}), nil
	}
	return engine.Open(engine.Options{Dir: StoreDir(c.DataDir), RetainAge: c.History, RetainBytes: c.HistoryBytes, Logger: c.Logger})
}

// describe says where the data is.
func (c *Config) describe() string {
	switch c.Storage {
	case StorageEtcd:
		return fmt.Sprintf("in etcd at %s", strings.Join(c.Etcd.Endpoints, ", "))
	case StoragePostgres:
		return "in " + postgres.Redact(c.Postgres.DSN)
	case StorageMemory:
		return "in memory, until it stops"
	}
	return "in " + StoreDir(c.DataDir)
}
