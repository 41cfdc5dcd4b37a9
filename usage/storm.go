package usage

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"
)

// Level is the state of a priority level.
type Level struct {
	Name string `json:"name"`
	// Seats is how many there are, Used how many are taken; Waiting is the number of
	// requests in queues.
	Seats   int `json:"seats"`
	Used    int `json:"seatsUsed"`
	Waiting int `json:"waiting"`
	// Exempt: requests of the level are never limited.
	Exempt bool `json:"exempt,omitempty"`
}

// When the server is under pressure.
const (
	busyPercent   = 80 // of all processors
	fewRefused    = 5  // requests of a level
	longWait      = 100 * time.Millisecond
	culpritShare  = 0.25 // of the load, for a client to be named
	culpritFactor = 2    // times the load of the next
)

// Storm says whether the server has too much to do, and who is the likeliest cause.
type Storm struct {
	// Overloaded: requests are refused or wait, or the processors are busy.
	Overloaded bool `json:"overloaded"`
	// Words are sentences for a person.
	Words   []string `json:"words"`
	Seconds float64  `json:"seconds"`
	// CPUPercent is that of one processor, by the whole process, in the last seconds.
	CPUPercent float64         `json:"cpuPercent"`
	Processors int             `json:"processors"`
	Levels     []LevelPressure `json:"levels,omitempty"`
	// Culprit is the client that is the likeliest cause; nil if no client stands out.
	Culprit *Client `json:"culprit,omitempty"`
	// Clients are the clients that cause the most load.
	Clients []Client `json:"clients"`
	// Apply are objects that limit the culprit: a priority level and a flow schema.
	Apply []map[string]any `json:"apply,omitempty"`
}

// LevelPressure is a priority level in which requests are refused or wait.
type LevelPressure struct {
	Level
	Refused         int64   `json:"refused"`
	MeanWaitSeconds float64 `json:"meanWaitSeconds"`
}

// Client is a user with a user agent, and what it did.
type Client struct {
	User  string `json:"user"`
	Agent string `json:"agent"`
	Level string `json:"level"`
	// Load is its share of what is scarce: processors, seats and places in queues.
	Load              float64 `json:"load"`
	CPUShare          float64 `json:"cpuShare"`
	SeatShare         float64 `json:"seatShare"`
	RequestShare      float64 `json:"requestShare"`
	RequestsPerSecond float64 `json:"requestsPerSecond"`
	Refused           int64   `json:"refused"`
	BytesOut          int64   `json:"bytesOut"`
	// Mostly is what it does most: "list pods in namespace a".
	Mostly string `json:"mostly,omitempty"`
}

type clientKey struct{ user, agent string }

// clientLoad is what is summed for a client.
type clientLoad struct {
	Counts
	pressed Counts // in levels under pressure
	levels  map[string]int64
	does    map[string]*does
}

type does struct {
	text   string
	weight int64
}

// Storm looks at the recent requests. What the viewer may not list is not told.
func (m *Meter) Storm(may Viewer) *Storm {
	m.collect(freshFor)
	may = remembered(may)
	entries, from, to, _ := m.entries()
	s := &Storm{Seconds: max(to.Sub(from).Seconds(), 0.001), Processors: m.processors(), Clients: []Client{}}
	m.mu.Lock()
	last := m.slots.since(slotLength, ByUser, to)
	m.mu.Unlock()
	s.CPUPercent = 100 * last.cpu.Seconds() / max(to.Sub(last.began).Seconds(), 0.001)
	pressed := s.levels(entries, m.cfg.Levels)
	busy := s.CPUPercent >= busyPercent*float64(s.Processors)
	s.Overloaded = busy || len(s.Levels) > 0

	loads, total := map[clientKey]*clientLoad{}, clientLoad{}
	for i := range entries {
		e := &entries[i]
		l := loads[clientKey{e.user, e.agent}]
		if l == nil {
			l = &clientLoad{levels: map[string]int64{}, does: map[string]*does{}}
			loads[clientKey{e.user, e.agent}] = l
		}
		l.Counts.add(&e.counts)
		total.Counts.add(&e.counts)
		if pressed[e.level] {
			l.pressed.add(&e.counts)
			total.pressed.add(&e.counts)
		}
		l.levels[e.level] += weigh(&e.counts)
		what := "requests for things that you may not list"
		if e.isVisible(may) {
			what = e.verb + " " + e.of(ByResource)
			if e.namespace != clusterScope {
				what += " in namespace " + e.namespace
			}
		}
		d := l.does[what]
		if d == nil {
			d = &does{text: what}
			l.does[what] = d
		}
		d.weight += weigh(&e.counts)
	}
	for key, l := range loads {
		s.Clients = append(s.Clients, l.client(key, &total, s.Seconds, busy))
	}
	slices.SortFunc(s.Clients, func(a, b Client) int {
		return cmp.Or(cmp.Compare(b.Load, a.Load), cmp.Compare(b.RequestShare, a.RequestShare), cmp.Compare(a.User, b.User), cmp.Compare(a.Agent, b.Agent))
	})
	if len(s.Clients) > 0 && s.Overloaded {
		first := s.Clients[0]
		if first.Load >= culpritShare && first.User != Others && (len(s.Clients) == 1 || first.Load >= culpritFactor*s.Clients[1].Load) {
			s.Culprit = &first
		}
	}
	s.say(loads, busy)
	s.Clients = s.Clients[:min(len(s.Clients), 5)]
	return s
}

