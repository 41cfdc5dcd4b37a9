package main

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"runtime/debug"
	"slices"
	"time"
)

// The documents that say what the fields of a provenance mean.
const (
	statementType  = "https://in-toto.io/Statement/v1"
	provenanceType = "https://slsa.dev/provenance/v1"
	buildType      = "https://github.com/apikeel/kelson/internal/release@v1"
	repository     = "git+https://github.com/apikeel/kelson"
)

// resource is a file, or what one was made of, with its hash.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// provenance returns how the files of a release were made, as an in-toto statement with
// SLSA's predicate: which commit, which Go, which modules, and with which arguments. It
// says nothing of the machine, and is as reproducible as the files. It is not signed: who
// publishes it does that.
func (r *release) provenance(info *debug.BuildInfo, targets []target) ([]byte, error) {
	settings := map[string]string{}
	for _, set := range info.Settings {
		settings[set.Key] = set.Value
	}
	var subjects []resource
	for _, name := range slices.Sorted(maps.Keys(r.sums)) {
		sum := r.sums[name]
		subjects = append(subjects, resource{Name: name, Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}})
	}
	source := resource{URI: repository + "@refs/tags/" + r.version, Digest: map[string]string{"gitCommit": settings["vcs.revision"]}}
	dependencies := []resource{source, {URI: "pkg:golang/std@" + info.GoVersion}}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		dependencies = append(dependencies, resource{URI: "pkg:golang/" + module.Path + "@" + module.Version, Digest: map[string]string{"dirHash": module.Sum}})
	}
	return json.MarshalIndent(map[string]any{
		"_type": statementType, "subject": subjects, "predicateType": provenanceType,
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":            buildType,
				"externalParameters":   map[string]any{"version": r.version, "targets": targets, "source": source},
				"internalParameters":   map[string]any{"sourcesModified": settings["vcs.modified"] == "true"},
				"resolvedDependencies": dependencies,
			},
			"runDetails": map[string]any{
				"builder":  map[string]any{"id": buildType, "version": map[string]string{"go": info.GoVersion}},
				"metadata": map[string]string{"startedOn": r.time.Format(time.RFC3339)},
			},
		},
	}, "", "  ")
}
