package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/apikeel/kelson/test/bench/servers"
)

// phase is what one phase has taken.
type phase struct {
	Name          string  `json:"name"`
	Seconds       float64 `json:"seconds"`
	CPU           float64 `json:"server_cpu_s"` // of all processes of the server
	Memory        float64 `json:"server_mib"`   // resident, at the end
	ComponentsCPU float64 `json:"components_cpu_s"`
	OtherLoad     float64 `json:"other_load_cores"` // of programs that are no part of this
}

// measurePhase runs one phase.
func measurePhase(ctx context.Context, v, components *servers.Server, patience time.Duration, work func(context.Context) error) (phase, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done after %v", patience))
	defer cancel()
	cpu, around, self, machine, begin := v.CPU(), components.CPU(), servers.SelfTime(), servers.MachineTime(), time.Now()
	if err := work(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return phase{}, err
	}
	p := phase{Seconds: time.Since(begin).Seconds(), CPU: v.CPU() - cpu, ComponentsCPU: components.CPU() - around}
	others := (servers.MachineTime() - machine).Seconds() - p.CPU - p.ComponentsCPU - (servers.SelfTime() - self).Seconds()
	p.OtherLoad = max(0, others/p.Seconds)
	p.Memory, _ = v.Memory()
	return p, nil
}

// markdown is a table of phases, with ratios of the first server to each other one.
func markdown(of size, outcomes []outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d nodes with a heartbeat every %v, %d pods in %d deployments. A cell: seconds · CPU seconds of the server · its memory in MiB at the end.\n\n",
		of.Nodes, of.Heartbeat, of.Deployments*of.Replicas, of.Deployments)
	b.WriteString("| phase |")
	line := "|---|"
	for _, o := range outcomes {
		b.WriteString(" " + o.Server + " |")
		line += "---:|"
	}
	for _, o := range outcomes[1:] {
		b.WriteString(" time, CPU: " + outcomes[0].Server + " / " + o.Server + " |")
		line += "---:|"
	}
	b.WriteString("\n" + line + "\n")
	longest := 0
	for _, o := range outcomes {
		longest = max(longest, len(o.Phases))
	}
	for i := range longest {
		var cells, ratios []string
		name := ""
		for _, o := range outcomes {
			if i >= len(o.Phases) {
				cells = append(cells, "not done")
				continue
			}
			p := o.Phases[i]
			name = p.Name
			cells = append(cells, fmt.Sprintf("%.1f · %.2f · %.0f", p.Seconds, p.CPU, p.Memory))
		}
		for _, o := range outcomes[1:] {
			if i >= len(o.Phases) || i >= len(outcomes[0].Phases) {
				ratios = append(ratios, "–")
				continue
			}
			first, p := outcomes[0].Phases[i], o.Phases[i]
			ratios = append(ratios, fmt.Sprintf("×%.2f · ×%.1f", first.Seconds/p.Seconds, first.CPU/max(p.CPU, 1e-9)))
		}
		fmt.Fprintf(&b, "| %s | %s |\n", name, strings.Join(append(cells, ratios...), " | "))
	}
	b.WriteString("| peak memory, MiB |")
	for _, o := range outcomes {
		fmt.Fprintf(&b, " %.0f |", o.Peak)
	}
	for _, o := range outcomes[1:] {
		fmt.Fprintf(&b, " ×%.1f |", outcomes[0].Peak/max(o.Peak, 1e-9))
	}
	b.WriteString("\n")
	return b.String()
}
