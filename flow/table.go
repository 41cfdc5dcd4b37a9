package flow

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	flowcontrol "k8s.io/api/flowcontrol/v1"

	"github.com/apikeel/kelson/request"
)

// This file builds levels and schemas from API objects.

// maxLevelPart is the part of a level's seats that a single request may take.
const maxLevelPart = 0.15

// table assigns requests to schemas and levels. It is immutable; a new one is built
// whenever an object changes.
type table struct {
	schemas  []*schema // in matching order
	catchAll *schema
	levels   []*level // sorted by name; includes levels without an object that are not idle yet
	fraction float64  // result of adjust when the table was built
}

// find returns the schema of a request. The catch-all schema matches all authenticated
// and unauthenticated users; a user in neither group gets it too.
func (t *table) find(r *request.Request) *schema {
	for _, s := range t.schemas {
		if s.matches(r) {
			return s
		}
	}
	return t.catchAll
}

// build builds a table from API objects. Levels of the previous table are reused, with
// their requests.
func build(before *table, schemas map[string]*flowcontrol.FlowSchema, levels map[string]*flowcontrol.PriorityLevelConfiguration, seats int, now time.Time) *table {
	t := &table{}
	uids := map[string]string{}
	byName := map[string]*level{}
	specs := map[string]*flowcontrol.PriorityLevelConfigurationSpec{}
	for name, spec := range mandatoryLevels() {
		specs[name] = &spec
	}
	for name, object := range levels {
		if isValidLevel(object) {
			specs[name] = &object.Spec
			uids[name] = string(object.UID)
		}
	}
	old := map[string]*level{}
	if before != nil {
		for _, l := range before.levels {
			old[l.name] = l
		}
	}
	shares := map[*level]shareSpec{}
	for name, spec := range specs {
		l := old[name]
		if l == nil {
			l = newLevel(name, spec.Type == flowcontrol.PriorityLevelEnablementExempt, now)
		}
		delete(old, name)
		l.configure(queuingOf(spec))
		byName[name], shares[l] = l, sharesOf(spec)
		t.levels = append(t.levels, l)
	}
	for _, l := range old {
		// The remaining requests keep their seats as long as they need them.
		if !l.quiesce() {
			shares[l] = l.currentShare()
			t.levels = append(t.levels, l)
		}
	}
	slices.SortFunc(t.levels, func(a, b *level) int { return strings.Compare(a.name, b.name) })
	t.fraction = apportion(t.levels, shares, seats, now)
	t.addSchemas(schemas, byName, uids)
	for _, l := range t.levels {
		l.forget(t.schemas)
	}
	return t
}

func (t *table) addSchemas(objects map[string]*flowcontrol.FlowSchema, levels map[string]*level, uids map[string]string) {
	all := mandatorySchemas()
	for _, object := range objects {
		all[object.Name] = object
	}
	ordered := make([]*flowcontrol.FlowSchema, 0, len(all))
	for _, object := range all {
		ordered = append(ordered, object)
	}
	slices.SortFunc(ordered, func(a, b *flowcontrol.FlowSchema) int {
		return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence), strings.Compare(a.Name, b.Name))
	})
	for _, object := range ordered {
		l := levels[object.Spec.PriorityLevelConfiguration.Name]
		if l == nil {
			continue // the next schema that matches gets its requests
		}
		s := &schema{
			name: object.Name, level: l, rules: object.Spec.Rules, stats: l.stats(object.Name),
			uid: []string{string(object.UID)}, levelUID: []string{uids[l.name]},
			queues: l.queuing.queues,
		}
		if l.queuing.queues > 0 {
			s.maxSeats = max(1, min(int(math.Ceil(float64(l.limits.nominal)*maxLevelPart)), l.limits.nominal/l.queuing.hand))
		}
		if method := object.Spec.DistinguisherMethod; method != nil {
			s.by = method.Type
		}
		t.schemas = append(t.schemas, s)
		if object.Name == flowcontrol.FlowSchemaNameCatchAll {
			t.catchAll = s
		}
	}
}

// isValidLevel reports whether the spec of a level is valid. Validation checks that, but the
// store may hold objects from before.
func isValidLevel(object *flowcontrol.PriorityLevelConfiguration) bool {
	spec := &object.Spec
	exempt := object.Name == flowcontrol.PriorityLevelConfigurationNameExempt
	if (spec.Type == flowcontrol.PriorityLevelEnablementExempt) != exempt || exempt != (spec.Limited == nil) {
		return false
	}
	if exempt {
		return true
	}
	response := &spec.Limited.LimitResponse
	if response.Type != flowcontrol.LimitResponseTypeQueue {
		return response.Queuing == nil
	}
	q := response.Queuing
	return q != nil && q.Queues > 0 && q.HandSize > 0 && q.HandSize <= q.Queues
}

