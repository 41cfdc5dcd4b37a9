package controlplane

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/metrics/measure"
)

const flowPrefix = "apiserver_flowcontrol_"

// flowObservers measure requests in flow control.
func flowObservers(m *metrics.Families) func(schema, level string) flow.Observers {
	return func(schema, level string) flow.Observers {
		return flow.Observers{
			Waited: m.Series(measure.FlowWait, level, schema, "true"), Refused: m.Series(measure.FlowWait, level, schema, "false"),
			Worked: m.Series(measure.FlowExecution, level, schema, "regular"), Began: m.Series(measure.FlowExecution, level, schema, "watch"),
			Seats: m.Series(measure.FlowSeats, level, schema), Queue: m.Series(measure.FlowQueue, level, schema), Watches: m.Series(measure.FlowWatches, level, schema),
		}
	}
}

// describeFlow describes what flow control tells when it is asked.
func (s descriptions) describeFlow() {
	const nanosecond = "EXPERIMENTAL: [ALPHA] Observations, at the end of every nanosecond, of "
	level, both := []string{"priority_level"}, []string{"priority_level", "flow_schema"}
	phased, bounded := append([]string{"phase"}, level...), append(level[:1:1], "bound")
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"nominal_limit_seats", "[BETA] Nominal number of execution seats configured for each priority level", level},
		{"lower_limit_seats", "[ALPHA] Configured lower bound on number of execution seats available to each priority level", level},
		{"upper_limit_seats", "[ALPHA] Configured upper bound on number of execution seats available to each priority level", level},
		{"current_limit_seats", "[ALPHA] current derived number of execution seats available to each priority level", level},
		{"demand_seats_high_watermark", "[ALPHA] High watermark, over last adjustment period, of demand_seats", level},
		{"demand_seats_average", "[ALPHA] Time-weighted average, over last adjustment period, of demand_seats", level},
		{"demand_seats_stdev", "[ALPHA] Time-weighted standard deviation, over last adjustment period, of demand_seats", level},
		{"demand_seats_smoothed", "[ALPHA] Smoothed seat demands", level},
		{"target_seats", "[ALPHA] Seat allocation targets", level},
		{"seat_fair_frac", "[ALPHA] Fair fraction of server's concurrency to allocate to each priority level that can use it", nil},
		{"current_r", "[ALPHA] R(time of last change)", level},
		{"dispatch_r", "[ALPHA] R(time of last dispatch)", level},
		{"latest_s", "[ALPHA] S(most recently dispatched request)", level},
		{"next_s_bounds", "[ALPHA] min and max, over queues, of S(oldest waiting request in queue)", bounded},
		{"next_discounted_s_bounds", "[ALPHA] min and max, over queues, of S(oldest waiting request in queue) - estimated work in progress", bounded},
		{"dispatched_requests_total", "[BETA] Number of requests executed by API Priority and Fairness subsystem", both},
		{"rejected_requests_total", "[BETA] Number of requests rejected by API Priority and Fairness subsystem", append(both[:2:2], "reason")},
		{"request_dispatch_no_accommodation_total", "[ALPHA] Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats", both},
		{"current_inqueue_requests", "[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem", both},
		{"current_inqueue_seats", "[ALPHA] Number of seats currently pending in queues of the API Priority and Fairness subsystem", both},
		{"current_executing_requests", "[BETA] Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem", both},
		{"current_executing_seats", "[BETA] Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem", both},
		{"demand_seats", nanosecond + "(the number of seats each priority level could use) / (nominal number of seats for that level)", level},
		{"priority_level_seat_utilization", nanosecond + "utilization of seats for any stage of execution (but only initial stage for WATCHes)", phased},
		{"priority_level_request_utilization", nanosecond + "number of requests (as a fraction of the relevant limit) waiting or in any stage of execution (but only initial stage for WATCHes)", phased},
		{"read_vs_write_current_requests", nanosecond + "the number of requests (as a fraction of the relevant limit) waiting or in regular stage of execution", []string{"phase", "request_kind"}},
	} {
		s.describe(flowPrefix+d.name, d.help, d.labels...)
	}
}

// collectFlow sends what flow control tells.
func (s *state) collectFlow(f *flow.Control, to chan<- prometheus.Metric, gauge, counter func(name string, value float64, labels ...string)) {
	over := func(name string, h flow.Histogram, labels ...string) {
		var count uint64
		buckets := make(map[float64]uint64, len(h.Buckets))
		for i, n := range h.Counts {
			if count += n; i < len(h.Buckets) {
				buckets[h.Buckets[i]] = count
			}
		}
		to <- prometheus.MustNewConstHistogram(s.descs[flowPrefix+name], count, h.Sum, buckets, labels...)
	}
	for phase, kinds := range map[string]*flow.Kinds{"executing": &f.Working, "waiting": &f.Waiting} {
		over("read_vs_write_current_requests", kinds.Reading.Over(), phase, "readOnly")
		over("read_vs_write_current_requests", kinds.Writing.Over(), phase, "mutating")
	}
	gauge(flowPrefix+"seat_fair_frac", f.Fraction())
	for _, l := range f.Stats() {
		for name, value := range map[string]float64{
			"nominal_limit_seats": float64(l.Nominal), "lower_limit_seats": float64(l.Lowest), "upper_limit_seats": float64(l.Highest), "current_limit_seats": float64(l.Now),
			"demand_seats_high_watermark": float64(l.DemandHighest), "demand_seats_average": l.DemandAverage, "demand_seats_stdev": l.DemandDeviation,
			"demand_seats_smoothed": l.DemandSmoothed, "target_seats": l.Target, "current_r": l.Virtual,
		} {
			gauge(flowPrefix+name, value, l.Name)
		}
		if d := l.Dispatched; d != nil {
			gauge(flowPrefix+"dispatch_r", d.At, l.Name)
			gauge(flowPrefix+"latest_s", d.Began, l.Name)
			gauge(flowPrefix+"next_s_bounds", d.Least, l.Name, "min")
			gauge(flowPrefix+"next_s_bounds", d.Most, l.Name, "max")
			gauge(flowPrefix+"next_discounted_s_bounds", d.LeastLess, l.Name, "min")
			gauge(flowPrefix+"next_discounted_s_bounds", d.MostLess, l.Name, "max")
		}
		over("demand_seats", l.DemandOver, l.Name)
		over("priority_level_seat_utilization", l.SeatsOver, "executing", l.Name)
		over("priority_level_request_utilization", l.WorkingOver, "executing", l.Name)
		over("priority_level_request_utilization", l.WaitingOver, "waiting", l.Name)
		for _, f := range l.Schemas {
			counter(flowPrefix+"dispatched_requests_total", float64(f.Dispatched), l.Name, f.Name)
			for why, n := range f.Refused {
				counter(flowPrefix+"rejected_requests_total", float64(n), l.Name, f.Name, why)
			}
			if f.NoRoom > 0 {
				counter(flowPrefix+"request_dispatch_no_accommodation_total", float64(f.NoRoom), l.Name, f.Name)
			}
			gauge(flowPrefix+"current_inqueue_requests", float64(f.Waiting), l.Name, f.Name)
			gauge(flowPrefix+"current_inqueue_seats", float64(f.SeatsWaiting), l.Name, f.Name)
			gauge(flowPrefix+"current_executing_requests", float64(f.Working), l.Name, f.Name)
			gauge(flowPrefix+"current_executing_seats", float64(f.Seats), l.Name, f.Name)
		}
	}
}
