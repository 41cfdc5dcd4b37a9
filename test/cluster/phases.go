package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/test/bench/servers"
)

// phase is what one phase has taken.
type phase struct {
	Name          string  `json:"name"`
	Seconds       float64 `json:"seconds"`
	CPU           float64 `json:"server_cpu_s"` // of all processes of the server
	Requests      float64 `json:"requests"`     // that were answered, without watches
	Memory        float64 `json:"server_mib"`   // resident, at the end
	ComponentsCPU float64 `json:"components_cpu_s"`
	OtherLoad     float64 `json:"other_load_cores"` // of programs that are no part of this
}

// measurePhase runs one phase. The counters of requests are read before and after the time
// that is measured, since the answer is work for a server with many metrics.
func measurePhase(ctx context.Context, v, components *servers.Server, client kubernetes.Interface, patience time.Duration, work func(context.Context) error) (phase, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done after %v", patience))
	defer cancel()
	requests, err := answered(ctx, client)
	if err != nil {
		return phase{}, err
	}
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
	if p.Requests, err = answered(ctx, client); err != nil {
		return phase{}, err
	}
	p.Requests -= requests
	return p, nil
}

// answered returns how many requests other than watches the server has answered so far,
// by its metrics.
func answered(ctx context.Context, client kubernetes.Interface) (sum float64, err error) {
	text, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		labels, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok || !strings.HasPrefix(labels, "apiserver_request_total{") || strings.Contains(labels, `verb="WATCH"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metrics: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// markdown is a table of phases, with ratios of the first server to each other one.
func markdown(of size, outcomes []outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d nodes with a heartbeat every %v, %d pods in %d deployments. A cell: seconds · CPU seconds of the server · its memory in MiB at the end · requests that it answered.\n\n",
		of.Nodes, of.Heartbeat, of.Deployments*of.Replicas, of.Deployments)
	b.WriteString("| phase |")
	line := "|---|"
	for _, o := range outcomes {
		b.WriteString(" " + o.Server + " |")
		line += "---:|"
	}
	for _, o := range outcomes[1:] {
		b.WriteString(" time, CPU, CPU a request: " + outcomes[0].Server + " / " + o.Server + " |")
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
			cells = append(cells, fmt.Sprintf("%.1f · %.2f · %.0f · %.0f", p.Seconds, p.CPU, p.Memory, p.Requests))
		}
		for _, o := range outcomes[1:] {
			if i >= len(o.Phases) || i >= len(outcomes[0].Phases) {
				ratios = append(ratios, "–")
				continue
			}
			first, p := outcomes[0].Phases[i], o.Phases[i]
			ratios = append(ratios, fmt.Sprintf("×%.2f · ×%.1f · ×%.1f", first.Seconds/p.Seconds, first.CPU/max(p.CPU, 1e-9),
				first.CPU*p.Requests/max(p.CPU*first.Requests, 1e-9)))
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