func queuingOf(spec *flowcontrol.PriorityLevelConfigurationSpec) queuing {
	if spec.Limited == nil || spec.Limited.LimitResponse.Queuing == nil {
		return queuing{}
	}
	q := spec.Limited.LimitResponse.Queuing
	return queuing{queues: int(q.Queues), hand: int(q.HandSize), length: int(q.QueueLengthLimit)}
}

// shareSpec is the part of a level's spec about seats.
type shareSpec struct {
	shares    int32
	lendable  int32  // percent
	borrowing *int32 // percent; nil is no limit
}

func sharesOf(spec *flowcontrol.PriorityLevelConfigurationSpec) shareSpec {
	value := func(p *int32, missing int32) int32 {
		if p == nil {
			return missing
		}
		return *p
	}
	switch {
	case spec.Limited != nil:
		return shareSpec{value(spec.Limited.NominalConcurrencyShares, 30), value(spec.Limited.LendablePercent, 0), spec.Limited.BorrowingLimitPercent}
	case spec.Exempt != nil:
		return shareSpec{value(spec.Exempt.NominalConcurrencyShares, 0), value(spec.Exempt.LendablePercent, 0), nil}
	}
	return shareSpec{}
}

// currentShare returns the shares of a level that has no object any more.
func (l *level) currentShare() shareSpec {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.share
}

// apportion divides the seats by the levels' shares, and then by their demand.
func apportion(levels []*level, shares map[*level]shareSpec, seats int, now time.Time) float64 {
	sum := 0.0
	for _, s := range shares {
		sum += float64(s.shares)
	}
	for _, l := range levels {
		s := shares[l]
		nominal := 0
		if sum > 0 {
			nominal = int(math.Ceil(float64(seats) * float64(s.shares) / sum))
		}
		percent := func(p int32) int { return int(math.Round(float64(nominal) * float64(p) / 100)) }
		lent, borrowed := percent(s.lendable), seats
		if s.borrowing != nil {
			borrowed = percent(*s.borrowing)
		}
		l.mu.Lock()
		l.share = s
		l.limits.nominal, l.limits.lowest, l.limits.highest = nominal, nominal-lent, nominal+borrowed
		l.mu.Unlock()
	}
	return adjust(levels, now)
}

// mandatoryLevels are used while the API objects of the mandatory levels do not exist.
func mandatoryLevels() map[string]flowcontrol.PriorityLevelConfigurationSpec {
	return map[string]flowcontrol.PriorityLevelConfigurationSpec{
		flowcontrol.PriorityLevelConfigurationNameExempt: {
			Type:   flowcontrol.PriorityLevelEnablementExempt,
			Exempt: &flowcontrol.ExemptPriorityLevelConfiguration{},
		},
		flowcontrol.PriorityLevelConfigurationNameCatchAll: {
			Type: flowcontrol.PriorityLevelEnablementLimited,
			Limited: &flowcontrol.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: new(int32(5)),
				LimitResponse:            flowcontrol.LimitResponse{Type: flowcontrol.LimitResponseTypeReject},
			},
		},
	}
}

// mandatorySchemas are the schemas of the mandatory levels.
func mandatorySchemas() map[string]*flowcontrol.FlowSchema {
	everything := func(name, level string, precedence int32, groups ...string) *flowcontrol.FlowSchema {
		star := []string{"*"}
		rule := flowcontrol.PolicyRulesWithSubjects{
			ResourceRules:    []flowcontrol.ResourcePolicyRule{{Verbs: star, APIGroups: star, Resources: star, Namespaces: star, ClusterScope: true}},
			NonResourceRules: []flowcontrol.NonResourcePolicyRule{{Verbs: star, NonResourceURLs: star}},
		}
		for _, g := range groups {
			rule.Subjects = append(rule.Subjects, flowcontrol.Subject{Kind: flowcontrol.SubjectKindGroup, Group: &flowcontrol.GroupSubject{Name: g}})
		}
		s := &flowcontrol.FlowSchema{Spec: flowcontrol.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrol.PriorityLevelConfigurationReference{Name: level},
			MatchingPrecedence:         precedence,
			Rules:                      []flowcontrol.PolicyRulesWithSubjects{rule},
		}}
		s.Name = name
		return s
	}
	exempt, rest := flowcontrol.FlowSchemaNameExempt, flowcontrol.FlowSchemaNameCatchAll
	all := map[string]*flowcontrol.FlowSchema{
		exempt: everything(exempt, flowcontrol.PriorityLevelConfigurationNameExempt, 1, request.Masters),
		rest:   everything(rest, flowcontrol.PriorityLevelConfigurationNameCatchAll, 10000, "system:unauthenticated", "system:authenticated"),
	}
	all[rest].Spec.DistinguisherMethod = &flowcontrol.FlowDistinguisherMethod{Type: flowcontrol.FlowDistinguisherMethodByUserType}
	return all
}