// levels finds the priority levels under pressure.
func (s *Storm) levels(entries []flushed, states func() []Level) (pressed map[string]bool) {
	counts := map[string]*Counts{}
	for i := range entries {
		e := &entries[i]
		if counts[e.level] == nil {
			counts[e.level] = &Counts{}
		}
		counts[e.level].add(&e.counts)
	}
	known := map[string]Level{}
	if states != nil {
		for _, l := range states() {
			known[l.Name] = l
		}
	}
	pressed = map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		c, l := counts[name], known[name]
		l.Name = name
		wait := c.Waited / time.Duration(max(1, c.Requests))
		if c.Refused >= fewRefused || wait >= longWait || l.Waiting > max(1, l.Seats) {
			pressed[name] = true
			s.Levels = append(s.Levels, LevelPressure{l, c.Refused, wait.Seconds()})
		}
	}
	return pressed
}

func (l *clientLoad) client(key clientKey, total *clientLoad, seconds float64, busy bool) Client {
	share := func(a, b float64) float64 {
		if b <= 0 {
			return 0
		}
		return a / b
	}
	c := Client{
		User: key.user, Agent: key.agent, RequestsPerSecond: float64(l.Requests) / seconds, Refused: l.Refused, BytesOut: l.Bytes,
		CPUShare:     share(float64(l.CPU), float64(total.CPU)),
		SeatShare:    share(float64(l.Seats), float64(total.Seats)),
		RequestShare: share(float64(l.Requests), float64(total.Requests)),
	}
	c.Load = (2*c.CPUShare + c.RequestShare) / 3
	if total.pressed.Requests > 0 {
		seats := share(float64(l.pressed.Seats), float64(total.pressed.Seats))
		requests := share(float64(l.pressed.Requests), float64(total.pressed.Requests))
		if queues := (seats + requests) / 2; busy {
			c.Load = (c.CPUShare + queues) / 2
		} else {
			c.Load = queues
		}
	}
	var most int64
	for _, level := range slices.Sorted(maps.Keys(l.levels)) {
		if w := l.levels[level]; w > most {
			c.Level, most = level, w
		}
	}
	most = 0
	for _, what := range slices.Sorted(maps.Keys(l.does)) {
		if d := l.does[what]; d.weight > most {
			c.Mostly, most = d.text, d.weight
		}
	}
	return c
}

// exemptLevel is the priority level that has no limits.
const exemptLevel = "exempt"

