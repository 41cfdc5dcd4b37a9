package wire

import (
	"errors"
	"fmt"

	"github.com/apikeel/kelson/internal/jsonscan"
	"github.com/apikeel/kelson/internal/jsonvalue"
	"github.com/apikeel/kelson/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// MaxDepth is how many levels of maps and lists a stored object may have. JSON decoders end
// at 10,000, for a list, an event or a review with some levels around the object, too.
const MaxDepth = 9000

// ErrNotStorable says that an object would be stored as something that nobody could read.
var ErrNotStorable = errors.New("object cannot be stored")

// checkMap refuses an object that is a map and that DecodeStored would refuse, or whose
// readers could not decode a list with it.
func checkMap(def *resource.Definition, u *unstructured.Unstructured) error {
	if kind, _ := u.Object["kind"].(string); kind != def.Kind {
		return fmt.Errorf("%w: it is of kind %q instead of %q", ErrNotStorable, kind, def.Kind)
	}
	want := def.StorageAPIVersion()
	if version, _ := u.Object["apiVersion"].(string); version != want {
		return fmt.Errorf("%w: it is of version %q instead of %q", ErrNotStorable, version, want)
	}
	if _, ok := u.Object["metadata"].(map[string]any); !ok {
		return fmt.Errorf("%w: it has no metadata", ErrNotStorable)
	}
	return nil
}

// errTooDeep refuses what is nested deeper than MaxDepth.
func errTooDeep() error {
	return fmt.Errorf("%w: it is nested deeper than %d levels", ErrNotStorable, MaxDepth)
}

// checkMapDepth checks how deep a map is that was encoded as data. A level takes at least
// one byte, so that only long objects are looked at.
func checkMapDepth(data []byte, object map[string]any) error {
	if len(data) > MaxDepth && jsonvalue.IsDeeper(object, MaxDepth) {
		return errTooDeep()
	}
	return nil
}

// checkJSONDepth is checkMapDepth for JSON of a struct.
func checkJSONDepth(data []byte) error {
	if len(data) > MaxDepth && jsonscan.Depth(data) > MaxDepth {
		return errTooDeep()
	}
	return nil
}
