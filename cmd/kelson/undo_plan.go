package main

import (
	"encoding/json"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/history"
)

// This file makes the plan of undo: which objects are written, and in which order.

// plan makes the steps out of what differs between now and then.
func (u *undo) plan(answer *history.Differences) ([]*undoStep, error) {
	var steps []*undoStep
	for i := range answer.Items {
		item := &answer.Items[i]
		switch item.Group + "/" + item.Resource {
		case "/events", "events.k8s.io/events", "coordination.k8s.io/leases", "networking.k8s.io/ipaddresses":
			continue // what happened, who is there now, and what the server makes for services
		}
		step := &undoStep{Ref: item.Ref, Action: item.Verb}
		for _, part := range []struct {
			text json.RawMessage
			to   **unstructured.Unstructured
		}{{item.Before, &step.now}, {item.After, &step.was}} {
			if part.text == nil {
				continue
			}
			*part.to = &unstructured.Unstructured{}
			if err := (*part.to).UnmarshalJSON(part.text); err != nil {
				return nil, err
			}
		}
		if step.was != nil && step.now != nil {
			u.uids[step.was.GetUID()] = step.now.GetUID()
		}
		if len(item.Writers) > 1 {
			for _, m := range item.Writers[1:] {
				if m.Name != item.Writers[0].Name && !slices.Contains(step.Conflicts, m.Name) && m.Name != undoManager {
					step.Conflicts = append(step.Conflicts, m.Name)
				}
			}
		}
		step.fields, step.more, step.ownStatus = item.Fields, item.More, item.StatusApart
		step.refuse(item)
		steps = append(steps, step)
	}
	steps = slices.DeleteFunc(steps, u.isSame)
	sortSteps(steps)
	return steps, nil
}

// isSame reports whether an object is what it was but for its status, and for what an object
// gets that has come back: its UID, its time of creation, and the UIDs of its owners.
func (u *undo) isSame(s *undoStep) bool {
	if s.Action != "update" || s.more {
		return false
	}
	owners := func(obj *unstructured.Unstructured) []metav1.OwnerReference {
		all := obj.GetOwnerReferences()
		for i := range all {
			if uid, ok := u.uids[all[i].UID]; ok {
				all[i].UID = uid
			}
		}
		return all
	}
	same := reflect.DeepEqual(owners(s.was), owners(s.now))
	return !slices.ContainsFunc(s.fields, func(f history.FieldChange) bool {
		return !(s.ownStatus && isBelow(f.Path, "status")) && f.Path != "metadata.uid" && f.Path != "metadata.creationTimestamp" && !(same && isBelow(f.Path, "metadata.ownerReferences"))
	})
}

// refuse makes a skip of a step that cannot succeed.
func (s *undoStep) refuse(item *history.Difference) {
	skip := func(why string) { s.Action, s.Notes = "skip", append(s.Notes, why) }
	switch {
	case item.Error != "":
		skip("it cannot be read: " + item.Error)
	case s.was != nil && s.was.GetDeletionTimestamp() != nil:
		skip("it was being deleted at that moment")
	case s.now != nil && s.now.GetDeletionTimestamp() != nil:
		skip("it is being deleted; try again when it is gone")
	case s.was != nil && s.Group == "" && s.Resource == "secrets" && s.was.Object["type"] == "kubernetes.io/service-account-token" && s.now == nil:
		skip("a token of a service account does not come back: it was of the account that is gone")
	}
}

// sortSteps orders steps so that what others need comes first: namespaces, definitions,
// owners, and deletions last.
func sortSteps(steps []*undoStep) {
	byUID := map[types.UID]*undoStep{}
	for _, s := range steps {
		if s.was != nil {
			byUID[s.was.GetUID()] = s
		}
	}
	depths := map[*undoStep]int{}
	var depth func(s *undoStep, seen int) int
	depth = func(s *undoStep, seen int) int {
		if d, ok := depths[s]; ok || seen > 100 {
			return d
		}
		d := 0
		if s.was != nil {
			for _, owner := range s.was.GetOwnerReferences() {
				if above := byUID[owner.UID]; above != nil && above != s {
					d = max(d, depth(above, seen+1)+1)
				}
			}
		}
		depths[s] = d
		return d
	}
	for _, s := range steps {
		switch {
		case s.Action == "skip":
			s.rank = 1 << 20
		case s.Action == "delete":
			s.rank = 1 << 19
		case s.first():
			s.rank = -3
		case s.Group == "" && (s.Resource == "serviceaccounts" || s.Resource == "configmaps" || s.Resource == "secrets") && depth(s, 0) == 0:
			s.rank = -1
		default:
			s.rank = depth(s, 0)
		}
	}
	slices.SortStableFunc(steps, func(a, b *undoStep) int { return a.rank - b.rank })
}

// first reports whether other objects can be made only when this one is there.
func (s *undoStep) first() bool {
	return s.Action == "create" && (s.Group == "" && s.Resource == "namespaces" || s.Group == "apiextensions.k8s.io" && s.Resource == "customresourcedefinitions")
}
