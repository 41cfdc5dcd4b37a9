package rest

import (
	"encoding/json"

	"github.com/apikeel/kelson/internal/yamltext"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the audit gets to see. Most requests are not audited with objects, so
// all of these cost nothing unless there is somebody who takes them.

// auditSent passes on an object that the client has sent, in the form in which it is
// written.
func (s *scope) auditSent(obj resource.Object, err error) (resource.Object, error) {
	if s.req.Audit != nil && err == nil {
		s.req.Audit.SentObject(obj, func() ([]byte, error) {
			version := s.served.Version
			if s.def.Between != nil {
				version = s.def.HubVersion() // it is encoded as it is
			}
			body, err := wire.JSONBody(s.def, version, obj)
			if err != nil {
				return nil, err
			}
			return wire.AppendWithKind(nil, s.served, body), nil
		})
	}
	return obj, err
}

// auditSentOther is for the object of a subresource.
func (s *scope) auditSentOther(obj resource.Object) {
	if s.req.Audit == nil {
		return
	}
	s.req.Audit.SentObject(obj, func() ([]byte, error) {
		copied := obj.DeepCopyObject()
		if copied.GetObjectKind().GroupVersionKind().Empty() {
			copied.GetObjectKind().SetGroupVersionKind(s.sub.Kind)
		}
		return json.Marshal(copied)
	})
}

// auditDeleteOptions is for a delete. That the apiVersion is one that nobody can send
// is what readers of audit logs know.
func (s *scope) auditDeleteOptions(opts *metav1.DeleteOptions) {
	s.span.Event("Decoded delete options")
	defer s.span.Event(auditRecorded)
	if s.req.Audit == nil {
		return
	}
	s.req.Audit.SentObject(nil, func() ([]byte, error) {
		copied := *opts
		copied.TypeMeta = metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "meta.k8s.io/__internal"}
		return json.Marshal(&copied)
	})
}

// auditPatch is for a patch in JSON, or YAML that will be applied.
func (s *scope) auditPatch(patch []byte, isYAML bool) {
	defer s.span.Event(auditRecorded)
	if s.req.Audit == nil {
		return
	}
	if isYAML {
		var err error
		if patch, err = yamltext.ToJSON(patch); err != nil {
			return
		}
	}
	s.req.Audit.SentPatch(patch)
}

func (s *scope) auditAnswer(rec *store.Record) {
	if s.req.Audit != nil {
		s.req.Audit.AnsweredObject(func() ([]byte, error) { return s.enc.AsJSON().AppendObject(nil, rec) })
	}
}

func (s *scope) auditOther(obj any) {
	if s.req.Audit != nil {
		s.req.Audit.AnsweredObject(func() ([]byte, error) { return json.Marshal(obj) })
	}
}

// maxAuditedList is up to how many stored bytes a list is recorded. A longer one would be in
// memory as a whole, which it is for no client.
const maxAuditedList = 1 << 20

func (s *scope) auditList(p *wire.Page) {
	if s.req.Audit != nil {
		s.req.Audit.AnsweredObject(func() ([]byte, error) {
			if p.IsLarger(maxAuditedList) {
				return nil, request.ErrTooLargeToRecord
			}
			return s.enc.AsJSON().AppendList(nil, p)
		})
	}
}

func auditStatus(req *request.Request, status *metav1.Status) {
	if req.Audit != nil {
		req.Audit.AnsweredStatus(status, func() ([]byte, error) { return json.Marshal(status) })
	}
}
