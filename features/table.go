package features

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/version"
)

// gateText has the gates of Kubernetes; the head of the file describes its format.
//
//go:embed gates.txt
var gateText string

// Table has feature gates by their names: all that a server knows.
type Table map[string]Gate

// Gate is a feature gate.
type Gate struct {
	// Stages are what the gate is in versions of Kubernetes, the oldest first. Before
	// the first of them the gate does not exist.
	Stages []Stage
	// Needs are the gates that must be enabled if this one is.
	Needs []string
	// Does is DoesHere, DoesNothing, or "" if this server only has the default.
	Does string
}

// What a gate does that is not at its default.
const (
	DoesHere    = "here"    // this server behaves accordingly
	DoesNothing = "nothing" // it has no effect in any API server
)

// Stage is what a gate is from a version of Kubernetes on. The zero value stands for
// a gate that does not exist yet.
type Stage struct {
	// Since is the first version in which the gate is like this.
	Since *version.Version
	// MinCompatibility is the oldest version that other servers with the same data may
	// be for this to hold; nil is any.
	MinCompatibility *version.Version
	// Name is Alpha, Beta, GA or Deprecated.
	Name string
	// Default is whether the gate is enabled unless it is set.
	Default bool
	// Locked gates cannot be set to anything but their default.
	Locked bool
}

// The stages of gates.
const (
	Alpha      = "ALPHA"
	Beta       = "BETA"
	GA         = "GA"
	Deprecated = "DEPRECATED"
)

// Kubernetes returns the gates of kube-apiserver. The caller may add gates of its
// own to the table.
func Kubernetes() Table { return maps.Clone(kubernetes()) }

// kubernetes is the table in gates.txt, which nobody may change.
var kubernetes = sync.OnceValue(func() Table {
	table, err := ParseTable(gateText)
	if err != nil {
		panic("gates.txt: " + err.Error())
	}
	return table
})

// ParseTable reads a table in the format of gates.txt, which its first lines describe:
//
//	Fast 1.36=ALPHA,off 1.37=BETA,on needs=Steady does=here
func ParseTable(text string) (Table, error) {
	table := Table{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		gate, err := parseGate(fields[1:])
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", n, fields[0], err)
		}
		if _, twice := table[fields[0]]; twice {
			return nil, fmt.Errorf("line %d: %s: this gate has a row already", n, fields[0])
		}
		table[fields[0]] = gate
	}
	return table, nil
}

func parseGate(fields []string) (g Gate, err error) {
	for _, field := range fields {
		key, text, _ := strings.Cut(field, "=")
		switch key {
		case "needs":
			g.Needs = strings.Split(text, ",")
		case "does":
			if g.Does = text; text != DoesHere && text != DoesNothing {
				return g, fmt.Errorf("does=%s: it is %s or %s", text, DoesHere, DoesNothing)
			}
		default:
			stage, err := parseStage(key, strings.Split(text, ","))
			if err != nil {
				return g, err
			}
			g.Stages = append(g.Stages, stage)
		}
	}
	if len(g.Stages) == 0 {
		return g, fmt.Errorf("no stage, such as %d.%d=%s,off", KubernetesMajor, KubernetesMinor, Alpha)
	}
	return g, nil
}

func parseStage(since string, values []string) (s Stage, err error) {
	if s.Since, err = version.Parse(since); err != nil {
		return s, err
	}
	if len(values) < 2 || values[1] != "on" && values[1] != "off" {
		return s, fmt.Errorf("%s=%s: want a stage, and on or off", since, strings.Join(values, ","))
	}
	s.Name, s.Default = values[0], values[1] == "on"
	if !slices.Contains([]string{Alpha, Beta, GA, Deprecated}, s.Name) {
		return s, fmt.Errorf("%s=%s: there is no stage %s", since, strings.Join(values, ","), s.Name)
	}
	for _, more := range values[2:] {
		if more == "locked" {
			s.Locked = true
		} else if s.MinCompatibility, err = version.Parse(more); err != nil {
			return s, err
		}
	}
	return s, nil
}

// At returns what the gate is in a server of a version.
func (g Gate) At(v Version) Stage {
	for _, stage := range slices.Backward(g.Stages) {
		if v.Emulated.AtLeast(stage.Since) && (stage.MinCompatibility == nil || v.MinCompatibility.AtLeast(stage.MinCompatibility)) {
			return stage
		}
	}
	return Stage{}
}
