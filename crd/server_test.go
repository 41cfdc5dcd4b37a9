package crd

import (
	"encoding/json"
	"errors"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/resource"
)

// states is a store in which definitions have only what names need.
type states struct {
	t    *testing.T
	next int64
	all  []Stored
}

func (s *states) put(crd *apiextensions.CustomResourceDefinition) {
	s.t.Helper()
	raw, err := json.Marshal(crd)
	if err != nil {
		s.t.Fatal(err)
	}
	s.next++
	rec := Stored{Name: crd.Name, Revision: s.next, JSON: raw}
	for i := range s.all {
		if s.all[i].Name == crd.Name {
			s.all[i] = rec
			return
		}
	}
	s.all = append(s.all, rec)
}

func named(plural, kind string, accepted bool) *apiextensions.CustomResourceDefinition {
	crd := realistic(1)
	crd.Name = plural + ".example.com"
	crd.Spec.Names = apiextensions.CustomResourceDefinitionNames{Plural: plural, Singular: plural + "x", Kind: kind, ListKind: kind + "List"}
	if accepted {
		crd.Status.AcceptedNames = crd.Spec.Names
		setCondition(&crd.Status, apiextensions.CustomResourceDefinitionCondition{Type: apiextensions.Established, Status: apiextensions.ConditionTrue}, crd.CreationTimestamp)
	}
	return crd
}

// TestNames follows a name from one definition to another.
func TestNames(t *testing.T) {
	s, db := quietServer(), &states{t: t}
	serves := func(name string) bool { return s.entries[name+".example.com"].definition != nil }
	db.put(named("foos", "Foo", false))
	s.updateEntries(db.all)
	db.put(named("bars", "Foo", false))
	s.updateEntries(db.all)
	if !serves("foos") || serves("bars") {
		t.Fatal("two definitions have one kind")
	}
	db.all = db.all[1:]
	s.updateEntries(db.all)
	if !serves("bars") || !s.entries["bars.example.com"].statusPending {
		t.Error("a kind that is free again is not given to who wanted it")
	}
}

// TestStructureOfSchemas wants the condition NonStructuralSchema to come and go with schemas
// that are not structural.
func TestStructureOfSchemas(t *testing.T) {
	s, db := quietServer(), &states{t: t}
	crd := named("foos", "Foo", true)
	crd.Spec.PreserveUnknownFields = true
	crd.Generation = 1
	pending := func() bool {
		db.all = nil
		db.put(crd)
		s.updateEntries(db.all)
		return s.entries["foos.example.com"].statusPending
	}
	write := func() *apiextensions.CustomResourceDefinitionCondition {
		(taken{}).setStatus(crd, crd.CreationTimestamp)
		setStructure(crd, crd.CreationTimestamp)
		return condition(&crd.Status, apiextensions.NonStructuralSchema)
	}
	if !pending() {
		t.Error("the status of a definition that preserves unknown fields is not written")
	}
	if c := write(); c == nil || c.Status != apiextensions.ConditionTrue || c.Reason != "Violations" {
		t.Errorf("got the condition %v, want true for Violations", c)
	}
	if pending() {
		t.Error("the status is written again")
	}
	crd.Spec.PreserveUnknownFields, crd.Generation = false, 2
	if !pending() {
		t.Error("the status of a definition with another spec is not written")
	}
	if c := write(); c != nil {
		t.Errorf("got the condition %v, want none", c)
	}
	if pending() {
		t.Error("the status is written again")
	}
}

// TestNamesAtStart checks that a start takes no names away.
func TestNamesAtStart(t *testing.T) {
	s, db := quietServer(), &states{t: t}
	db.put(named("bars", "Foo", false))
	db.put(named("foos", "Foo", true))
	s.updateEntries(db.all)
	if e := s.entries["bars.example.com"]; e.definition != nil || !e.refused {
		t.Error("a definition got a kind that another has")
	}
	if s.entries["foos.example.com"].definition == nil {
		t.Error("a definition that was served is not")
	}
}

// TestOneBadDefinition: a definition that cannot be published keeps no other from being
// served.
func TestOneBadDefinition(t *testing.T) {
	s, db := quietServer(), &states{t: t}
	published := map[string]bool{}
	s.Publish = func(put []*resource.Definition, _ []schema.GroupResource) error {
		for _, def := range put {
			if def.Resource == "bads" {
				return errors.New("bads cannot be served")
			}
		}
		for _, def := range put {
			published[def.Resource] = true
		}
		return nil
	}
	for _, name := range []string{"bads", "foos", "bars"} {
		db.put(named(name, "K"+name, true))
	}
	s.updateEntries(db.all)
	if err := s.publish(); err != nil || len(published) != 2 || !published["foos"] || !published["bars"] {
		t.Errorf("got %v and an error %v, want foos and bars published", published, err)
	}
}
