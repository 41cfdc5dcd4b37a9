// Package serverflags gives an API server a command line, with the flags of Kubernetes'
// API servers. Start at Main, or at New and Options.
//
//	func main() { serverflags.Main(&kelson.Server{Groups: …}) }
//
// is a whole program; the package stores has flags for where objects are kept. A program with a command of its own binds the flags to it:
//
//	options := serverflags.New(server)
//	options.Bind(cmd.Flags())
//	…
//	err := options.Run(ctx)
//
// The functions in the other files bind the flags of one topic; the command kelson uses
// them too.
package serverflags

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/authz/delegated"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/internal/boundedlog"
	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/internal/jsonlog"
	"github.com/apikeel/kelson/internal/textlog"
	"github.com/apikeel/kelson/storage"
)

// Options holds the flags of a server. A flag that is not given leaves the server's
// setting unchanged.
type Options struct {
	// FeatureGates is the table of the gates that --feature-gates sets:
	// features.Kubernetes(), or the result of features.ParseTable. --emulated-version
	// selects the version of Kubernetes whose defaults apply. The result is set in the
	// server's Gates.
	FeatureGates features.Table
	// Gates are the server's own features that --feature-gates switches, by name; the
	// current values are the defaults. Without any, and without FeatureGates, the flag
	// does not exist.
	Gates map[string]*bool
	// Stores are the places for objects that flags can name: stores.All has those that
	// come with the library. Without any, the server's Storage is used.
	Stores []Store
	// Logs is where the server logs to, unless it has a Logger.
	Logs io.Writer

	server *kelson.Server

	address         string
	port            int
	parent          string
	authn, authz    string
	audit           audit.Config
	enable, disable []string
	gates           features.Flag
	emulated        []string
	reading         int
	writing         int
	verbosity       int
	format          string
}

// Store is a place for objects that flags can name.
type Store interface {
	// Bind adds the flags.
	Bind(fs *pflag.FlagSet)
	// Open opens the store that the flags name. It returns nil if they name none.
	Open(ctx context.Context, logger *slog.Logger) (storage.Backend, error)
}

// New returns the options of a server. The server must not have been prepared.
func New(server *kelson.Server) *Options {
	o := &Options{server: server, Logs: os.Stderr, address: "127.0.0.1", port: 8443, audit: audit.DefaultConfig()}
	if host, port, err := net.SplitHostPort(server.Addr); err == nil {
		o.address = host
		o.port, _ = strconv.Atoi(port)
	}
	return o
}

// Bind adds the flags.
func (o *Options) Bind(fs *pflag.FlagSet) {
	s := o.server
	fs.StringVar(&o.address, "bind-address", o.address, "IP `address` to listen on")
	fs.IntVar(&o.port, "secure-port", o.port, "`port` to listen on; 0 takes a free one")
	for _, store := range o.Stores {
		store.Bind(fs)
	}
	Serving(fs, &s.Serving)

	fs.StringVar(&o.parent, "kubeconfig", "", "kubeconfig `file` of the API server that this one is behind; it says who users are, and what they may do")
	fs.StringVar(&o.authn, "authentication-kubeconfig", "", "kubeconfig `file` of the one that says who users are (default --kubeconfig)")
	fs.StringVar(&o.authz, "authorization-kubeconfig", "", "kubeconfig `file` of the one that says what they may do (default --kubeconfig)")

	Audit(fs, &o.audit)
	if len(s.Admission) > 0 {
		var names []string
		for _, p := range s.Admission {
			names = append(names, p.Name())
		}
		have := strings.Join(names, ", ")
		fs.StringSliceVar(&o.enable, "enable-admission-plugins", nil, "`plugins` that are on, which all are: "+have)
		fs.StringSliceVar(&o.disable, "disable-admission-plugins", nil, "`plugins` to switch off: "+have)
	}
	if names := slices.Sorted(maps.Keys(o.Gates)); len(names) > 0 || o.FeatureGates != nil {
		help := "`features` to switch, as Name=true or Name=false"
		if len(names) > 0 {
			help += ": " + strings.Join(names, ", ")
		}
		fs.Var(&o.gates, "feature-gates", help)
	}
	if o.FeatureGates != nil {
		fs.StringSliceVar(&o.emulated, "emulated-version", nil, "`version` of Kubernetes whose defaults feature gates have: 1.36")
	}
	fs.IntVar(&o.reading, "max-requests-inflight", 400, "`requests` that only read, at a time; 0 is no limit")
	fs.IntVar(&o.writing, "max-mutating-requests-inflight", 200, "`requests` that write, at a time; 0 is no limit")
	fs.DurationVar(&s.RequestTimeout, "request-timeout", kelson.DefaultRequestTimeout, "how long a request may take that is not a watch or the like")
	Life(fs, s)
	fs.IntVarP(&o.verbosity, "v", "v", 1, "`level` of logs: 0 has warnings, 1 what the server does, 3 a line for each request, 4 what connections do")
	fs.StringVar(&o.format, "logging-format", "text", "`format` of logs: text or json")
}

