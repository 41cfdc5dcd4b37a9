// Package chain assembles the authorizers of a server from flags or from an
// AuthorizationConfiguration file. Start at Config and New. Chain itself decides
// nothing: it asks the configured authorizers in order.
//
// It is not a part of package authz because webhooks import CEL and a client, which a
// program should not have to link that only wants to authorize.
package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/authz/webhook"
	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/filewatch"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/request"
)

// Modes of authorization.
const (
	ModeAlwaysAllow = "AlwaysAllow"
	ModeAlwaysDeny  = "AlwaysDeny"
	ModeABAC        = "ABAC"
	ModeWebhook     = "Webhook"
	ModeRBAC        = "RBAC"
	ModeNode        = "Node"
)

// Modes returns all modes.
func Modes() []string {
	return []string{ModeAlwaysAllow, ModeAlwaysDeny, ModeABAC, ModeWebhook, ModeRBAC, ModeNode}
}

// Config says which authorizers there are. The fields have the names of
// kube-apiserver's flags.
type Config struct {
	// Modes is --authorization-mode: the authorizers, in the order in which they are
	// asked. The default, without a ConfigFile, is Node and RBAC.
	Modes []string
	// PolicyFile is --authorization-policy-file, for ABAC.
	PolicyFile string
	// WebhookConfigFile is --authorization-webhook-config-file, a kubeconfig.
	WebhookConfigFile string
	// WebhookVersion is --authorization-webhook-version; the default is v1beta1.
	WebhookVersion string
	// WebhookCacheAuthorizedTTL is --authorization-webhook-cache-authorized-ttl,
	// nil stands for five minutes, and WebhookCacheUnauthorizedTTL
	// --authorization-webhook-cache-unauthorized-ttl, nil for half a minute.
	WebhookCacheAuthorizedTTL, WebhookCacheUnauthorizedTTL *time.Duration
	// WebhookBackoff is how failed requests to webhooks are retried; nil is the
	// default.
	WebhookBackoff *wait.Backoff
	// Dial connects to webhooks; nil dials directly.
	Dial egress.Dial
	// ConfigFile is --authorization-config, which replaces Modes and the webhook
	// fields.
	ConfigFile string

	// RBAC and Node are the authorizers of these modes. They are passed in because they
	// read objects of the server.
	RBAC, Node authz.Authorizer
	// Logger gets reloads that failed and webhook errors; nil discards them.
	Logger *slog.Logger
	// Metrics counts decisions; nil does not.
	Metrics measure.Sink
}

