package rest

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// compute answers a read of a virtual resource.
func (s *scope) compute() error {
	switch s.req.Verb {
	case request.Get:
		obj, err := s.def.Source.Get(s.ctx(), s.req.Namespace, s.req.Name)
		if err != nil {
			return err
		}
		return s.respondObject(http.StatusOK, obj)
	case request.List:
		return s.computeList()
	}
	return errMethodNotAllowed()
}

func (s *scope) computeList() error {
	o, err := s.listOptions(false)
	if err != nil {
		return err
	}
	objs, err := s.def.Source.List(s.ctx(), s.req.Namespace)
	if err != nil {
		return err
	}
	slices.SortStableFunc(objs, func(a, b resource.Object) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	p := &wire.Page{}
	for _, obj := range objs {
		set := fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()}
		for _, f := range s.def.Fields {
			set[f.Path] = f.Get(obj)
		}
		if !o.labels.Matches(labels.Set(obj.GetLabels())) || !o.fields.Matches(set) {
			continue
		}
		rec, err := s.enc.Unstored(obj)
		if err != nil {
			return err
		}
		p.Records = append(p.Records, rec)
	}
	return s.writeList(p)
}