// Apply applies the flags to the server, without running it. closeAll closes what was
// opened, after the server has ended.
func (o *Options) Apply(ctx context.Context) (closeAll func() error, err error) {
	s, closeAll := o.server, func() error { return nil }
	s.Addr = net.JoinHostPort(o.address, strconv.Itoa(o.port))
	if err := errors.Join(s.Serving.Validate(), o.logging(), o.admission(), o.switchGates()); err != nil {
		return closeAll, err
	}
	if s.Flow == nil && (o.reading > 0 || o.writing > 0) {
		s.Flow = flow.NewInFlight(flow.Config{MaxReading: unlimited(o.reading), MaxWriting: unlimited(o.writing)})
	}
	if o.audit.PolicyFile != "" || o.audit.Log.Path != "" || o.audit.Webhook.ConfigFile != "" {
		o.audit.Logger = s.Logger
		if s.Audit, err = audit.New(o.audit); err != nil {
			return closeAll, err
		}
	}
	if err := o.delegate(ctx); err != nil {
		return closeAll, err
	}
	backend, err := o.open(ctx)
	if err != nil || backend == nil {
		return closeAll, err
	}
	s.Storage = backend
	return backend.Close, nil
}

// open opens the first store that flags name, and returns nil if they name none.
func (o *Options) open(ctx context.Context) (storage.Backend, error) {
	for _, store := range o.Stores {
		if backend, err := store.Open(ctx, o.server.Logger); backend != nil || err != nil {
			return backend, err
		}
	}
	return nil, nil
}

// unlimited converts the flag's "no limit" (0) to that of flow.Config (-1).
func unlimited(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

func (o *Options) logging() error {
	if o.server.Logger != nil {
		return nil
	}
	level := jsonlog.Level(uint64(max(0, o.verbosity)))
	switch o.format {
	case "text":
		o.server.Logger = slog.New(boundedlog.New(textlog.New(o.Logs, level)))
	case "json":
		o.server.Logger = slog.New(boundedlog.New(jsonlog.New(o.Logs, level)))
	default:
		return fmt.Errorf("--logging-format %q: it is text or json", o.format)
	}
	return nil
}

// admission removes the disabled plugins.
func (o *Options) admission() error {
	for _, name := range append(slices.Clone(o.enable), o.disable...) {
		if !slices.ContainsFunc(o.server.Admission, func(p admission.Plugin) bool { return p.Name() == name }) {
			return fmt.Errorf("unknown admission plugin %q", name)
		}
	}
	o.server.Admission = slices.DeleteFunc(slices.Clone(o.server.Admission), func(p admission.Plugin) bool {
		return slices.Contains(o.disable, p.Name())
	})
	return nil
}

func (o *Options) switchGates() error {
	given, err := o.gates.Values()
	if err != nil {
		return err
	}
	for name, gate := range o.Gates {
		if on, ok := given[name]; ok {
			*gate = on
			delete(given, name)
		}
	}
	if o.FeatureGates == nil {
		if unknown := slices.Sorted(maps.Keys(given)); len(unknown) > 0 {
			return fmt.Errorf("unrecognized feature gate: %s", unknown[0])
		}
		return nil
	}
	v, err := features.ParseVersion(o.emulated, nil)
	if err != nil {
		return err
	}
	if err := v.Validate(); err != nil {
		return err
	}
	gates, err := o.FeatureGates.Set(given, v)
	if err != nil {
		return err
	}
	if err := gates.Unsupported(); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	if o.server.Logger != nil {
		gates.Warn(o.server.Logger)
	}
	o.server.Gates = gates
	return nil
}

// delegate configures delegated authentication and authorization.
func (o *Options) delegate(ctx context.Context) error {
	who, what := o.authn, o.authz
	if who == "" {
		who = o.parent
	}
	if what == "" {
		what = o.parent
	}
	if what != "" && what != who && o.server.Authorizer == nil {
		config, err := clientcmd.BuildConfigFromFlags("", what)
		if err != nil {
			return configfile.Unquoted(err)
		}
		if o.server.Authorizer, err = delegated.New(config, o.server.Logger); err != nil {
			return err
		}
	}
	if who == "" {
		return nil
	}
	return o.server.DelegateTo(ctx, who)
}

// Run applies the flags, and serves until ctx ends.
func (o *Options) Run(ctx context.Context) (err error) {
	closeAll, err := o.Apply(ctx)
	defer func() { err = errors.Join(err, closeAll()) }()
	if err != nil {
		return err
	}
	return o.server.Run(ctx)
}

// Main is the main function of a server: it parses the command line, and serves until
// SIGINT or SIGTERM. Stores are as in Options.
func Main(server *kelson.Server, stores ...Store) {
	err := Run(SignalContext(), server, os.Args[1:], stores...)
	switch {
	case errors.Is(err, pflag.ErrHelp):
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", server.Name, err)
		os.Exit(1)
	}
}

// SignalContext returns a context that ends with SIGINT or SIGTERM. After a second
// signal the process exits at once, with an error. It is for main functions.
func SignalContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	told := make(chan os.Signal, 2)
	signal.Notify(told, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-told
		cancel()
		<-told
		os.Exit(1)
	}()
	return ctx
}

// Run is Main with given arguments.
func Run(ctx context.Context, server *kelson.Server, args []string, stores ...Store) error {
	options := New(server)
	options.Stores = stores
	fs := pflag.NewFlagSet(server.Name, pflag.ContinueOnError)
	fs.SortFlags = false
	options.Bind(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%q is one argument too many", fs.Arg(0))
	}
	return options.Run(ctx)
}