func (c *Config) defaults() {
	if c.ConfigFile == "" {
		if len(c.Modes) == 0 {
			c.Modes = []string{ModeNode, ModeRBAC}
		}
		if c.WebhookVersion == "" {
			c.WebhookVersion = "v1beta1"
		}
		if c.WebhookCacheAuthorizedTTL == nil {
			c.WebhookCacheAuthorizedTTL = new(defaultAuthorizedTTL)
		}
		if c.WebhookCacheUnauthorizedTTL == nil {
			c.WebhookCacheUnauthorizedTTL = new(defaultUnauthorizedTTL)
		}
	}
	if c.WebhookBackoff == nil {
		c.WebhookBackoff = new(webhook.DefaultBackoff())
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate checks the configuration without creating authorizers.
func (c Config) Validate() error {
	c.defaults()
	if err := c.validate(); err != nil || c.ConfigFile == "" {
		return err
	}
	data, err := os.ReadFile(c.ConfigFile)
	if err == nil {
		_, err = load(data, sync.OnceValues(webhook.NewCompiler), nil)
	}
	return err
}

func (c *Config) validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.WebhookBackoff.Steps <= 0 {
		add("number of webhook retry attempts must be greater than 0, but is: %d", c.WebhookBackoff.Steps)
	}
	if c.ConfigFile != "" {
		if len(c.Modes) > 0 || c.WebhookConfigFile != "" || c.WebhookVersion != "" ||
			c.WebhookCacheAuthorizedTTL != nil || c.WebhookCacheUnauthorizedTTL != nil {
			add("--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined")
		}
		return aggregate(errs)
	}
	for _, mode := range c.Modes {
		switch {
		case !slices.Contains(Modes(), mode):
			add("authorization-mode %q is not a valid mode", mode)
		case mode == ModeABAC && c.PolicyFile == "":
			add("authorization-mode ABAC's authorization policy file not passed")
		case mode == ModeWebhook && c.WebhookConfigFile == "":
			add("authorization-mode Webhook's authorization config file not passed")
		}
	}
	if c.PolicyFile != "" && !slices.Contains(c.Modes, ModeABAC) {
		add("cannot specify --authorization-policy-file without mode ABAC")
	}
	if c.WebhookConfigFile != "" && !slices.Contains(c.Modes, ModeWebhook) {
		add("cannot specify --authorization-webhook-config-file without mode Webhook")
	}
	if sorted := slices.Sorted(slices.Values(c.Modes)); len(slices.Compact(sorted)) != len(c.Modes) {
		add("authorization-mode %q has mode specified more than once", c.Modes)
	}
	return aggregate(errs)
}

func aggregate(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return utilerrors.NewAggregate(errs)
}

// configuration returns the configuration file that is equivalent to the flags.
func (c *Config) configuration() *configuration {
	out := &configuration{}
	for _, mode := range c.Modes {
		a := authorizerConfiguration{Type: mode, Name: strings.ToLower(mode)}
		if mode == ModeWebhook {
			a.Name = "default"
			authorized, unauthorized := *c.WebhookCacheAuthorizedTTL, *c.WebhookCacheUnauthorizedTTL
			a.Webhook = &webhookConfiguration{
				AuthorizedTTL: metav1.Duration{Duration: authorized}, CacheAuthorizedRequests: new(authorized != 0),
				UnauthorizedTTL: metav1.Duration{Duration: unauthorized}, CacheUnauthorizedRequests: new(unauthorized != 0),
				Timeout:                    metav1.Duration{Duration: webhook.DefaultTimeout},
				FailurePolicy:              failNoOpinion,
				SubjectAccessReviewVersion: c.WebhookVersion,
				ConnectionInfo:             connectionInfo{Type: connectKubeconfig, KubeConfigFile: &c.WebhookConfigFile},
			}
		}
		out.Authorizers = append(out.Authorizers, a)
	}
	return out
}

// Chain is an Authorizer: system:masters first, then the configured authorizers in
// order. The file is read again when it changes, while Run runs.
type Chain struct {
	cfg      Config
	abac     authz.ABAC
	enabled  []string // types other than Webhook at the start; a reload must keep them
	compiler func() (*webhook.Compiler, error)

	current atomic.Pointer[authz.Union]

	files  *filewatch.Files // nil without a configuration file
	loaded *configuration
}

// New creates the chain. It changes only while Run runs.
func New(cfg Config) (*Chain, error) {
	cfg.defaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Chain{cfg: cfg, compiler: sync.OnceValues(webhook.NewCompiler)}
	conf := cfg.configuration()
	if cfg.ConfigFile != "" {
		var err error
		if c.files, err = filewatch.Read(cfg.ConfigFile); err != nil {
			return nil, err
		}
		if conf, err = load(c.files.Contents()[0], c.compiler, nil); err != nil {
			return nil, err
		}
		measure.ConfigRead(cfg.Metrics, measure.Authorization, c.files.Contents()[0])
	}
	for _, a := range conf.Authorizers {
		if a.Type != ModeWebhook {
			c.enabled = append(c.enabled, a.Type)
		}
		if a.Type == ModeABAC {
			var err error
			if c.abac, err = authz.NewABAC(cfg.PolicyFile, cfg.Logger); err != nil {
				return nil, fmt.Errorf("invalid authorization config: %w", err)
			}
		}
	}
	if err := c.use(conf); err != nil {
		return nil, fmt.Errorf("invalid authorization config: %w", err)
	}
	return c, nil
}

// use creates the authorizers of a configuration and switches to them.
func (c *Chain) use(conf *configuration) error {
	if len(conf.Authorizers) == 0 {
		return errors.New("at least one authorization mode must be passed")
	}
	named := []authz.Named{{Name: "kubernetes.io/system-privileged-group", Authorizer: authz.PrivilegedGroups{authz.Masters}}}
	for i := range conf.Authorizers {
		a := &conf.Authorizers[i]
		authorizer, err := c.authorizer(a)
		if err != nil {
			return err
		}
		count := func(decision string) measure.Series {
			return measure.SeriesOf(c.cfg.Metrics, measure.AuthorizationDecisions, a.Type, a.Name, decision)
		}
		named = append(named, authz.Named{Name: a.Name, Authorizer: authorizer, Allowed: count("allowed"), Denied: count("denied")})
	}
	union, err := authz.NewUnion(named...)
	if err != nil {
		return err
	}
	c.loaded = conf
	c.current.Store(&union)
	return nil
}

func (c *Chain) authorizer(a *authorizerConfiguration) (authz.Authorizer, error) {
	var made authz.Authorizer
	switch a.Type {
	case ModeAlwaysAllow:
		return authz.AlwaysAllow{}, nil
	case ModeAlwaysDeny:
		return authz.AlwaysDeny{}, nil
	case ModeWebhook:
		return c.webhook(a.Webhook)
	case ModeABAC:
		made = c.abac
	case ModeRBAC:
		made = c.cfg.RBAC
	case ModeNode:
		made = c.cfg.Node
	default:
		return nil, fmt.Errorf("unknown authorization mode %s specified", a.Type)
	}
	if made == nil || !slices.Contains(c.enabled, a.Type) {
		return nil, fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", a.Type)
	}
	return made, nil
}

func (c *Chain) webhook(w *webhookConfiguration) (authz.Authorizer, error) {
	if w.ConnectionInfo.KubeConfigFile == nil {
		return nil, fmt.Errorf("connections of type %s are not for an API server", w.ConnectionInfo.Type)
	}
	cfg := webhook.Config{
		Kubeconfig: *w.ConnectionInfo.KubeConfigFile,
		Dial:       c.cfg.Dial,
		Version:    w.SubjectAccessReviewVersion,
		Timeout:    w.Timeout.Duration,
		Backoff:    *c.cfg.WebhookBackoff,
		Logger:     c.cfg.Logger,

		Certificates: servercert.OfWebhooks(c.cfg.Metrics, c.cfg.Logger),
	}
	if *w.CacheAuthorizedRequests {
		cfg.AuthorizedTTL = w.AuthorizedTTL.Duration
	}
	if *w.CacheUnauthorizedRequests {
		cfg.UnauthorizedTTL = w.UnauthorizedTTL.Duration
	}
	if w.FailurePolicy == failDeny {
		cfg.OnError = authz.Deny
	}
	var err error
	if cfg.Conditions, err = compile(c.compiler, w.MatchConditions); err != nil {
		return nil, err
	}
	return webhook.New(cfg)
}

// Authorize implements authz.Authorizer.
func (c *Chain) Authorize(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	return c.current.Load().Authorize(ctx, a)
}

// Explain explains a decision of the current authorizers.
func (c *Chain) Explain(ctx context.Context, a *authz.Attributes) authz.Explanation {
	return c.current.Load().Explain(ctx, a)
}

// WhoCan finds those whom the current authorizers allow a request.
func (c *Chain) WhoCan(ctx context.Context, a *authz.Attributes, found func(authorizer string, g authz.Grant) bool) (unknown []string, err error) {
	return c.current.Load().WhoCan(ctx, a, found)
}

// RulesFor implements authz.Rules.
func (c *Chain) RulesFor(ctx context.Context, user *request.User, namespace string) ([]authz.ResourceRule, []authz.PathRule, bool, error) {
	return c.current.Load().RulesFor(ctx, user, namespace)
}

// Run reloads the configuration file when it changes, until ctx ends. If the new
// version is not valid, that is logged and the old one stays.
func (c *Chain) Run(ctx context.Context) {
	if c.files != nil {
		c.files.Watch(ctx, c.cfg.Logger, func(contents [][]byte) error {
			err := c.reload(contents[0])
			measure.ConfigReloaded(c.cfg.Metrics, measure.Authorization, contents[0], err)
			return err
		})
	}
}

// reload switches to a new version of the file. Only Run calls it.
func (c *Chain) reload(data []byte) error {
	conf, err := load(data, c.compiler, c.enabled)
	if err != nil {
		return err
	}
	if reflect.DeepEqual(conf, c.loaded) {
		return nil
	}
	return c.use(conf)
}
