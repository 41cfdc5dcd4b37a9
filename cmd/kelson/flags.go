package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	library "github.com/apikeel/kelson"
	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/serverflags"
	"github.com/apikeel/kelson/serverflags/stores"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
)

// storageFlags are the flags about where the data is.
type storageFlags struct {
	dataDir  string
	storage  string
	servers  []string
	etcd     etcdFlags
	postgres stores.Postgres
}

func (f *storageFlags) bind(fs *pflag.FlagSet) {
	bindDataDir(fs, &f.dataDir)
	f.bindPlace(fs)
	f.etcd.bind(fs)
	f.postgres.Bind(fs)
}

func (f *storageFlags) bindPlace(fs *pflag.FlagSet) {
	fs.StringVar(&f.storage, "storage", "", "`where` the data is: engine (in the data folder), memory, etcd or postgres (default engine, or etcd with --etcd-servers, or postgres with --storage-dsn)")
	fs.StringSliceVar(&f.servers, "etcd-servers", nil, "`URLs` of etcd, separated by commas: http://host:2379")
}

func bindDataDir(fs *pflag.FlagSet, dir *string) {
	fs.StringVar(dir, "data-dir", controlplane.DefaultDataDir, "data `folder`")
}

func (f *storageFlags) config() (controlplane.Config, error) {
	options, err := f.postgres.Options()
	return controlplane.Config{DataDir: f.dataDir, Storage: f.storage, Etcd: f.etcd.options(f.servers), Postgres: options}, err
}

// etcdTopic is the heading of flags that other commands have too.
const etcdTopic = "Etcd"

// postgresTopic is the heading of the flags of PostgreSQL.
const postgresTopic = "PostgreSQL"

// serveFlags are all flags of a server.
type serveFlags struct {
	storageFlags
	address    net.IP
	port       int
	kubeconfig string
	version    versionFlag
	logs       logFlags
	topics     []serveTopic
	// first are checks that run before all others, one after the other: a mistake there
	// is reported alone.
	first []func(*setup) error
}

// serveTopic is a group of flags with a heading.
type serveTopic struct {
	title string
	flags interface {
		bind(*pflag.FlagSet)
		// apply sets the configuration from the flags.
		apply(*setup)
	}
}

// setup is the configuration while flags are applied to it.
type setup struct {
	config *controlplane.Config
	log    *slog.Logger
	flags  *pflag.FlagSet
	kube   bool // the command line is kube-apiserver's
	gates  features.Gates
	mistakes
}

// given reports whether a flag was on the command line.
func (s *setup) given(name string) bool { return s.flags.Changed(name) }

func (f *serveFlags) bind(fs *pflag.FlagSet) {
	fs.SortFlags = false
	addTopic(fs, commonTopic, func(fs *pflag.FlagSet) {
		bindDataDir(fs, &f.dataDir)
		f.bindPlace(fs)
		fs.IPVar(&f.address, "bind-address", net.ParseIP(controlplane.DefaultBindAddress), "IP `address` to listen on")
		fs.IntVar(&f.port, "secure-port", controlplane.DefaultSecurePort, "`port` to listen on; 0 takes a free one")
		fs.StringVar(&f.kubeconfig, "write-kubeconfig", "", "`file` for the administrator's kubeconfig, written when the server listens (default kubeconfig in the data folder)")
		fs.BoolP("help", "h", false, "show this help")
		fs.VarPF(&f.version, "version", "", "show the version; raw shows all that is known of it").NoOptDefVal = "true"
	})
	// Authorization comes after authentication, which it may change, and limits come
	// after the request timeout.
	api, services, authn, other := &apiFlags{}, &serviceFlags{}, &authnFlags{}, &otherFlags{}
	f.first = []func(*setup) error{api.prepare, other.checkLogs, services.prepare, authn.prepare, other.checkCaches}
	f.topics = []serveTopic{
		{"Serving", &servingFlags{}},
		{"Authentication", authn},
		{"Authorization", &authzFlags{}},
		{"Auditing", &auditFlags{}},
		{"Admission", &admissionFlags{}},
		{"API and requests", api},
		{"API and requests", &flowFlags{}},
		{"API and requests", &memoryFlags{}},
		{"Start and end", &lifeFlags{}},
		{"History", &retainFlags{}},
		{etcdTopic, &historyFlags{}},
		{"Encryption at rest", &encryptionFlags{}},
		{"Services", services},
		{"Kubelets", &kubeletFlags{}},
		{"Networks", &egressFlags{}},
		{"Controllers", &controllerFlags{}},
		{"API servers behind this one", &aggregationFlags{}},
		{"Other servers on the same store", &peerFlags{}},
		{"Logs", &f.logs},
		{"Flags of kube-apiserver without a meaning here", other},
	}
	for _, topic := range f.topics {
		if topic.title == etcdTopic {
			addTopic(fs, postgresTopic, f.postgres.Bind)
			addTopic(fs, etcdTopic, f.etcd.bind)
		}
		addTopic(fs, topic.title, topic.flags.bind)
	}
	fs.SetNormalizeFunc(withDashes)
}

