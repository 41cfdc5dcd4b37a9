package main

import (
	_ "embed"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apikeel/kelson/controlplane"
)

// gateTable has the feature gates of kube-apiserver: name, stage, default and
// whether it is locked.
//
//go:embed gates.txt
var gateTable string

// gate is a feature gate.
type gate struct {
	stage  string
	on     bool // by default
	locked bool
}

func gates() map[string]gate {
	all := map[string]gate{}
	for line := range strings.Lines(gateTable) {
		if f := strings.Fields(line); len(f) >= 3 {
			all[f[0]] = gate{stage: f[1], on: f[2] == "true", locked: len(f) > 3}
		}
	}
	return all
}

// checkGates refuses what kube-apiserver would refuse, and says of the rest that
// it changes nothing: what Kubernetes has behind a gate is either here or not. It
// returns the gates as metrics show them.
func checkGates(set []string, log *slog.Logger) ([]controlplane.Gate, error) {
	known := gates()
	shown := make([]controlplane.Gate, 0, len(known))
	for _, name := range slices.Sorted(maps.Keys(known)) {
		g := known[name]
		stage := g.stage
		if stage == "GA" {
			stage = ""
		}
		shown = append(shown, controlplane.Gate{Name: name, Stage: stage, Enabled: g.on})
	}
	for _, text := range set {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if component, rest, ok := strings.Cut(text, ":"); ok {
			if component != "kube" {
				return nil, fmt.Errorf("component not registered: %s", component)
			}
			text = rest
		}
		name, value, ok := strings.Cut(text, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok {
			return nil, fmt.Errorf("missing bool value for %s", name)
		}
		on, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("invalid value of %s=%s, err: %w", name, value, err)
		}
		switch g, ok := known[name]; {
		case !ok:
			return nil, fmt.Errorf("unrecognized feature gate: %s", name)
		case g.locked && on != g.on:
			return nil, fmt.Errorf("cannot set feature gate %v to %v, feature is locked to %v", name, on, g.on)
		default:
			log.Warn("feature gate has no effect here", "gate", name, "stage", g.stage, "value", on)
		}
	}
	return shown, nil
}
