package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/why"
	"github.com/apikeel/kelson/zpages"
)

// Debug says what a server shows of itself to those who may look into it.
type Debug struct {
	// NoProfiling leaves the profiles out: --profiling=false.
	NoProfiling bool
	// Contention profiles who waits for locks too: --contention-profiling.
	Contention bool
	// Socket is a file for a socket on which profiles and flags are served, whatever
	// NoProfiling says, without asking who wants them: --debug-socket-path.
	Socket string
	// Logs serves what is in /var/log: --enable-logs-handler.
	Logs bool
	// Metrics says what is shown of the metrics.
	Metrics metrics.Config
	// Flags are what /flagz shows; nil has no such page.
	Flags map[string]string
	// SetVerbosity changes how much is logged; nil cannot.
	SetVerbosity func(n uint64)
}

const (
	// logFolder is where a machine has its logs.
	logFolder = "/var/log"
	// maxFlag is more than any value of a flag has.
	maxFlag = 1 << 10
)

// debugging returns the handlers of metrics, z-pages and, unless they are not
// wanted, the profiles.
func (a *assembly) debugging() map[string]http.Handler {
	d := a.Debug
	a.registry.Configure(d.Metrics)
	info := a.version()
	version, _, _ := strings.Cut(strings.TrimPrefix(info.GitVersion, "v"), "+")
	about := zpages.Status{
		Started: time.Now(), Version: version, Emulated: info.EmulationMajor + "." + info.EmulationMinor,
		Paths: []string{"/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"},
	}
	if !a.Gates.Enabled("ComponentFlagz") {
		d.Flags = nil
	}
	paths := map[string]http.Handler{"/metrics": a.registry.Handler(!d.NoProfiling), "/metrics/slis": a.slis.Handler(!d.NoProfiling)}
	if d.Flags != nil {
		paths["/flagz"] = zpages.Flags(d.Flags)
		about.Paths = append([]string{"/flagz"}, about.Paths...)
	}
	if d.Logs {
		about.Paths = append(about.Paths, "/logs")
		slices.Sort(about.Paths)
	}
	if a.Gates.Enabled("ComponentStatusz") {
		paths["/statusz"] = about
	}
	paths[memoryPage] = a.only(http.HandlerFunc(a.serveMemory), http.MethodGet)
	for path, page := range a.explanations().Handlers() {
		paths[path] = a.only(page, methodOf(path))
	}
	maps.Copy(paths, a.historyPages().Handlers())
	maps.Copy(paths, a.usagePages())
	if !d.NoProfiling {
		addProfiles(paths)
		if d.SetVerbosity != nil {
			addFlags(paths, d.SetVerbosity)
		}
	}
	if d.Socket != "" {
		a.outer.PostStartHooks = append(a.outer.PostStartHooks, kelson.Hook{Name: "start-debug-socket", Run: a.serveSocket})
	}
	if d.Contention && (!d.NoProfiling || d.Socket != "") {
		runtime.SetBlockProfileRate(1)
	}
	if d.Logs {
		logs := a.only(http.HandlerFunc(serveLogs), http.MethodGet)
		paths["/logs"], paths["/logs/"] = logs, logs
	}
	if a.flow != nil {
		for path, page := range a.flow.Pages() {
			paths[path] = page
		}
	}
	return paths
}

// explanations returns the pages that say why the server decides as it does.
func (a *assembly) explanations() *why.Pages {
	return &why.Pages{
		Authorizer: a.authz, Denials: a.denials, Submit: a.outer.Loopback,
		Serves: func(group, version, resource string) bool {
			_, ok := a.catalogs.get().Lookup(group, version, resource)
			return ok
		},
	}
}

// methodOf returns the method of a page of explanations.
func methodOf(path string) string {
	if path == why.AdmissionPath {
		return http.MethodPost
	}
	return http.MethodGet
}

func addProfiles(paths map[string]http.Handler) {
	paths["/debug/pprof"] = http.RedirectHandler("/debug/pprof/", http.StatusFound)
	paths["/debug/pprof/"] = http.HandlerFunc(pprof.Index)
	paths["/debug/pprof/profile"] = http.HandlerFunc(pprof.Profile)
	paths["/debug/pprof/symbol"] = http.HandlerFunc(pprof.Symbol)
	paths["/debug/pprof/trace"] = http.HandlerFunc(pprof.Trace)
}

// addFlags adds the flags that can be changed while the server runs: one.
func addFlags(paths map[string]http.Handler, set func(n uint64)) {
	index := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\nflags:<br>\n<table>\n"+
			"<tr>v<br>\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n")
	})
	paths["/debug/flags"], paths["/debug/flags/"] = index, index
	paths["/debug/flags/v"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := func(code int, text string) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(code)
			fmt.Fprintln(w, text)
		}
		if r.Method != http.MethodPut {
			answer(http.StatusNotAcceptable, "unsupported http method")
			return
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, maxFlag))
		if err != nil {
			answer(http.StatusBadRequest, "error reading request body: "+err.Error())
			return
		}
		n, err := strconv.ParseUint(string(body), 10, 31)
		if err != nil {
			answer(http.StatusBadRequest, err.Error())
			return
		}
		set(n)
		answer(http.StatusOK, "successfully set klog.logging.verbosity to "+string(body))
	})
}

// serveLogs serves a file, or a list of files, of the machine's logs.
func serveLogs(w http.ResponseWriter, r *http.Request) {
	// What leads out of the folder is gone when the path is clean.
	file := path.Join(logFolder, path.Clean("/"+strings.TrimPrefix(r.URL.Path, "/logs")))
	if _, err := os.Stat(file); errors.Is(err, syscall.ENAMETOOLONG) {
		http.Error(w, "file not found", http.StatusNotFound)
		return
	}
	http.ServeFile(uncached{w, w.Header().Get("Cache-Control")}, r, file)
}

// uncached keeps what is said of caches in answers that are errors, too.
type uncached struct {
	http.ResponseWriter
	control string
}

// WriteHeader implements http.ResponseWriter.
func (w uncached) WriteHeader(code int) {
	if w.control != "" {
		w.Header().Set("Cache-Control", w.control)
	}
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController find what is not here.
func (w uncached) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// debugTimeout bounds the headers of a request on the debug socket.
const debugTimeout = 10 * time.Second

// serveSocket serves the profiles on a socket that only this user can open. A server
// without one is a server nevertheless.
func (a *assembly) serveSocket(ctx context.Context) error {
	if err := a.openSocket(ctx); err != nil {
		a.Logger.Error("Failed to serve on the debug socket", "file", a.Debug.Socket, "error", err)
	}
	return nil
}

func (a *assembly) openSocket(ctx context.Context) error {
	file := a.Debug.Socket
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to remove existing debug socket: %w", err)
	}
	listener, err := net.Listen("unix", file)
	if err != nil {
		return fmt.Errorf("debug socket: %w", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		return errors.Join(err, listener.Close())
	}
	paths, mux := map[string]http.Handler{}, http.NewServeMux()
	addProfiles(paths)
	paths["/debug/pprof/cmdline"] = http.HandlerFunc(pprof.Cmdline)
	if a.Debug.SetVerbosity != nil {
		addFlags(paths, a.Debug.SetVerbosity)
	}
	for path, handler := range paths {
		mux.Handle(path, handler)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: debugTimeout}
	a.running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.Logger.Warn("debug socket", "error", err)
		}
	})
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}
