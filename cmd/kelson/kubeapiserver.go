package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/storage"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// kubeName is the command, and the name of a link to the program, under which it
// takes kube-apiserver's command line.
const kubeName = "kube-apiserver"

// idleHeader is in the answers of an etcd that is one in name only: whoever
// starts kube-apiserver wants one beside it, and Kelson needs none.
const idleHeader = "Kelson-Idle"

// kubeDefaults are kube-apiserver's where 'kelson serve' has others.
func kubeDefaults() map[string]string {
	return map[string]string{
		"bind-address":       "0.0.0.0",
		"allow-privileged":   "false",
		"authorization-mode": "AlwaysAllow",
		"cert-dir":           "/var/run/kubernetes",
		"controllers":        "-*", // they run in kube-controller-manager
		"encryption-provider-config-automatic-reload": "false",
		"lease-reuse-duration-seconds":                "60",
	}
}

// kubeError is an error of whoever typed kube-apiserver's command line, shown
// as there.
type kubeError struct{ error }

func newKubeAPIServer(s streams) *cobra.Command {
	var flags serveFlags
	cmd := &cobra.Command{
		Use:   kubeName,
		Short: "Serve with the command line of kube-apiserver",
		Long: `Serve with the flags and the defaults of kube-apiserver, so that what starts that
server can start this one. A link to this program with the name kube-apiserver
does the same.

Objects are in etcd. Nothing else is kept but the certificate in --cert-dir.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return kubeError{fmt.Errorf("%q does not take any arguments, got %q", kubeName, args)}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.version != "" {
				return flags.version.show(s.out)
			}
			return serveAsKube(cmd, &flags, s)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return kubeError{err} })
	flags.bind(cmd.Flags())
	for name, value := range kubeDefaults() {
		cmd.Flags().Lookup(name).DefValue = value
	}
	return cmd
}

func serveAsKube(cmd *cobra.Command, flags *serveFlags, s streams) error {
	log, err := flags.logs.logger(s.err)
	var config controlplane.Config
	if err != nil {
		log = slog.New(slog.NewTextHandler(s.err, nil))
		err = field.Invalid(field.NewPath("format"), flags.logs.format, "Unsupported log format")
	} else if config, err = kubeConfig(cmd, flags, s.err); err == nil {
		err = config.Run(cmd.Context())
	}
	if err != nil {
		log.Error("command failed", "err", kubeText(err))
		return errShown
	}
	return nil
}

// kubeText returns an error in kube-apiserver's form, which has all that is wrong
// with a command line in one list.
func kubeText(err error) string {
	if errors.Is(err, storage.ErrUnavailable) {
		return explain(err)
	}
	return utilerrors.NewAggregate(joined(err)).Error()
}

// joined returns the errors that were joined to one.
func joined(err error) (all []error) {
	several, ok := err.(interface{ Unwrap() []error })
	if !ok || errors.Join(several.Unwrap()...).Error() != err.Error() {
		return []error{err} // or it has more to say than they
	}
	for _, err := range several.Unwrap() {
		all = append(all, joined(err)...)
	}
	return all
}

// kubeConfig returns what the flags say if they are those of kube-apiserver.
func kubeConfig(cmd *cobra.Command, flags *serveFlags, w io.Writer) (controlplane.Config, error) {
	given := cmd.Flags().Changed
	for name, value := range kubeDefaults() {
		if given(name) || name == "authorization-mode" && given("authorization-config") {
			continue
		}
		if err := cmd.Flags().Lookup(name).Value.Set(value); err != nil {
			return controlplane.Config{}, err
		}
	}
	var first error
	if flags.storage == "" && len(flags.servers) == 0 {
		first = errors.New("--etcd-servers must be specified")
	}
	// Where kube-apiserver refuses 0, a free port is taken.
	if flags.port < 0 || flags.port > 65535 {
		first = errors.Join(first, fmt.Errorf("--secure-port %d must be between 1 and 65535, inclusive. It cannot be turned off with 0", flags.port))
	}
	idle := flags.storage == "" && idling(cmd.Context(), flags.servers)
	if idle {
		flags.storage, flags.servers = controlplane.StorageMemory, nil
	}
	config, err := flags.config(cmd, w)
	if err := errors.Join(first, err, kubeRequired(cmd.Flags())); err != nil {
		return config, err
	}
	config.NoFolder = !given("data-dir")
	if !given("service-cluster-ip-range") {
		config.Logger.Warn("No CIDR for service cluster IPs specified. Default value which was 10.0.0.0/24 is deprecated and will be removed in future releases. Please specify it using --service-cluster-ip-range on kube-apiserver.")
	}
	if idle {
		envtestControllers(&config, given("controllers"))
		config.Logger.Info("etcd keeps nothing: the data is in memory")
	}
	return config, nil
}

// kubeRequired misses what kube-apiserver does not start without, but for etcd.
func kubeRequired(fs *pflag.FlagSet) error {
	var errs []error
	miss := func(missing bool, text string) {
		if missing {
			errs = append(errs, errors.New(text))
		}
	}
	given, elsewhere := fs.Changed, fs.Changed("service-account-signing-endpoint")
	issuer, signs := given("service-account-issuer"), given("service-account-signing-key-file")
	miss(!issuer, "service-account-issuer is a required flag")
	miss(!given("service-account-key-file") && !elsewhere, "either `--service-account-key-file` or `--service-account-signing-endpoint` must be set")
	if attempted := signs || issuer || given("api-audiences"); attempted {
		miss(!issuer || !signs && !elsewhere, "--service-account-signing-key-file, --service-account-issuer, and --api-audiences should be specified together")
	} else {
		miss(true, "--service-account-signing-key-file and --service-account-issuer are required flags")
	}
	return errors.Join(errs...)
}

// idling reports whether an etcd is one that keeps nothing.
func idling(ctx context.Context, servers []string) bool {
	if len(servers) != 1 || !strings.HasPrefix(servers[0], "http://") {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(servers[0], "/")+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false // who cannot be reached is asked for objects, which says why
	}
	defer resp.Body.Close()
	return resp.Header.Get(idleHeader) != ""
}
