package flow

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/request"
)

// Pages returns the handlers of the debug pages, by path.
func (c *Control) Pages() map[string]http.Handler {
	const folder = "/debug/api_priority_and_fairness/"
	page := func(write func(rows *rows, r *http.Request)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// The rows are written to memory while levels are locked: a slow client
			// must not hold the locks.
			var text bytes.Buffer
			rows := &rows{tabwriter.NewWriter(&text, 8, 0, 1, ' ', 0)}
			write(rows, r)
			_ = rows.w.Flush()
			_, _ = w.Write(text.Bytes())
		})
	}
	return map[string]http.Handler{
		folder + "dump_priority_levels": page(c.dumpLevels),
		folder + "dump_queues":          page(c.dumpQueues),
		folder + "dump_requests":        page(c.dumpRequests),
	}
}

// rows writes a table. Cells end with commas, so that programs can split them.
type rows struct{ w *tabwriter.Writer }

func (r *rows) add(cells ...string) { _, _ = r.w.Write([]byte(strings.Join(cells, ",\t") + "\n")) }

func (c *Control) dumpLevels(rows *rows, _ *http.Request) {
	rows.add("PriorityLevelName", "ActiveQueues", "IsIdle", "IsQuiescing", "WaitingRequests", "ExecutingRequests",
		"DispatchedRequests", "RejectedRequests", "TimedoutRequests", "CancelledRequests")
	for _, l := range c.table.Load().levels {
		l.mu.Lock()
		active, refused := 0, 0
		for _, q := range l.queues {
			if q.waiting > 0 {
				active++
			}
		}
		for _, n := range l.counts.refused {
			refused += n
		}
		rows.add(l.name, strconv.Itoa(active), strconv.FormatBool(l.idle()), strconv.FormatBool(l.quiescing),
			strconv.Itoa(l.waiting), strconv.Itoa(l.working), strconv.Itoa(l.counts.dispatched), strconv.Itoa(refused),
			// a request that timed out counts as cancelled
			"0", strconv.Itoa(l.counts.refused[timedOut]))
		l.mu.Unlock()
	}
}

func (c *Control) dumpQueues(rows *rows, _ *http.Request) {
	rows.add("PriorityLevelName", "Index", "PendingRequests", "ExecutingRequests", "SeatsInUse",
		"NextDispatchR", "InitialSeatsSum", "MaxSeatsSum", "TotalWorkSum")
	for _, l := range c.table.Load().levels {
		l.mu.Lock()
		l.makeQueues()
		for i, q := range l.queues {
			rows.add(l.name, strconv.Itoa(i), strconv.Itoa(q.waiting), strconv.Itoa(q.working), strconv.Itoa(q.seats),
				q.dispatch.String(), strconv.Itoa(q.initial), strconv.Itoa(q.most), q.sum.String())
		}
		l.mu.Unlock()
	}
}

func (c *Control) dumpRequests(rows *rows, r *http.Request) {
	details := request.QueryOf(r).Get("includeRequestDetails") != ""
	header := []string{"PriorityLevelName", "FlowSchemaName", "QueueIndex", "RequestIndexInQueue", "FlowDistingsher",
		"ArriveTime", "InitialSeats", "FinalSeats", "AdditionalLatency", "StartTime"}
	if details {
		header = append(header, "UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource")
	}
	rows.add(header...)
	add := func(l *level, e *Entry, queue, place int) {
		stamp := func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
		row := []string{l.name, e.schema.name, strconv.Itoa(queue), strconv.Itoa(place), e.distinguisher, stamp(e.arrived),
			strconv.Itoa(e.estimate.initial), strconv.Itoa(e.estimate.final), e.estimate.after.String(), stamp(e.started)}
		if details {
			i := &e.request.Info
			row = append(row, e.request.User.Name, i.Verb, i.Path, i.Namespace, i.Name,
				metav1.GroupVersion{Group: i.Group, Version: i.Version}.String(), i.Resource, i.Subresource)
		}
		rows.add(row...)
	}
	for _, l := range c.table.Load().levels {
		l.mu.Lock()
		for i, q := range l.queues {
			place := 0
			for e := q.entries.first; e != nil; e = e.after {
				add(l, e, i, place)
				place++
			}
		}
		for e := l.running.first; e != nil; e = e.after {
			queue := -1
			if e.queue != nil {
				queue = e.queue.index
			}
			add(l, e, queue, -1)
		}
		l.mu.Unlock()
	}
}
