package feed

import (
	"encoding/json"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/wire"
)

var errNoMetadata = errors.New("the object has no metadata that can be read")

// readMeta reads what controllers want to know out of stored bytes.
func readMeta(stored []byte, m *controller.Meta) error {
	if _, _, raw, ok := wire.OpenEnvelope(stored); ok {
		metadata, ok := wire.MetadataProto(raw)
		if !ok || !readMetaProto(metadata, m) {
			return errNoMetadata
		}
		return nil
	}
	metadata, ok := wire.StoredMetadata(stored)
	if !ok {
		return errNoMetadata
	}
	var j struct {
		UID               apitypes.UID
		DeletionTimestamp *string
		Finalizers        []string
		OwnerReferences   []metav1.OwnerReference
	}
	if err := json.Unmarshal(metadata, &j); err != nil {
		return err
	}
	*m = controller.Meta{UID: j.UID, Deleting: j.DeletionTimestamp != nil, Finalizers: j.Finalizers, Owners: j.OwnerReferences}
	return nil
}

// Numbers of fields in the protobuf form of ObjectMeta.
const (
	uidField        = 5
	deletionField   = 9
	ownersField     = 13
	finalizersField = 14
)

// readMetaProto reads the fields that are wanted and skips the others, which are
// most of the bytes.
func readMetaProto(b []byte, m *controller.Meta) bool {
	for len(b) > 0 {
		field, kind, value, rest, ok := wire.ProtoField(b)
		if !ok {
			return false
		}
		b = rest
		if kind != wire.ProtoBytes {
			continue
		}
		switch field {
		case uidField:
			m.UID = apitypes.UID(value)
		case deletionField:
			m.Deleting = true
		case finalizersField:
			m.Finalizers = append(m.Finalizers, string(value))
		case ownersField:
			var ref metav1.OwnerReference
			if ref.Unmarshal(value) != nil {
				return false
			}
			m.Owners = append(m.Owners, ref)
		}
	}
	return true
}
