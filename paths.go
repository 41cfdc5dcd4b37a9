package kelson

import (
	"encoding/json"
	"maps"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/status"
)

// Version returns the Kubernetes version that is served, and the build information of the
// program as far as it is known.
func Version() version.Info {
	major, minor, oldest := strconv.Itoa(features.KubernetesMajor), strconv.Itoa(features.KubernetesMinor), strconv.Itoa(features.KubernetesMinor-1)
	info := version.Info{
		Major: major, Minor: minor,
		EmulationMajor: major, EmulationMinor: minor,
		MinCompatibilityMajor: major, MinCompatibilityMinor: oldest,
		GitVersion: "v" + features.KubernetesVersion() + "+kelson",
		BuildDate:  "1970-01-01T00:00:00Z",
		GoVersion:  runtime.Version(),
		Compiler:   runtime.Compiler,
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
	}
	build, _ := debug.ReadBuildInfo()
	if build == nil {
		return info
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.GitCommit = setting.Value
		case "vcs.time":
			info.BuildDate = setting.Value
		case "vcs.modified":
			info.GitTreeState = "clean"
			if setting.Value == "true" {
				info.GitTreeState = "dirty"
			}
		}
	}
	return info
}

func (s *Server) serveVersion(w http.ResponseWriter, r *http.Request) {
	refuse := func(code int) {
		writeError(w, r, apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", 0, false))
	}
	switch {
	case strings.TrimRight(r.URL.Path, "/") != "/version":
		refuse(http.StatusNotFound)
	case r.Method != http.MethodGet:
		refuse(http.StatusMethodNotAllowed)
	case status.Only(w, r, mediaJSON):
		info := s.Version
		if info == (version.Info{}) {
			info = Version()
		}
		writeJSON(w, info)
	}
}

// serveIndex lists the paths of the whole chain.
func (s *Server) serveIndex(w http.ResponseWriter, _ *http.Request) {
	paths := map[string]bool{}
	for path := range s.paths {
		paths[path] = !strings.HasPrefix(path, "/debug/")
	}
	maps.DeleteFunc(paths, func(path string, shown bool) bool {
		// Of a path with and without a trailing slash one is listed.
		without, slash := strings.CutSuffix(path, "/")
		return !shown || slash && s.paths[without] != nil
	})
	for _, hidden := range []string{"/", "/index.html"} {
		delete(paths, hidden)
	}
	for i, endpoint := range endpointNames {
		for check := range s.checksOf(1 << i) {
			paths["/"+endpoint+"/"+check.Name] = true
		}
	}
	for _, link := range s.chain {
		if link.API == nil {
			continue
		}
		for _, path := range link.API.Paths() {
			paths[path] = true
		}
	}
	writeJSON(w, metav1.RootPaths{Paths: slices.Sorted(maps.Keys(paths))})
}

// writeJSON writes an indented JSON document.
func writeJSON(w http.ResponseWriter, document any) {
	body, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", mediaJSON)
	_, _ = w.Write(body)
}
