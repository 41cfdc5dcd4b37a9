package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/controlplane"

	"github.com/apikeel/kelson/internal/configfile"
)

// ask is what the commands share that ask a running server: how to reach it, as whom,
// and how to print its answer. The answers come from paths below /debug/kelson/, which
// are not in discovery, and from the ordinary API.
type ask struct {
	kubeconfig, context, namespace string
	as                             string
	asGroups                       []string
	output                         string
}

// bind adds the flags, with the names that kubectl gives them.
func (a *ask) bind(fs *pflag.FlagSet) {
	a.bindServer(fs)
	fs.StringVarP(&a.output, "output", "o", "table", "`form` of the answer: table, json or yaml")
}

// bindServer adds the flags that say which server is asked, and as whom.
func (a *ask) bindServer(fs *pflag.FlagSet) {
	a.output = "table"
	fs.StringVar(&a.kubeconfig, "kubeconfig", "", "`file` that says where the server is (default $KUBECONFIG, ~/.kube/config, or that of ./kelson-data)")
	fs.StringVar(&a.context, "context", "", "`name` of the context in the kubeconfig")
	fs.StringVarP(&a.namespace, "namespace", "n", "", "`namespace` (default that of the context)")
	fs.StringVar(&a.as, "as", "", "`user` to ask as, if you may impersonate them")
	fs.StringSliceVar(&a.asGroups, "as-group", nil, "`group` of that user; may be repeated")
}

// target is a server that can be asked.
type target struct {
	config    *rest.Config
	namespace string // of the flag or of the context; never empty
	// contextName is the context of the kubeconfig; empty if it has none.
	contextName string
	client      *rest.RESTClient
	mapper      meta.RESTMapper // reads discovery when it is first asked
}

// connect reads the kubeconfig. It does not talk to the server yet.
func (a *ask) connect() (*target, error) {
	switch a.output {
	case "table", "json", "yaml":
	default:
		return nil, fmt.Errorf("--output=%s is not one of table, json and yaml", a.output)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	if file, _ := controlplane.FindKubeconfig(controlplane.DefaultDataDir); a.kubeconfig == "" && !anyExists(rules.Precedence) && anyExists([]string{file}) {
		rules.ExplicitPath = file
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: a.context}
	overrides.Context.Namespace = a.namespace
	overrides.AuthInfo.Impersonate, overrides.AuthInfo.ImpersonateGroups = a.as, a.asGroups
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no kubeconfig was found; give --kubeconfig, or start a server with 'kelson serve' here")
	}
	if err != nil {
		return nil, configfile.Unquoted(err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, err
	}
	contextName := a.context
	if kubeconfig, err := loader.RawConfig(); err == nil && contextName == "" {
		contextName = kubeconfig.CurrentContext
	}
	config.UserAgent = "kelson/" + bareVersion()
	config.QPS = -1 // a person waits, and the server has flow control
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	cached := memory.NewMemCacheClient(discover)
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	return &target{config: config, namespace: namespace, contextName: contextName, client: discover.RESTClient().(*rest.RESTClient), mapper: mapper}, nil
}

// anyExists reports whether one of the files is there.
func anyExists(files []string) bool {
	for _, file := range files {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return false
}

// resource finds the resource that a person means: pods, po, Pod, deployments.apps,
// deployments.v1.apps.
func (t *target) resource(word string) (*meta.RESTMapping, error) {
	full, short := schema.ParseResourceArg(strings.ToLower(word))
	var kind schema.GroupVersionKind
	var err error
	if full != nil {
		kind, err = t.mapper.KindFor(*full)
	}
	if full == nil || err != nil {
		kind, err = t.mapper.KindFor(short.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("the server has no resource %q; 'kubectl api-resources' shows what it has", word)
	}
	if err != nil {
		return nil, err
	}
	return t.mapper.RESTMapping(kind.GroupKind(), kind.Version)
}

// debugRoot is the path below which the server answers.
const debugRoot = "/debug/kelson/"

// get asks for the page below debugRoot, and decodes its JSON into answer.
func (t *target) get(ctx context.Context, page string, query url.Values, answer any) error {
	return t.do(ctx, http.MethodGet, page, query, nil, answer)
}

// do sends a request with a body of JSON, if there is one, to a page below debugRoot.
func (t *target) do(ctx context.Context, method, page string, query url.Values, body, answer any) error {
	req := t.client.Verb(method).AbsPath(debugRoot + page)
	for name, values := range query {
		for _, value := range values {
			req = req.Param(name, value)
		}
	}
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		req = req.Body(text).SetHeader("Content-Type", "application/json")
	}
	text, err := req.DoRaw(ctx)
	if apierrors.IsNotFound(err) && !strings.Contains(string(text), `"details"`) {
		return fmt.Errorf("%s does not answer %s%s: it is not Kelson, or an older version of it", t.config.Host, debugRoot, page)
	}
	if err != nil {
		return statusText(err, text)
	}
	return json.Unmarshal(text, answer)
}

// statusText is the error with what the server said about it, which client-go leaves
// out of errors of paths that are not resources.
func statusText(err error, body []byte) error {
	var said struct{ Message string }
	if json.Unmarshal(body, &said) == nil && said.Message != "" {
		return fmt.Errorf("%s", said.Message)
	}
	return err
}

// print writes an answer in the form that --output names, with nothing in it that could
// change a terminal; as a table with the function, whose cells are separated by tabs.
func (a *ask) print(out io.Writer, answer any, table func(io.Writer) error) error {
	out = cleaner{out}
	switch a.output {
	case "json":
		text, err := json.MarshalIndent(answer, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(out, "%s\n", text)
		}
		return err
	case "yaml":
		text, err := json.Marshal(answer)
		if err == nil {
			// YAML has no control characters; their escapes are text to it.
			text, err = yaml.JSONToYAML([]byte(clean(string(text))))
		}
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	}
	columns := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	if err := table(columns); err != nil {
		return err
	}
	return columns.Flush()
}