// say puts what was found into words.
func (s *Storm) say(loads map[clientKey]*clientLoad, busy bool) {
	tell := func(format string, args ...any) { s.Words = append(s.Words, fmt.Sprintf(format, args...)) }
	if busy {
		tell("The server used %.0f%% of its %d processors in the last seconds.", s.CPUPercent/float64(s.Processors), s.Processors)
	}
	for _, l := range s.Levels {
		tell("Priority level %s refused %d requests; requests waited %.2f seconds on average, and %d wait now.", l.Name, l.Refused, l.MeanWaitSeconds, l.Waiting)
	}
	if !s.Overloaded {
		tell("There is no storm: the server used %.0f%% of its %d processors in the last seconds, and no priority level refuses requests or lets them wait.",
			s.CPUPercent/float64(s.Processors), s.Processors)
	}
	c := s.Culprit
	switch {
	case c != nil:
		tell("The likeliest culprit is user %q with user agent %q: %.0f%% of the CPU time of all requests, %.0f%% of the seats, %.0f%% of the requests (%.0f a second, %d refused), mostly %s.",
			c.User, c.Agent, 100*c.CPUShare, 100*c.SeatShare, 100*c.RequestShare, c.RequestsPerSecond, c.Refused, c.Mostly)
	case s.Overloaded && len(s.Clients) > 0:
		tell("No client stands out; the first of %d is user %q with user agent %q, with %.0f%% of the load.", len(s.Clients), s.Clients[0].User, s.Clients[0].Agent, 100*s.Clients[0].Load)
	case len(s.Clients) > 0:
		first := s.Clients[0]
		tell("The client with the most load is user %q with user agent %q: %.0f%% of the CPU time of all requests, mostly %s.", first.User, first.Agent, 100*first.CPUShare, first.Mostly)
	}
	if c == nil {
		return
	}
	agents := 0
	for key := range loads {
		if key.user == c.User {
			agents++
		}
	}
	switch {
	case c.Level == exemptLevel:
		tell("Its requests are in priority level %s, which has no limits: no flow schema can slow it down. Stop the client, or take it out of the group system:masters.", exemptLevel)
	case isShortened(c.User):
		tell("Its name is too long to be kept, so there is no flow schema for it here.")
	case c.User == unauthenticated:
		tell("It does not authenticate, so flow control does not see it. Block it in the network.")
	default:
		s.Apply = limiting(c)
		tell("To limit it now, apply the objects below: a priority level with few seats and no borrowing, and a flow schema that sends the user there. Delete them when the client is mended.")
		if agents > 1 {
			tell("The user has %d user agents; the flow schema limits all of them.", agents)
		}
	}
}

// limiting returns the objects that limit a client, as kubectl apply takes them.
func limiting(c *Client) []map[string]any {
	const level = "kelson-limited"
	subject := map[string]any{"kind": "User", "user": map[string]any{"name": c.User}}
	if account, ok := strings.CutPrefix(c.User, "system:serviceaccount:"); ok {
		if namespace, name, ok := strings.Cut(account, ":"); ok {
			subject = map[string]any{"kind": "ServiceAccount", "serviceAccount": map[string]any{"namespace": namespace, "name": name}}
		}
	}
	const api = "flowcontrol.apiserver.k8s.io/v1"
	every := []string{"*"}
	return []map[string]any{{
		"apiVersion": api, "kind": "PriorityLevelConfiguration", "metadata": map[string]any{"name": level},
		"spec": map[string]any{"type": "Limited", "limited": map[string]any{
			"nominalConcurrencyShares": 5, "borrowingLimitPercent": 0,
			"limitResponse": map[string]any{"type": "Queue", "queuing": map[string]any{"queues": 16, "handSize": 4, "queueLengthLimit": 50}},
		}},
	}, {
		"apiVersion": api, "kind": "FlowSchema", "metadata": map[string]any{"name": "kelson-limit-" + objectName(c.User)},
		"spec": map[string]any{
			// Before system-nodes and all that comes after it, behind leader election.
			"matchingPrecedence": 450, "priorityLevelConfiguration": map[string]any{"name": level},
			"distinguisherMethod": map[string]any{"type": "ByUser"},
			"rules": []map[string]any{{
				"subjects":         []map[string]any{subject},
				"resourceRules":    []map[string]any{{"verbs": every, "apiGroups": every, "resources": every, "namespaces": every, "clusterScope": true}},
				"nonResourceRules": []map[string]any{{"verbs": every, "nonResourceURLs": every}},
			}},
		},
	}}
}

// objectName makes the name of an object from that of a user.
func objectName(user string) string {
	var name strings.Builder
	for _, r := range strings.ToLower(user) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			name.WriteRune(r)
		case name.Len() > 0:
			name.WriteByte('-')
		}
		if name.Len() >= 40 {
			break
		}
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(user))
	return strings.TrimLeft(fmt.Sprintf("%s-%08x", strings.Trim(name.String(), "-"), hash.Sum32()), "-")
}
