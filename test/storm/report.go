//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// sizeText writes a limit as people do.
func sizeText(bytes int64) string {
	switch {
	case bytes == 0:
		return "none"
	case bytes%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", bytes>>30)
	}
	return mebibytes(bytes) + " MiB"
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%.0f", float64(bytes)/(1<<20)) }

// summary is a result in one line.
func (r *result) summary() string {
	return fmt.Sprintf("%s; %d complete, %d refused, %d broken; %.0f MB/s; administrator p99 %.0f ms, %d of %d failed; peak RSS %s MiB",
		r.Outcome, r.Answers.Complete, r.Answers.Refused, r.Answers.Broken, r.Throughput, r.Admin.P99, r.Admin.Failed, r.Admin.Asked, mebibytes(r.PeakRSS))
}

// writeTable writes all results as two tables in Markdown, how the answers ended and what
// became of the server, and below them why answers broke off.
func writeTable(out io.Writer, all []*result) error {
	ended := [][]string{{"scenario", "clients", "limit", "server", "complete", "refused", "broken", "unfinished", "waiting", "MB/s", "p50 / p99, s"}}
	became := [][]string{{
		"scenario", "clients", "limit", "server", "outcome", "admin p50 / p99 / max, ms", "admin failed", "health failed",
		"RSS before / peak / after, MiB", "cgroup, MiB", "recovery, s", "cores: server / clients / others",
	}}
	for _, r := range all {
		key := []string{r.Scenario, fmt.Sprint(r.Clients), sizeText(r.Limit), r.Server}
		ended = append(ended, append(slices.Clone(key), r.endings()...))
		recovery := "-"
		if r.Recovery >= 0 {
			recovery = fmt.Sprintf("%.1f", r.Recovery)
		}
		became = append(became, append(key, r.Outcome,
			fmt.Sprintf("%.1f / %.0f / %.0f", r.Admin.P50, r.Admin.P99, r.Admin.Max),
			fmt.Sprintf("%d of %d", r.Admin.Failed, r.Admin.Asked),
			fmt.Sprintf("%d of %d", r.Health.Failed, r.Health.Asked),
			fmt.Sprintf("%s / %s / %s", mebibytes(r.RSSBefore), mebibytes(r.PeakRSS), mebibytes(r.RSSAfter)),
			mebibytes(r.PeakCgroup), recovery,
			fmt.Sprintf("%.1f / %.1f / %.1f", r.ServerCores, r.ClientCores, r.OtherCores)))
	}
	var text strings.Builder
	writeRows(&text, ended)
	text.WriteString("\n")
	writeRows(&text, became)
	for _, r := range all {
		writeReasons(&text, r, "answers", r.Answers.Reasons)
		writeReasons(&text, r, "answers to others", r.Honest.Reasons)
		writeReasons(&text, r, "administrator", r.Admin.Errors)
		writeReasons(&text, r, "health", r.Health.Errors)
		if r.Log != "" {
			fmt.Fprintf(&text, "\n%s, log of the server:\n%s\n", r.title(), r.Log)
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// endings returns the columns about answers. Those to clients that read as usual, beside
// a storm of others, come after a plus sign, and the times are theirs.
func (r *result) endings() (columns []string) {
	mixed, times := !r.readsAll, r.Answers
	if mixed {
		times = r.Honest
	}
	for _, of := range []func(*answers) int{
		func(a *answers) int { return a.Complete },
		func(a *answers) int { return a.Refused },
		func(a *answers) int { return a.Broken },
		func(a *answers) int { return a.Unfinished },
		func(a *answers) int { return a.Unanswered },
	} {
		text := fmt.Sprint(of(r.Answers))
		if mixed {
			text += fmt.Sprintf(" + %d", of(r.Honest))
		}
		columns = append(columns, text)
	}
	return append(columns, fmt.Sprintf("%.0f", r.Throughput), fmt.Sprintf("%.2f / %.2f", times.P50/1000, times.P99/1000))
}

// writeRows writes a table whose first row is the header.
func writeRows(text *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for i, row := range rows {
		for j, cell := range row {
			fmt.Fprintf(text, "| %-*s ", widths[j], cell)
		}
		text.WriteString("|\n")
		if i == 0 {
			for _, w := range widths {
				text.WriteString("|" + strings.Repeat("-", w+2))
			}
			text.WriteString("|\n")
		}
	}
}

func (r *result) title() string {
	return fmt.Sprintf("%s, %s, %d clients, limit %s", r.Server, r.Scenario, r.Clients, sizeText(r.Limit))
}

func writeReasons(text *strings.Builder, r *result, what string, reasons map[string]int) {
	if len(reasons) == 0 {
		return
	}
	fmt.Fprintf(text, "\n%s, %s:\n", r.title(), what)
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(text, "%7d  %s\n", reasons[reason], strings.Join(strings.Fields(reason), " "))
	}
}

// verdict returns what is wrong with results that have a limit.
func verdict(all []*result, adminBound time.Duration, throughputPart float64) error {
	var wrong []error
	for _, r := range all {
		if r.Limit == 0 {
			continue
		}
		for _, fault := range r.faults(adminBound) {
			wrong = append(wrong, fmt.Errorf("%s: %s", r.title(), fault))
		}
		for _, free := range all {
			if free.Limit != 0 || free.Server != r.Server || free.Scenario != r.Scenario || free.Clients != r.Clients || !r.readsAll {
				continue
			}
			if r.Throughput < throughputPart*free.Throughput {
				wrong = append(wrong, fmt.Errorf("%s: %.0f MB/s, less than %.0f%% of %.0f without a limit",
					r.title(), r.Throughput, 100*throughputPart, free.Throughput))
			}
		}
	}
	return errors.Join(wrong...)
}

const noCompleteAnswer = "no complete answer"

// faults returns what must not happen in a storm and did.
func (r *result) faults(adminBound time.Duration) (faults []string) {
	if r.Outcome != survived {
		return []string{r.Outcome}
	}
	// Who does not read may be cut off.
	if r.readsAll && r.Answers.Broken > 0 {
		faults = append(faults, fmt.Sprintf("%d broken answers: %v", r.Answers.Broken, r.Answers.Reasons))
	}
	if r.Honest.Broken > 0 {
		faults = append(faults, fmt.Sprintf("%d broken answers to those who read: %v", r.Honest.Broken, r.Honest.Reasons))
	}
	if got := r.Answers.Complete + r.Honest.Complete; got == 0 {
		faults = append(faults, noCompleteAnswer)
	}
	if r.restarts {
		return faults // others wait for the server as well
	}
	if r.Admin.Failed > 0 {
		faults = append(faults, fmt.Sprintf("%d of %d writes of the administrator failed: %v", r.Admin.Failed, r.Admin.Asked, r.Admin.Errors))
	}
	if r.Admin.P99 > milliseconds(adminBound) {
		faults = append(faults, fmt.Sprintf("the administrator's p99 is %.0f ms, more than %v", r.Admin.P99, adminBound))
	}
	if r.Health.Failed > 0 {
		faults = append(faults, fmt.Sprintf("%d of %d health checks failed: %v", r.Health.Failed, r.Health.Asked, r.Health.Errors))
	}
	return faults
}
