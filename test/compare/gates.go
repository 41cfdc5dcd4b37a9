//go:build linux

package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/apikeel/kelson/features"
)

// gateSets is how many scenarios have gates switched at random.
const gateSets = 6

// gateScenarios switch some gates away from their defaults. They are the same every time.
func gateScenarios() (list []scenario) {
	defaults, err := features.New(features.Config{})
	if err != nil {
		panic(err) // nothing is set
	}
	for n := range gateSets {
		r := rand.New(rand.NewPCG(1, uint64(n)))
		set := map[string]bool{}
		for _, g := range defaults.States() {
			if r.IntN(5) != 0 || g.Name == "AllAlpha" || g.Name == "AllBeta" {
				continue
			}
			with := maps.Clone(set)
			with[g.Name] = !g.Enabled
			// Locked gates, and those whose dependencies are not met, stay as they are.
			if _, err := features.New(features.Config{Set: with}); err == nil {
				set = with
			}
		}
		var flags []string
		for _, name := range slices.Sorted(maps.Keys(set)) {
			flags = append(flags, fmt.Sprintf("%s=%t", name, set[name]))
		}
		list = append(list, scenario{
			name: fmt.Sprintf("gates-%d", n), about: "gates switched at random",
			flags: []string{"--feature-gates=" + strings.Join(flags, ","), "--runtime-config=api/all=true"},
		})
	}
	return list
}