// config returns the configuration that the flags describe. Warnings go to w.
func (f *serveFlags) config(cmd *cobra.Command, w io.Writer) (controlplane.Config, error) {
	config, err := f.storageFlags.config()
	if err != nil {
		return config, err
	}
	kube := cmd.Name() == kubeName
	if kube {
		f.logs.setKube()
	}
	if config.Logger, err = f.logs.logger(w); err != nil && !kube {
		return config, err
	}
	config.BindAddress, config.SecurePort, config.Kubeconfig = f.address.String(), &f.port, f.kubeconfig
	config.NotifySocket = os.Getenv("NOTIFY_SOCKET")
	s := &setup{config: &config, log: config.Logger, flags: cmd.Flags(), kube: kube}
	for _, first := range f.first {
		if err := first(s); err != nil {
			return config, err
		}
	}
	// All mistakes of a command line are reported together.
	for _, topic := range f.topics {
		topic.flags.apply(s)
	}
	if s.kube {
		f.required(s)
		f.checkFiles(s)
	}
	if err := s.err(); err != nil {
		if s.kube && s.first() >= lateEtcd {
			if earlier := config.CheckFiles(cmd.Context(), s.first() > lateEtcd); earlier != nil {
				err = earlier
			}
		}
		return config, err
	}
	logSettings(config.Logger, cmd.Flags())
	f.postgres.WarnPassword(config.Logger)
	return config, nil
}

// logSettings logs the version and, in one line, all flags.
func logSettings(log *slog.Logger, fs *pflag.FlagSet) {
	log.Log(context.Background(), library.LevelNotice, "starting", "version", library.Version().GitVersion)
	var all []any
	shown := serverflags.Shown(fs)
	fs.VisitAll(func(f *pflag.Flag) { all = append(all, slog.String(f.Name, shown[f.Name])) })
	log.Info("settings", slog.Group("flags", all...))
}

// kubeletFlags are the flags of connections to kubelets, with kube-apiserver's names.
type kubeletFlags struct {
	ca, cert, key string
	addresses     []string
	port          uint
	bytes         int64
}

func (f *kubeletFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.ca, "kubelet-certificate-authority", "", "`file` with the authority that signed the certificates of kubelets; without it they are not verified")
	fs.StringVar(&f.cert, "kubelet-client-certificate", "", "`file` with the certificate to show to kubelets")
	fs.StringVar(&f.key, "kubelet-client-key", "", "`file` with the key of that certificate")
	fs.StringSliceVar(&f.addresses, "kubelet-preferred-address-types", []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"},
		"`types` of the addresses of nodes at which kubelets are reached, the preferred one first")
	fs.UintVar(&f.port, "kubelet-port", 10250, "`port` of kubelets whose nodes do not say")
	_ = fs.MarkDeprecated("kubelet-port", "kubelet-port is deprecated and will be removed.")
	fs.Int64Var(&f.bytes, "max-connection-bytes-per-sec", 0, "`bytes` a second that a connection to a pod carries at most; 0 is no limit")
}

func (f *kubeletFlags) apply(s *setup) {
	if s.kube {
		f.checkFiles(s)
	}
	config := s.config
	config.KubeletPort = int(f.port)
	config.Kubelets = connect.Config{KubeletCA: f.ca, KubeletCertificate: f.cert, KubeletKey: f.key, MaxBytesPerSecond: f.bytes}
	for _, t := range f.addresses {
		config.KubeletAddresses = append(config.KubeletAddresses, corev1.NodeAddressType(t))
	}
}

// etcdFlags are the flags of the etcd client, with kube-apiserver's names.
type etcdFlags struct{ stores.Etcd }

func (f *etcdFlags) bind(fs *pflag.FlagSet) { f.Bind(fs) }

func (f *etcdFlags) options(servers []string) etcd.Options {
	f.Servers = servers
	return f.Options()
}

// historyFlags are the flags about etcd other than the connection.
type historyFlags struct {
	overrides     []string
	compact       time.Duration
	lease         int
	health, ready time.Duration
}

func (f *historyFlags) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.overrides, "etcd-servers-overrides", nil, "built-in `resources` that are in another etcd: group/resource#server1;server2, separated by commas")
	fs.DurationVar(&f.compact, "etcd-compaction-interval", 5*time.Minute, "how often history is compacted; 0 leaves it to others")
	fs.IntVar(&f.lease, "lease-reuse-duration-seconds", 2, "`seconds` for which what expires shares a lease")
	fs.DurationVar(&f.health, "etcd-healthcheck-timeout", 2*time.Second, "how long the store has to answer when the health of the server is asked for")
	fs.DurationVar(&f.ready, "etcd-readycheck-timeout", 2*time.Second, "how long it has to answer when it is asked whether the server is ready")
}

func (f *historyFlags) apply(s *setup) {
	s.config.HealthTimeout, s.config.ReadyTimeout = f.health, f.ready
	for _, text := range f.overrides {
		override, err := parseOverride(text)
		if err != nil {
			s.refuse(checkOverrides, err)
			break
		}
		s.config.EtcdOverrides = append(s.config.EtcdOverrides, override)
	}
	options := &s.config.Etcd
	s.config.Postgres.CompactInterval = f.compact
	if f.compact == 0 {
		s.config.Postgres.CompactInterval = -1
	}
	options.CompactInterval, options.LeaseReuse = f.compact, time.Duration(f.lease)*time.Second
	// In the options zero is the default.
	if f.compact == 0 {
		options.CompactInterval = -1
	}
	if f.lease == 0 {
		options.LeaseReuse = -1
	}
}

// parseOverride parses a value of --etcd-servers-overrides.
func parseOverride(text string) (controlplane.EtcdOverride, error) {
	what, where, ok := strings.Cut(text, "#")
	group, name, named := strings.Cut(what, "/")
	servers := strings.Split(where, ";")
	if !ok || !named || strings.ContainsRune(where, '#') || strings.ContainsRune(name, '/') || slices.Contains(servers, "") {
		return controlplane.EtcdOverride{}, errors.New("--etcd-servers-overrides invalid, must be of format: group/resource#servers, where servers are URLs, semicolon separated")
	}
	return controlplane.EtcdOverride{Group: group, Resource: name, Servers: servers}, nil
}
